package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// The limits of the last moments of a connection that is closed while its client still
// sends: an answer such as 413 must be readable, and closing a socket with unread data
// resets it.
const (
	lingerTime  = 3 * time.Second
	lingerBytes = 256 << 20
)

// spareConns are the connections above the limit that are told so, each with one answer.
// Past them a connection is closed at once.
const spareConns = 256

// listener hands out connections that can be watched and that do not wait for ever for a
// client that stopped reading.
type listener struct {
	net.Listener
	metrics  *metrics
	stall    time.Duration // longest time for one write; 0 is no limit
	pace     pace          // of every connection
	max      int64         // connections that are served; 0 is no limit
	leavers  *departures
	portable bool // watch by reading, as systems other than Linux do

	open      atomic.Int64
	first     sync.Once
	accepting chan struct{} // closed by the first Accept
}

func (l *listener) Accept() (net.Conn, error) {
	l.first.Do(func() { close(l.accepting) })
	nc, surplus, err := l.next()
	if err != nil {
		return nil, err
	}
	l.count(1)
	c := &conn{Conn: nc, l: l, stall: l.stall, pace: l.pace, surplus: surplus}
	if t, ok := nc.(*net.TCPConn); ok {
		setUserTimeout(t, l.stall)
		if !l.portable {
			c.id = l.leavers.add(c, t)
		}
	}
	return c, nil
}

// next returns the next connection and whether it is above the limit.
func (l *listener) next() (nc net.Conn, surplus bool, err error) {
	for {
		if nc, err = l.Listener.Accept(); err != nil {
			return nil, false, err
		}
		n := l.open.Load()
		if l.max == 0 || n < l.max {
			return nc, false, nil
		}
		l.metrics.refusedConns.Inc()
		if n < l.max+spareConns {
			return nc, true, nil
		}
		_ = nc.Close()
	}
}

// count adds n to the open connections.
func (l *listener) count(n int64) {
	l.open.Add(n)
	l.metrics.conns.Add(float64(n))
}

// conn is a client's connection.
type conn struct {
	net.Conn
	id      uint64 // by which departures knows it; 0 where it does not
	stall   time.Duration
	writeBy atomic.Int64 // write deadline, unix ns
	linger  atomic.Bool  // read what the client still sends before closing
	pace    pace         // for whoever reads
	surplus bool         // above the limit of connections
	silence

	l         *listener
	closed    atomic.Bool // and no longer counted
	ahead     *readAhead  // the watch where id is 0
	peeked    byte        // read ahead by it
	hasPeeked bool

	mu struct {
		sync.Mutex
		left bool
		gone func() // the watch's; nil for none
	}
}

// clientConn returns the conn under what fasthttp hands to a handler, nil if there is none.
func clientConn(nc net.Conn) *conn {
	for {
		switch c := nc.(type) {
		case *conn:
			return c
		case *tlsConn:
			nc = c.NetConn()
		default:
			return nil
		}
	}
}

// tooMany tells whether the connection is above the limit still.
func (c *conn) tooMany() bool {
	c.surplus = c.surplus && c.l.open.Load() > c.l.max
	return c.surplus
}

func (c *conn) Read(p []byte) (int, error) {
	if c.hasPeeked && len(p) > 0 {
		p[0], c.hasPeeked = c.peeked, false
		return 1, nil
	}
	n, err := c.readPaced(p)
	return n, c.heard(p[:max(n, 0)], err)
}

// silence is a connection on which the client has said nothing yet.
type silence struct{ begun bool }

// errBareLF is a head whose lines end with LF alone. fasthttp waits for CRLF for as long as
// it may.
var errBareLF = errors.New("a request head without CRLF")

// heard returns what a read that got p and err says to the server.
func (s *silence) heard(p []byte, err error) error {
	switch {
	case len(p) > 0 && !s.begun:
		s.begun = true
		if p[0] >= 'A' && p[0] <= 'Z' && bytes.IndexByte(p, '\r') < 0 && bytes.Contains(p, []byte("\n\n")) {
			return errBareLF
		}
	case !s.begun && errors.Is(err, os.ErrDeadlineExceeded):
		// A client that connects ahead of its first request must not find a 408 to that.
		return io.EOF
	}
	return err
}

// Write gives the client until the stall limit to take some data. The deadline moves on
// only when a quarter of it has passed, which saves a timer update per event.
func (c *conn) Write(p []byte) (int, error) {
	if c.stall > 0 {
		now := time.Now()
		if by := now.Add(c.stall).UnixNano(); by-c.writeBy.Load() > int64(c.stall/4) {
			c.writeBy.Store(by)
			if err := c.SetWriteDeadline(now.Add(c.stall)); err != nil {
				return 0, err
			}
		}
	}
	return c.Conn.Write(p)
}

// Close closes the connection, after reading for a while where the client may still be
// sending.
func (c *conn) Close() error {
	if !c.closed.Swap(true) {
		defer c.l.count(-1)
		if c.id != 0 {
			defer c.l.leavers.remove(c.id)
		}
	}
	if c.linger.Swap(false) {
		if t, ok := c.Conn.(*net.TCPConn); ok && t.CloseWrite() == nil {
			_ = c.SetReadDeadline(time.Now().Add(lingerTime))
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
		}
	}
	return c.Conn.Close()
}

// watch calls gone, at most once, when the client closes or half-closes the connection or
// has done so. unwatch must follow before anyone reads from the connection.
func (c *conn) watch(gone func()) {
	c.pace.stop()
	if c.id == 0 {
		c.ahead = startReadAhead(c, gone)
		return
	}
	c.mu.Lock()
	left := c.mu.left
	if !left {
		c.mu.gone = gone
	}
	c.mu.Unlock()
	if left {
		gone()
	}
}

// unwatch ends the watch. One last call of gone may be under way.
func (c *conn) unwatch() {
	if c.ahead != nil {
		c.ahead.stop()
		c.ahead = nil
		return
	}
	c.mu.Lock()
	c.mu.gone = nil
	c.mu.Unlock()
}

// departed is told that the client has left.
func (c *conn) departed() {
	c.mu.Lock()
	c.mu.left = true
	gone := c.mu.gone
	c.mu.gone = nil
	c.mu.Unlock()
	if gone != nil {
		gone()
	}
}

// readAhead is the watch where departures cannot tell: one byte is read ahead and given back
// to the next Read, so once a pipelined request waits it sees nothing more.
type readAhead struct {
	c        *conn
	gone     func() // called once, from the watch's goroutine
	stopping atomic.Bool
	done     chan struct{}
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

func startReadAhead(c *conn, gone func()) *readAhead {
	w := &readAhead{c: c, gone: gone, done: make(chan struct{})}
	_ = c.SetReadDeadline(time.Time{})
	go w.run() // owned by stop, which waits for it
	return w
}

func (w *readAhead) run() {
	defer close(w.done)
	if w.read() && !w.stopping.Load() {
		w.gone()
	}
}

func (w *readAhead) read() (left bool) {
	if w.c.hasPeeked {
		return false
	}
	var b [1]byte
	n, err := w.c.Conn.Read(b[:])
	if n == 1 {
		w.c.peeked, w.c.hasPeeked = b[0], true
		return false
	}
	return err != nil
}

// stop ends the watch and waits for it.
func (w *readAhead) stop() {
	w.stopping.Store(true)
	_ = w.c.SetReadDeadline(past)
	<-w.done
	_ = w.c.SetReadDeadline(time.Time{})
}
