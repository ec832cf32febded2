package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// readBufferBytes is the read buffer of one worker connection. It bounds the headers of
// a worker's response and is what one read of a burst can coalesce.
const readBufferBytes = 16 << 10

// errTooManyConns says that a worker has maxConns connections in use.
var errTooManyConns = errors.New("too many open connections to this worker")

// pool holds the connections of one worker: at most max open, idle ones used last in
// first out and at most idleLife old. Engines close idle connections after 5 s (uvicorn),
// so idleLife stays below that.
//
// It is our own and not fasthttp.HostClient's because a dial must end when the client
// leaves, because a request must know whether its connection was used before (only then
// may it be sent again), and because HostClient starts a cleaner that nobody waits for.
type pool struct {
	addr     string
	tls      *tls.Config // nil is plain TCP
	connect  time.Duration
	idleLife time.Duration
	max      int
	onDial   func(error)                                                       // counts dials by their result
	dialer   func(ctx context.Context, network, addr string) (net.Conn, error) // nil is TCP's

	mu struct {
		sync.Mutex
		idle   []*conn // oldest first
		open   int
		closed bool
	}
}

// conn is one connection with its read buffer and the memory of a response's header.
type conn struct {
	net.Conn
	br     *bufio.Reader
	header fasthttp.ResponseHeader
	pulse  *pulse
	reused bool
	since  time.Time // when it became idle
}

// get returns an idle connection that is still open, else a fresh one. With fresh set it
// always dials.
func (p *pool) get(ctx context.Context, fresh bool) (*conn, error) {
	for !fresh {
		c := p.pop()
		if c == nil {
			break
		}
		if time.Since(c.since) < p.idleLife && c.pulse.alive() {
			c.reused = true
			return c, nil
		}
		p.discard(c)
	}
	p.mu.Lock()
	if p.mu.open >= p.max {
		p.mu.Unlock()
		return nil, errTooManyConns
	}
	p.mu.open++
	p.mu.Unlock()

	nc, err := p.dial(ctx)
	p.onDial(err)
	if err != nil {
		p.mu.Lock()
		p.mu.open--
		p.mu.Unlock()
		return nil, err
	}
	return &conn{Conn: nc, br: bufio.NewReaderSize(nc, readBufferBytes), pulse: newPulse(nc)}, nil
}

func (p *pool) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.connect)
	defer cancel()
	dial := p.dialer
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	c, err := dial(ctx, "tcp", p.addr)
	if err != nil || p.tls == nil {
		return c, err
	}
	t := tls.Client(c, p.tls)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return t, nil
}

func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.mu.idle)
	if n == 0 {
		return nil
	}
	c := p.mu.idle[n-1]
	p.mu.idle[n-1] = nil
	p.mu.idle = p.mu.idle[:n-1]
	return c
}

// put takes back a connection whose exchange is complete.
func (p *pool) put(c *conn) {
	if c.br.Buffered() > 0 || c.SetDeadline(time.Time{}) != nil {
		p.discard(c)
		return
	}
	c.since = time.Now()
	p.mu.Lock()
	if !p.mu.closed {
		p.mu.idle = append(p.mu.idle, c)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.discard(c)
}

// discard closes a connection; closing twice is harmless, discarding twice is not.
func (p *pool) discard(c *conn) {
	_ = c.Close()
	p.mu.Lock()
	p.mu.open--
	p.mu.Unlock()
}

// sweep closes the connections that have been idle for too long.
func (p *pool) sweep(now time.Time) {
	p.mu.Lock()
	n := 0
	for n < len(p.mu.idle) && now.Sub(p.mu.idle[n].since) >= p.idleLife {
		n++
	}
	old := append([]*conn(nil), p.mu.idle[:n]...)
	rest := copy(p.mu.idle, p.mu.idle[n:])
	clear(p.mu.idle[rest:])
	p.mu.idle = p.mu.idle[:rest]
	p.mu.Unlock()
	for _, c := range old {
		p.discard(c)
	}
}

// close discards the idle connections and those that come back later.
func (p *pool) close() {
	p.mu.Lock()
	p.mu.closed = true
	idle := p.mu.idle
	p.mu.idle = nil
	p.mu.Unlock()
	for _, c := range idle {
		p.discard(c)
	}
}

func (p *pool) stats() (open, idle int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.open, len(p.mu.idle)
}
