package sim

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/valyala/fasthttp"
)

// listener hands out connections that can be cut all at once, as the end of a process
// cuts them, and that know whether their client has gone.
type listener struct {
	net.Listener
	mu struct {
		sync.Mutex
		conns map[*conn]struct{}
		down  bool // accepted connections are reset at once
	}
}

type conn struct {
	net.Conn
	owner *listener
	raw   syscall.RawConn // nil when there is no socket
	once  sync.Once
	busy  atomic.Bool // a request is being read or answered
}

func newListener(ln net.Listener) *listener {
	l := &listener{Listener: ln}
	l.mu.conns = map[*conn]struct{}{}
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, owner: l}
		if sc, ok := nc.(syscall.Conn); ok {
			c.raw, _ = sc.SyscallConn()
		}
		l.mu.Lock()
		down := l.mu.down
		if !down {
			l.mu.conns[c] = struct{}{}
		}
		l.mu.Unlock()
		if !down {
			return c, nil
		}
		c.reset()
	}
}

// setDown says whether connections are reset as soon as they are accepted.
func (l *listener) setDown(down bool) {
	l.mu.Lock()
	l.mu.down = down
	l.mu.Unlock()
}

// cut resets every open connection but spared, which may be nil.
func (l *listener) cut(spared *conn) {
	for _, c := range l.open() {
		if c != spared {
			c.reset()
		}
	}
}

// closeIdle closes the connections that wait for a request and returns how many are
// left.
func (l *listener) closeIdle() (left int) {
	for _, c := range l.open() {
		if c.busy.Load() {
			left++
		} else {
			_ = c.Close()
		}
	}
	return left
}

func (l *listener) open() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	conns := make([]*conn, 0, len(l.mu.conns))
	for c := range l.mu.conns {
		conns = append(conns, c)
	}
	return conns
}

// connState follows a connection for closeIdle.
func connState(nc net.Conn, state fasthttp.ConnState) {
	if c, ok := nc.(*conn); ok {
		c.busy.Store(state == fasthttp.StateActive)
	}
}

func (c *conn) Close() error {
	c.once.Do(func() {
		c.owner.mu.Lock()
		delete(c.owner.mu.conns, c)
		c.owner.mu.Unlock()
	})
	return c.Conn.Close()
}

// reset closes the connection with a reset rather than an orderly end, so that what
// was in flight is lost.
func (c *conn) reset() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// gone tells whether the client has closed or reset its side. A request that the
// client has pipelined behind this one hides it until it is read.
func (c *conn) gone() bool {
	if c.raw == nil {
		return false
	}
	gone := false
	var b [1]byte
	err := c.raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return gone || err != nil
}
