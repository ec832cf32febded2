package events

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// hub carries messages between proxies in a bubble, 1 ms late, in order.
type hub struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	nodes []*proxyNode
	loss  float64 // share of the copies of messages
	rng   *rand.Rand
}

// proxyNode is one proxy: a router and its exchange of bookings.
type proxyNode struct {
	hub     *hub
	router  *router.Router
	peers   *Peers
	warm    *warmBook
	queue   chan *nats.Msg
	changes chan nats.Status
	up      atomic.Bool
	cut     atomic.Bool // it is dead: nothing leaves or reaches it
	stop    context.CancelFunc
	shares  chan float64 // told to the router
	reg     *prometheus.Registry
}

func newHub(t *testing.T) *hub {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return &hub{t: t, ctx: ctx, rng: rand.New(rand.NewPCG(3, 4))}
}

func (h *hub) lose(share float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loss = share
}

// publish sends a message of n to every proxy, itself too.
func (h *hub) publish(n *proxyNode, subject string, data []byte) error {
	if !n.up.Load() || n.cut.Load() {
		return errors.New("not connected")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.nodes {
		if !o.cut.Load() && (o == n || h.rng.Float64() >= h.loss) {
			o.queue <- &nats.Msg{Subject: subject, Data: data}
		}
	}
	return nil
}

// Alone notes what the router is told.
func (n *proxyNode) Alone(share float64) {
	n.shares <- share
	n.router.Alone(share)
}

func (n *proxyNode) Bookings(dst []kv.Booking, all bool) []kv.Booking {
	return n.router.Bookings(dst, all)
}
func (n *proxyNode) Book(peer string, b []kv.Booking, all bool) int {
	return n.router.Book(peer, b, all)
}

// join starts a proxy over four workers. Its goroutines end with the bubble's context.
func (h *hub) join(id string) *proxyNode {
	n := &proxyNode{hub: h, warm: &warmBook{}, queue: make(chan *nats.Msg, 4096), changes: make(chan nats.Status), shares: make(chan float64, 8), reg: prometheus.NewRegistry()}
	n.up.Store(true)
	n.router = router.New(router.Config{Index: index.NewSet(index.Config{}), Workers: &kv.Workers{}, Seed: 1, OnBooking: func() { n.peers.Wake() }})
	var specs []router.WorkerSpec
	for i := range 4 {
		specs = append(specs, router.WorkerSpec{ID: "w" + strconv.Itoa(i), Models: []router.ModelSpec{{Name: "m"}}, BlockSize: 16, CapacityTokens: 400_000})
	}
	n.router.SetWorkers(specs)
	var err error
	n.peers, err = newPeers(PeersConfig{Proxy: id, Load: n, Warmups: n.warm, Registerer: n.reg}, peerLink{
		publish: func(subject string, data []byte) error { return h.publish(n, subject, data) },
		up:      n.up.Load,
		payload: func() int64 { return 1 << 20 },
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	h.nodes = append(h.nodes, n)
	h.mu.Unlock()
	ctx, stop := context.WithCancel(h.ctx)
	n.stop = stop
	go n.peers.run(ctx, n.changes, func() {}) // owned by the bubble
	go func() {                               // owned by the bubble
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-n.queue:
				time.Sleep(time.Millisecond)
				select {
				case n.peers.in <- m:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return n
}

// link brings a node's connection up or down.
func (n *proxyNode) link(up bool) {
	n.up.Store(up)
	n.changes <- nats.CONNECTED
}

// route books a request of so many own tokens.
func (n *proxyNode) route(tokens int) *router.Lease {
	n.hub.t.Helper()
	p := &kv.Prompt{Source: kv.SourceLocal, TokenCount: tokens}
	for range tokens {
		p.Tokens = append(p.Tokens, rand.Uint32())
	}
	l, err := n.router.Route(n.hub.ctx, &router.Request{Model: "m", PinRank: -1, Stream: true, Prompt: p})
	if err != nil {
		n.hub.t.Fatal(err)
	}
	return l
}

// load is what a node's router counts on all workers.
type load struct{ inflight, peers, backlog, kv, held int }

func (n *proxyNode) load() (sum load) {
	for _, s := range n.router.Status() {
		sum.inflight += s.Inflight
		if s.Peers != nil {
			sum.inflight += s.Peers.Inflight
			sum.peers += s.Peers.Inflight
		}
		sum.backlog += s.BacklogTokens
		sum.kv += s.KVTokens
		sum.held += s.HeldTokens
	}
	return sum
}

// differ says where two nodes see different loads of a worker; "" for nowhere. Which
// booking is the oldest, and since when it drains, is each one's own view.
func differ(a, b *proxyNode) string {
	as, bs := a.router.Status(), b.router.Status()
	for i := range as {
		x, y := as[i], bs[i]
		var xp, yp router.PeerLoad
		if x.Peers != nil {
			xp = *x.Peers
		}
		if y.Peers != nil {
			yp = *y.Peers
		}
		switch {
		case x.Inflight != yp.Inflight || y.Inflight != xp.Inflight:
			return fmt.Sprintf("%s: %d + %d in flight against %d + %d", x.Worker, x.Inflight, xp.Inflight, y.Inflight, yp.Inflight)
		case x.Running != yp.Running || y.Running != xp.Running:
			return fmt.Sprintf("%s: %d + %d running against %d + %d", x.Worker, x.Running, xp.Running, y.Running, yp.Running)
		case math.Abs(float64(x.BacklogTokens-y.BacklogTokens)) > drained:
			return fmt.Sprintf("%s: backlog of %d tokens against %d", x.Worker, x.BacklogTokens, y.BacklogTokens)
		case x.KVTokens != y.KVTokens || x.HeldTokens != y.HeldTokens:
			return fmt.Sprintf("%s: %d KV tokens, %d held against %d, %d", x.Worker, x.KVTokens, x.HeldTokens, y.KVTokens, y.HeldTokens)
		}
	}
	return ""
}

const (
	largest = 3200           // tokens of a request of traffic
	drained = 0.95 * largest // what time alone takes of the oldest
)

// request is one in flight.
type request struct {
	*router.Lease
	of      *proxyNode
	waiting int // tokens before its first token
}

// traffic lets requests come, move on and end on every node for a while; those that
// are returned are in flight.
func (h *hub) traffic(rng *rand.Rand, steps int) (open []request) {
	for range steps {
		switch i := rng.IntN(4); {
		case i < 2 || len(open) == 0:
			n, tokens := h.nodes[rng.IntN(len(h.nodes))], 1+rng.IntN(largest)
			open = append(open, request{n.route(tokens), n, tokens})
		case i == 2:
			q := &open[rng.IntN(len(open))]
			q.FirstToken()
			q.Progress(1 + rng.IntN(50))
			q.waiting = 0
		default:
			j := rng.IntN(len(open))
			open[j].Done(router.Outcome{OK: true, CachedTokens: -1, PromptTokens: -1, OutputTokens: -1})
			open[j] = open[len(open)-1]
			open = open[:len(open)-1]
		}
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
	}
	return open
}

// peerBacklog checks that a node counts just the tokens that wait on the others.
func (n *proxyNode) peerBacklog(open []request) {
	n.hub.t.Helper()
	want, got := 0, 0
	for _, q := range open {
		if q.of != n {
			want += q.waiting
		}
	}
	for _, s := range n.router.Status() {
		if s.Peers != nil {
			got += s.Peers.BacklogTokens
		}
	}
	if got != want || want == 0 {
		n.hub.t.Errorf("%s counts a backlog of %d tokens of its peers, want %d", n.peers.cfg.Proxy, got, want)
	}
}

// Two proxies see one load, whatever is lost on the way: at most 2 s later, with the
// next full state.
func TestPeers_ConvergeOverAnyLink(t *testing.T) {
	for _, loss := range []float64{0, 0.3, 0.9} {
		t.Run(fmt.Sprintf("loss=%v", loss), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub(t)
				rng := rand.New(rand.NewPCG(1, 2))
				a, b := h.join("a"), h.join("b")
				time.Sleep(time.Second)
				h.lose(loss)
				open := h.traffic(rng, 400)
				if len(open) < 20 || a.load().inflight == a.load().peers {
					t.Fatalf("%d in flight: too little to compare", len(open))
				}
				if loss == 0 {
					// Progress travels with full states, all else at once.
					time.Sleep(10 * time.Millisecond)
					if x, y := a.load(), b.load(); x.inflight != len(open) || y.inflight != len(open) {
						t.Errorf("after 10 ms a sees %+v, b %+v; %d in flight", x, y, len(open))
					}
				}
				h.lose(0)
				time.Sleep(stateEvery + 10*time.Millisecond)
				if d := differ(a, b); d != "" {
					t.Errorf("2 s after the last loss: %s", d)
				}
				for _, n := range h.nodes {
					n.peerBacklog(open)
				}
				lost := testutil.ToFloat64(a.peers.metrics.lost) + testutil.ToFloat64(b.peers.metrics.lost)
				if lost > 0 != (loss > 0) {
					t.Errorf("%v messages count as lost at a loss of %v", lost, loss)
				}
				for _, l := range open {
					l.Done(router.Outcome{CachedTokens: -1})
				}
				time.Sleep(10 * time.Millisecond)
				if x, y := a.load(), b.load(); x != (load{}) || y != (load{}) {
					t.Errorf("when all is done a sees %+v, b %+v", x, y)
				}
				h.stop()
			})
		})
	}
}

// stop ends every proxy and waits.
func (h *hub) stop() {
	for _, n := range h.nodes {
		n.stop()
	}
	time.Sleep(2 * time.Millisecond)
}

func TestPeers_SilenceDropsBookings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		a, b := h.join("a"), h.join("b")
		time.Sleep(time.Second)
		for range 5 {
			a.route(1000)
		}
		time.Sleep(10 * time.Millisecond)
		a.cut.Store(true) // it dies and says nothing
		if got := b.load(); got.peers != 5 || len(b.peers.Status()) != 1 {
			t.Fatalf("b sees %+v, %v", got, b.peers.Status())
		}
		time.Sleep(silentPeer - checkEvery - 2*time.Second)
		if got := b.load(); got.peers != 5 {
			t.Errorf("dropped early: %+v", got)
		}
		time.Sleep(2*time.Second + 2*checkEvery)
		if got := b.load(); got != (load{}) || len(b.peers.Status()) != 0 {
			t.Errorf("after 6 s b still sees %+v, %v", got, b.peers.Status())
		}
		h.stop()
	})
}

