package testcluster_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// mishap is what a link does to one direction of a connection.
type mishap int

const (
	delay     mishap = iota // a pause below every limit
	stall                   // a pause around the proxy's idle limit
	split                   // the next bytes travel one by one
	fin                     // an orderly end, in the middle of whatever it is
	rst                     // a reset of both ends
	halfClose               // the end of one direction, the other goes on
	blackHole               // nothing arrives any more and nothing ends
	mishaps
)

func (m mishap) String() string {
	return [...]string{"delay", "stall", "split", "fin", "rst", "half-close", "black hole"}[m]
}

// counts is a number by name.
type counts struct {
	mu sync.Mutex
	m  map[string]int
}

func (c *counts) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[string]int{}
	}
	c.m[name]++
}

func (c *counts) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.m {
		n += v
	}
	return n
}

// link is a TCP way on which things go wrong: after every mean bytes of a direction on
// average, a mishap happens at an arbitrary byte. What goes wrong on the nth connection
// after how many bytes is decided by the seed.
type link struct {
	net.Listener
	name   string
	to     string
	seed   uint64
	mean   int
	faults *counts
	tap    *tap // sees the exchanges, where set
	on     atomic.Bool
	closed chan struct{}
	wg     sync.WaitGroup

	mu   sync.Mutex
	open map[*net.TCPConn]bool
}

func startLink(t testing.TB, name, to string, seed uint64, mean int, faults *counts, tap *tap) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{Listener: ln, name: name, to: to, seed: seed, mean: mean, faults: faults, tap: tap,
		closed: make(chan struct{}), open: map[*net.TCPConn]bool{}}
	l.wg.Go(l.accept)
	t.Cleanup(l.stop)
	return l
}

// stop ends the link and waits for it.
func (l *link) stop() {
	select {
	case <-l.closed:
		return
	default:
	}
	close(l.closed)
	_ = l.Close()
	l.cut()
	l.wg.Wait()
}

// cut resets all connections.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

func (l *link) track(c *net.TCPConn, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if open {
		l.open[c] = true
	} else {
		delete(l.open, c)
	}
}

func (l *link) accept() {
	for n := uint64(0); ; n++ {
		c, err := l.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() { l.serve(c.(*net.TCPConn), n) })
	}
}

// serve carries one connection. A refused or reset far side resets the near side.
func (l *link) serve(near *net.TCPConn, n uint64) {
	l.track(near, true)
	defer l.track(near, false)
	defer near.Close()
	c, err := net.DialTimeout("tcp", l.to, time.Second)
	if err != nil {
		_ = near.SetLinger(0)
		return
	}
	far := c.(*net.TCPConn)
	l.track(far, true)
	defer l.track(far, false)
	defer far.Close()
	select {
	case <-l.closed: // cut may have missed the far side
		return
	default:
	}
	var there, back tapped
	if l.tap != nil {
		there, back = l.tap.follow(&l.wg)
	}
	var both sync.WaitGroup
	both.Go(func() {
		w := way{link: l, dst: far, src: near, rand: rand.New(rand.NewPCG(l.seed, 2*n)), sent: there.see}
		w.carry()
		there.end()
	})
	both.Go(func() {
		// What an answer says is seen before it can be acted on.
		w := way{link: l, dst: near, src: far, rand: rand.New(rand.NewPCG(l.seed, 2*n+1)), sending: back.see}
		w.carry()
		back.end()
	})
	both.Wait()
}

// way is one direction of a connection.
type way struct {
	link          *link
	dst, src      *net.TCPConn
	rand          *rand.Rand
	sending, sent func([]byte) // told before and after bytes are passed on
	left          int          // bytes until the next mishap
	single        int          // bytes that travel one by one
}

// carry passes bytes on until one side ends.
func (w *way) carry() {
	w.draw()
	buf := make([]byte, 16<<10)
	for {
		n, err := w.src.Read(buf)
		if !w.pass(buf[:n]) {
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = w.dst.CloseWrite()
			return
		case err != nil:
			w.reset()
			return
		}
	}
}

func (w *way) draw() { w.left = 1 + int(w.rand.ExpFloat64()*float64(w.link.mean)) }

func (w *way) reset() {
	for _, c := range []*net.TCPConn{w.dst, w.src} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// pass sends b with the mishaps that fall into it. It returns false when the way has ended.
func (w *way) pass(b []byte) bool {
	for len(b) > 0 {
		part := b
		if w.link.on.Load() {
			if w.single > 0 {
				part = b[:1]
				w.single--
			} else {
				part = b[:min(w.left, len(b))]
			}
			w.left -= len(part)
		}
		if w.sending != nil {
			w.sending(part)
		}
		if _, err := w.dst.Write(part); err != nil {
			w.reset()
			return false
		}
		if w.sent != nil {
			w.sent(part)
		}
		b = b[len(part):]
		if w.left <= 0 {
			w.draw()
			if !w.strike(mishap(w.rand.IntN(int(mishaps)))) {
				return false
			}
		}
	}
	return true
}

// strike does a mishap. It returns false when the way has ended.
func (w *way) strike(m mishap) bool {
	w.link.faults.add(w.link.name + " " + m.String())
	switch m {
	case delay:
		return w.pause(time.Duration(5+w.rand.IntN(150)) * time.Millisecond)
	case stall:
		return w.pause(chaosIdle/2 + time.Duration(w.rand.Int64N(int64(chaosIdle))))
	case split:
		w.single = 50 + w.rand.IntN(400)
		return true
	case fin:
		_ = w.dst.Close()
		_ = w.src.Close()
		return false
	case halfClose:
		_ = w.dst.CloseWrite()
		_, _ = io.Copy(io.Discard, w.src)
		return false
	case blackHole:
		w.pause(2 * chaosIdle)
	}
	w.reset()
	return false
}

// pause returns false when the link was stopped meanwhile.
func (w *way) pause(d time.Duration) bool {
	select {
	case <-w.link.closed:
		w.reset()
		return false
	case <-time.After(d):
		return true
	}
}
