package kvwire

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// TestFC75_ReconnectsAndRestarts: 50 broken connections and 50 restarts of the
// publisher. After each, events are seen; the queue is bounded; nothing stays behind.
func TestFC75_ReconnectsAndRestarts(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{ReplayEndpoint: local, Topic: "t"})
	s, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
	for i := range 50 {
		publish(p, fmt.Sprintf("a%d b%d", i, i))
		cut(p)
		publish(p, fmt.Sprintf("c%d", i))
		eventually(t, fmt.Sprintf("c%d", i), func() bool { return r.heard(fmt.Sprintf("c%d", i)) })
		p.Restart()
		publish(p, fmt.Sprintf("d%d", i))
		eventually(t, fmt.Sprintf("d%d", i), func() bool { return r.heard(fmt.Sprintf("d%d", i)) })
	}
	if got := s.Stats(); got.Missed != 0 || got.Malformed != 0 || got.Connections < 50 {
		t.Errorf("stats %+v", got)
	}
	subscribed(t, p, 1)
	eventually(t, "one connection is left", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.mu.conns) == 1
	})
}

// TestFC75_PublisherProcessesComeAndGo: the socket itself is away for a while.
func TestFC75_PublisherProcessesComeAndGo(t *testing.T) {
	noGoroutineLeft(t)
	p, stop := startPublisher(t, PublisherConfig{ReplayEndpoint: local})
	cfg := PublisherConfig{Endpoint: p.Addr(), ReplayEndpoint: p.ReplayAddr()}
	_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr(), ReplayTimeout: time.Second})
	for i := range 10 {
		publish(p, fmt.Sprintf("a%d b%d", i, i))
		eventually(t, "both", func() bool { return r.heard(fmt.Sprintf("b%d", i)) })
		stop()
		eventually(t, "down", func() bool { return strings.HasSuffix(r.log(), "down") })
		p, stop = startPublisher(t, cfg)
	}
	if l := r.log(); strings.Contains(l, "continues") || strings.Contains(l, "?") {
		t.Errorf("heard %q", l)
	}
}

// TestFC75_SlowSubscriberLosesBoundedly: a subscriber that does not read costs the
// publisher neither time nor memory, and another one nothing at all.
func TestFC75_SlowSubscriberLosesBoundedly(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{Queue: 100, ReplayEndpoint: local, BufferSteps: 5000})
	c, err := dial(context.Background(), p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	w, err := openWire(context.Background(), c, zmq4.Sub, false, DefaultMaxPayload)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.send([]byte{1})
	w.flush()
	s, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
	subscribed(t, p, 2)
	payload := strings.Repeat("x", 8<<10)
	for range 4000 {
		p.Publish([]byte(payload))
	}
	publish(p, "last")
	if p.Stats().Dropped == 0 {
		t.Error("nothing was dropped for a subscriber that does not read")
	}
	eventually(t, "last", func() bool { return r.heard("last") })
	if got := s.Stats(); got.Messages != 4001 || got.Missed != 0 {
		t.Errorf("the one that reads: %+v", got)
	}
}

// TestSubscriber_HandlerMayBeSlow: what comes meanwhile is buffered up to a bound and
// then waits in the socket; nothing is lost or out of order.
func TestSubscriber_HandlerMayBeSlow(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{Queue: 5000})
	s, err := NewSubscriber(SubscriberConfig{Endpoint: p.Addr(), BufferBytes: 10 << 10})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{block: make(chan struct{})}
	run(t, func(ctx context.Context) error { return s.Run(ctx, r) })
	subscribed(t, p, 1)
	const n = 3000
	for i := range n {
		p.Publish(fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", 1<<10)))
	}
	close(r.block)
	eventually(t, "all", func() bool { return s.Stats().Messages == n })
	if got := s.Stats(); got.Missed != 0 || p.Stats().Dropped != 0 {
		t.Errorf("%+v, publisher %+v", got, p.Stats())
	}
}