// A restart of a proxy drops what it had booked before, at once; its end does too.
func TestPeers_RestartAndFarewell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		a, b := h.join("a"), h.join("b")
		time.Sleep(time.Second)
		for range 5 {
			a.route(1000)
		}
		time.Sleep(10 * time.Millisecond)
		old := &nats.Msg{Subject: a.peers.subject, Data: appendHeader(nil, kindChanges, "a", a.peers.incarnation, 99, 0, 0)}
		a.cut.Store(true)
		again := h.join("a")
		time.Sleep(10 * time.Millisecond)
		if got := b.load(); got != (load{}) {
			t.Errorf("b sees %+v of a proxy that has restarted", got)
		}
		b.queue <- old // late, of the incarnation before
		again.route(2000)
		time.Sleep(2 * checkEvery) // until it has heard of b, and told it all
		if got := b.load(); got.peers != 1 || got.kv != 2000 {
			t.Errorf("b sees %+v, want one request of 2,000 tokens", got)
		}
		if n := testutil.ToFloat64(b.peers.metrics.dropped.WithLabelValues("old")); n != 1 {
			t.Errorf("%v messages of an old incarnation, want 1", n)
		}
		again.stop()
		time.Sleep(10 * time.Millisecond)
		if got := b.load(); got != (load{}) {
			t.Errorf("b sees %+v of a proxy that has said farewell", got)
		}
		h.stop()
	})
}

