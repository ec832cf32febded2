package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
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
	portable bool          // watch by reading, as systems other than Linux do

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
		if !l.portable && canPoll {
			c.raw, _ = t.SyscallConn()
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
	raw     syscall.RawConn // nil where the socket cannot be polled
	stall   time.Duration
	writeBy atomic.Int64 // write deadline, unix ns
	linger  atomic.Bool  // read what the client still sends before closing
	pace    pace         // for whoever reads
	surplus bool         // above the limit of connections
	silence

	l         *listener
	closed    atomic.Bool // and no longer counted
	peeked    byte        // read ahead by the portable watch
	hasPeeked bool
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
	}
	if c.linger.Swap(false) {
		if t, ok := c.Conn.(*net.TCPConn); ok && t.CloseWrite() == nil {
			_ = c.SetReadDeadline(time.Now().Add(lingerTime))
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
		}
	}
	return c.Conn.Close()
}

// watch notices that the client of one request left. It must be stopped before anyone
// reads from the connection again.
type watch struct {
	c        *conn
	gone     func() // called once, from the watch's goroutine
	poll     poller
	stopping atomic.Bool
	done     chan struct{}
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// startWatch calls gone when the client closes or half-closes the connection.
func startWatch(c *conn, gone func()) *watch {
	w := &watch{c: c, gone: gone, done: make(chan struct{})}
	c.pace.stop()
	_ = c.SetReadDeadline(time.Time{})
	go w.run() // owned by stop, which waits for it
	return w
}

func (w *watch) run() {
	defer close(w.done)
	left := false
	if w.c.raw != nil {
		left = w.park()
	} else {
		left = w.read()
	}
	if left && !w.stopping.Load() {
		w.gone()
	}
}

// read is the portable watch: one byte is read ahead and given back to the next Read, so
// once a pipelined request waits it sees nothing more.
func (w *watch) read() (left bool) {
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
func (w *watch) stop() {
	w.stopping.Store(true)
	_ = w.c.SetReadDeadline(past)
	<-w.done
	_ = w.c.SetReadDeadline(time.Time{})
}