// rawPeer accepts one connection after the other and gives it to f.
func rawPeer(t *testing.T, f func(c net.Conn)) string {
	l, addr, err := listen(local)
	if err != nil {
		t.Fatal(err)
	}
	run(t, func(ctx context.Context) error {
		accept(ctx, l, func(c net.Conn) {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			f(c)
			io.Copy(io.Discard, c)
			c.Close()
		})
		return nil
	})
	return addr
}

func greetingOf(typ string) []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	ready := append([]byte{5}, "READY"...)
	ready = append(append(ready, 11), "Socket-Type"...)
	ready = append(append(ready, 0, 0, 0, byte(len(typ))), typ...)
	return append(append(g, 4, byte(len(ready))), ready...)
}

// TestSubscriber_HostilePeers: what is no publisher is an error that says so. Neither
// memory nor the process is at its mercy.
func TestSubscriber_HostilePeers(t *testing.T) {
	noGoroutineLeft(t)
	f := func(name, want string, sends ...[]byte) {
		t.Run(name, func(t *testing.T) {
			addr := rawPeer(t, func(c net.Conn) {
				for _, b := range sends {
					c.Write(b)
				}
				if tc, ok := c.(*net.TCPConn); ok {
					tc.CloseWrite()
				}
			})
			_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: addr, MaxPayload: 1 << 20})
			eventually(t, "an error", func() bool { return strings.Contains(r.log(), "down") })
			r.mu.Lock()
			defer r.mu.Unlock()
			if err := r.mu.errs[0]; !strings.Contains(err.Error(), want) {
				t.Errorf("error %q, want %q", err, want)
			}
		})
	}
	pub := greetingOf("PUB")
	f("HTTP server", "handshake", []byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"+strings.Repeat(" ", 64)))
	f("nothing", "handshake")
	f("another kind of socket", "not compatible", greetingOf("PUSH"))
	f("a kind that does not exist", "malformed", greetingOf("NONSENSE"))
	f("a property that ends early", "handshake", pub[:64], []byte{4, 8, 5, 'R', 'E', 'A', 'D', 'Y', 200, 1})
	f("a frame of 2^62 bytes", "too large", pub, []byte{2, 0x40, 0, 0, 0, 0, 0, 0, 0})
	f("a frame over the limit", "frame of 2097152 bytes", pub, []byte{3, 0, 0, 0, 0, 0, 0x20, 0, 0})
	endless := make([]byte, 0, 100000)
	for range 50000 {
		endless = append(endless, 1, 0)
	}
	f("a message of endless empty frames", "too large", pub, endless)
	f("end in a frame", "closed the connection", pub, []byte{0, 9, 1})
}

// TestPublisher_PeerThatNeverGreets does not hold up others.
func TestPublisher_PeerThatNeverGreets(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{ReplayEndpoint: local})
	for _, addr := range []string{p.Addr(), p.ReplayAddr()} {
		c, err := dial(context.Background(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	publish(p, "a")
	_, r, _ := startSubscriber(t, SubscriberConfig{Endpoint: p.Addr(), Replay: p.ReplayAddr()})
	r.awaitLog(t, "connected a replayed")
}

// TestPublisher_IgnoresOddRequests as engines do, and answers the next good one.
func TestPublisher_IgnoresOddRequests(t *testing.T) {
	noGoroutineLeft(t)
	p, _ := startPublisher(t, PublisherConfig{ReplayEndpoint: local})
	publish(p, "a")
	c, err := dial(context.Background(), p.ReplayAddr())
	if err != nil {
		t.Fatal(err)
	}
	w, err := openWire(context.Background(), c, zmq4.Dealer, false, maxRequest)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	w.send([]byte("hello"))
	w.send(nil, []byte{0})
	w.send(nil, seqFrame(0))
	w.flush()
	for _, want := range []uint64{0, endOfReplay} {
		frames, err := w.recv()
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := parse(frames); !ok || m.Seq != want {
			t.Errorf("answer %x, want sequence %d", frames, want)
		}
	}
}