// Without NATS a proxy hears nobody: its own bookings stand for those of all, by its
// share of the traffic of the last minute.
func TestPeers_AloneByShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		a, b := h.join("a"), h.join("b")
		time.Sleep(time.Second)
		for range 3 {
			a.route(1000)
		}
		b.route(1000)
		time.Sleep(20 * time.Second)
		a.link(false)
		synctest.Wait()
		share := <-a.shares
		if math.Abs(share-0.75) > 0.05 {
			t.Fatalf("share %v, want about 0.75", share)
		}
		if got := a.load(); got.peers != 0 {
			t.Errorf("a still sees %+v of peers", got)
		}
		d, err := a.router.Preview(&router.Request{Model: "m", PinRank: -1, Prompt: &kv.Prompt{}})
		if err != nil {
			t.Fatal(err)
		}
		own, counted := a.load(), 0
		for _, c := range d.Candidates {
			counted += c.KVTokens
		}
		if want := float64(own.kv) / share; math.Abs(float64(counted)-want) > 4 {
			t.Errorf("alone with %d KV tokens at a share of %.2f, %d count, want %.0f", own.kv, share, counted, want)
		}
		a.link(true)
		time.Sleep(stateEvery + 10*time.Millisecond)
		if share := <-a.shares; share != 1 || len(a.shares) > 0 {
			t.Errorf("share %v, want 1 at the end", share)
		}
		if d := differ(a, b); d != "" {
			t.Errorf("2 s after NATS is back: %s", d)
		}
		h.stop()
	})
}

// What a forger or a broken peer sends is refused and counted, and hurts nobody.
func TestPeers_HostileMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t)
		b := h.join("b")
		book := func(proxy string, incarnation, seq uint64, tail ...kv.Booking) []byte {
			m, _ := appendBookings(appendHeader(nil, kindChanges, proxy, incarnation, seq, 0, 0), tail, maxMessage)
			return m
		}
		one := kv.Booking{Lease: 1, Rank: kv.WorkerRank{ID: "w0"}, Uncached: 10, KV: 100}
		unknown := one
		unknown.Rank.ID = "elsewhere"
		good := book("a", 5, 1, one)
		f := func(subject string, data []byte, reason string) {
			t.Helper()
			count := b.peers.metrics.unknownVersion
			switch reason {
			case "version":
			case "refused":
				count = b.peers.metrics.refused
			default:
				count = b.peers.metrics.dropped.WithLabelValues(reason)
			}
			before := testutil.ToFloat64(count)
			b.queue <- &nats.Msg{Subject: "warmroute.v1.default.load." + subject, Data: data}
			time.Sleep(5 * time.Millisecond)
			if got := testutil.ToFloat64(count) - before; got != 1 {
				t.Errorf("%q % x: counted %v times as %s", subject, data, got, reason)
			}
		}
		f("a", append([]byte{2}, good[1:]...), "version")
		f("a", nil, "malformed")
		f("a", good[:10], "malformed")
		f("a", good[:len(good)-1], "malformed")
		f("a", append([]byte{1, kindDelta}, good[2:]...), "malformed")
		f("a", book("a", 0, 1, one), "malformed")
		f("a", book("a", 1, 0, one), "malformed")
		f("a", append(book("a", 1, 1), 0, 0), "malformed")                                                     // no lease
		f("a", append(book("a", 1, 1), 1, 3), "malformed")                                                     // no phase
		f("a", append(book("a", 1, 1), 1, 0, 7), "malformed")                                                  // a rank that has no name
		f("a", append(book("a", 1, 1), 1, 0, 0, 255, 255, 255, 255, 15), "malformed")                          // a name of 4 GiB
		f("a", append(book("a", 1, 1), 1, 1, 0, 1, 'w', 0, 255, 255, 255, 255, 255, 255, 255, 1), "malformed") // tokens
		f("a", append(book("a", 1, 1), 1, 1|9<<marksShift, 0, 1, 'w', 0, 1), "malformed")                      // nine marks
		f("a", appendChunk(appendHeader(nil, kindLoad, "a", 1, 1, 0, 0), chunk{1, 3, 2}), "malformed")
		f("b", good, "forged")
		f("a.x", good, "forged")
		f("a", book("a", 1, 1, unknown), "refused")
		if got := b.load(); got != (load{}) {
			t.Errorf("b counts %+v", got)
		}
		many := make([]kv.Booking, maxBookings+1)
		for i := range many {
			many[i] = kv.Booking{Lease: uint64(i) + 1, Phase: kv.PhaseDone}
		}
		f("a", book("a", 1, 2, many...), "malformed")
		for i := range maxPeers - 1 {
			id := "p" + strconv.Itoa(i)
			b.queue <- &nats.Msg{Subject: "warmroute.v1.default.load." + id, Data: book(id, 1, 1)}
		}
		time.Sleep(time.Second)
		f("z", book("z", 1, 1, one), "full")
		h.stop()
	})
}

// Over a real server: two proxies find each other, and a farewell ends it.
func TestPeers_OverNATS(t *testing.T) {
	s := natsServer(t, "127.0.0.1:0", nil)
	start := func(id string) (*router.Router, *Peers, func()) {
		nc, err := nats.Connect(s.ClientURL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		var p *Peers
		rt := router.New(router.Config{Index: index.NewSet(index.Config{}), Workers: &kv.Workers{}, OnBooking: func() { p.Wake() }})
		rt.SetWorkers([]router.WorkerSpec{{ID: "w", Models: []router.ModelSpec{{Name: "m"}}}})
		p, err = NewPeers(PeersConfig{Conn: nc, Proxy: id, Load: rt})
		if err != nil {
			t.Fatal(err)
		}
		return rt, p, inBackground(t, p.Run)
	}
	a, ap, stopA := start("host-1:8000")
	b, bp, _ := start("host-2:8000")
	eventually(t, 10*time.Second, "the proxies hear each other", func() bool { return len(ap.Status()) == 1 && len(bp.Status()) == 1 })
	for range 3 {
		if _, err := a.Route(t.Context(), &router.Request{Model: "m", PinRank: -1}); err != nil {
			t.Fatal(err)
		}
	}
	peers := func() int {
		if p := b.Status()[0].Peers; p != nil {
			return p.Inflight
		}
		return 0
	}
	eventually(t, 10*time.Second, "three bookings", func() bool { return peers() == 3 })
	stopA()
	eventually(t, 10*time.Second, "the farewell", func() bool { return peers() == 0 })
}
