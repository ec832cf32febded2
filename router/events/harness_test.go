package events

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// testLog shows the log of a test when EVENTS_LOG is set.
func testLog() *slog.Logger {
	var w io.Writer = io.Discard
	if os.Getenv("EVENTS_LOG") != "" {
		w = os.Stderr
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// inBackground runs f until the test ends and waits for it. The returned stop does so
// earlier.
func inBackground(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }() // owned by stop
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && ctx.Err() == nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("does not stop within 10 s")
		}
	})
	t.Cleanup(stop)
	return stop
}

// engine is a fake engine on real ZMQ sockets that knows the truth about its blocks.
type engine struct {
	t      *testing.T
	pub    *kvwire.Publisher
	exit   func() // ends the process
	layout kvwire.Layout
	rng    *rand.Rand
	salt   uint64 // of the engine's own hashes
	time   float64

	toks   map[kvwire.EngineHash][]uint32 // the prefix up to and with the block
	copies map[kvwire.EngineHash]int      // on the GPU
	truth  map[kv.SequenceHash]int        // the same, in our hashes
	seq    map[kvwire.EngineHash]kv.SequenceHash
	keep   []kvwire.Event // events to come out of order
}

func newEngine(t *testing.T, cfg kvwire.PublisherConfig) *engine {
	t.Helper()
	if cfg.Endpoint == "" {
		cfg.Endpoint = "tcp://127.0.0.1:0"
	}
	pub, err := kvwire.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, pub: pub, exit: inBackground(t, pub.Run), layout: kvwire.LayoutVLLM024, rng: rand.New(rand.NewPCG(1, 2))}
	e.reset()
	return e
}

const replayed = "tcp://127.0.0.1:0"

func (e *engine) reset() {
	e.salt = e.rng.Uint64()
	e.toks = make(map[kvwire.EngineHash][]uint32)
	e.copies = make(map[kvwire.EngineHash]int)
	e.truth = make(map[kv.SequenceHash]int)
	e.seq = make(map[kvwire.EngineHash]kv.SequenceHash)
	e.keep = nil
}

// hash is the engine's own hash of a prefix.
func (e *engine) hash(toks []uint32) kvwire.EngineHash {
	h := e.salt
	for _, t := range toks {
		h = (h ^ uint64(t)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return kvwire.EngineHash(h)
}

// event makes the stored event of blocks from..to of a prompt and counts it as true.
func (e *engine) event(toks []uint32, from, to int) kvwire.Event {
	var parent kvwire.EngineHash
	if from > 0 {
		parent = e.hash(toks[:from*bs])
	}
	var hashes []kvwire.EngineHash
	c := chain(base, toks)
	for i := from; i < to; i++ {
		h := e.hash(toks[:(i+1)*bs])
		e.toks[h] = toks[:(i+1)*bs]
		e.seq[h] = c[i]
		e.copies[h]++
		e.truth[c[i]]++
		hashes = append(hashes, h)
	}
	return store(parent, toks[from*bs:to*bs], hashes...)
}

// publish sends events as one batch.
func (e *engine) publish(events ...kvwire.Event) {
	e.t.Helper()
	e.publishRank(-1, events...)
}

func (e *engine) publishRank(rank int, events ...kvwire.Event) {
	e.t.Helper()
	e.time += 0.01 // no two batches of an engine have the same bytes
	e.pub.Publish(kvwire.Append(nil, e.layout, &kvwire.Batch{Time: e.time, Events: events, Rank: rank}, kvwire.EncodeOptions{}))
}

// store publishes that a whole prompt is cached, reusing what is.
func (e *engine) store(toks []uint32) []kv.SequenceHash {
	e.t.Helper()
	from := 0
	for from < len(toks)/bs && e.copies[e.hash(toks[:(from+1)*bs])] > 0 {
		from++
	}
	if from < len(toks)/bs {
		e.publish(e.event(toks, from, len(toks)/bs))
	}
	return chain(base, toks)
}

// removal makes the removed event of one copy of a block.
func (e *engine) removal(h kvwire.EngineHash) kvwire.Event {
	if e.copies[h]--; e.copies[h] == 0 {
		delete(e.copies, h)
	}
	s := e.seq[h]
	if e.truth[s]--; e.truth[s] == 0 {
		delete(e.truth, s)
	}
	ev := remove(kv.TierGPU, h)
	ev.Medium = "GPU"
	return ev
}

// evict publishes the removal of the last n blocks of a prompt.
func (e *engine) evict(toks []uint32, n int) {
	e.t.Helper()
	for i := range n {
		end := len(toks) - i*bs
		e.publish(e.removal(e.hash(toks[:end])))
	}
}

func (e *engine) clear() {
	e.t.Helper()
	clear(e.copies)
	clear(e.truth)
	e.publish(cleared())
}

// subscribed waits until a relay is subscribed: without a replay socket, what is
// published before is lost.
func (e *engine) subscribed() {
	e.t.Helper()
	eventually(e.t, 10*time.Second, "subscribed to the engine", func() bool { return e.pub.Stats().Subscribers > 0 })
}

// restart is another process of the engine.
func (e *engine) restart() {
	e.reset()
	e.pub.Restart()
}

// rig is the whole path: engine, relay, NATS, consumer, index.
type rig struct {
	t        *testing.T
	bus      *Bus
	consumer *Consumer
	index    *index.Set
	workers  *kv.Workers
	reg      *prometheus.Registry
	stop     func() // of the consumer
}

type rigConfig struct {
	bus     BusConfig
	timing  *timing
	index   index.Config
	resolve func(*Announcement) (string, bool)
	onFeed  func(FeedStatus)
	away    bool // NATS is not there yet
}

func newRig(t *testing.T, cfg rigConfig) *rig {
	t.Helper()
	r := &rig{t: t, bus: openBus(t, cfg.bus), index: index.NewSet(cfg.index), workers: new(kv.Workers), reg: prometheus.NewRegistry()}
	r.consume(cfg)
	return r
}

// consume starts the consumer.
func (r *rig) consume(cfg rigConfig) {
	r.t.Helper()
	r.consumeWith(cfg, func(*Consumer) {})
}

func (r *rig) consumeWith(cfg rigConfig, change func(*Consumer)) {
	r.t.Helper()
	if cfg.resolve == nil {
		cfg.resolve = func(a *Announcement) (string, bool) { return a.Worker, true }
	}
	var err error
	r.consumer, err = NewConsumer(ConsumerConfig{
		Local: r.bus.Local(), External: r.bus.External(), Index: r.index, Workers: r.workers,
		Resolve: cfg.resolve, OnFeed: cfg.onFeed, Logger: testLog(), Registerer: r.reg,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if cfg.timing != nil {
		r.consumer.timing = *cfg.timing
	}
	change(r.consumer)
	r.stop = inBackground(r.t, r.consumer.Run)
	if !cfg.away {
		eventually(r.t, 5*time.Second, "subscribed", func() bool { return r.counter("connected") == 1 })
	}
}

// attach announces a relay and waits until the consumer follows it.
func (r *rig) attach(h *handRelay) {
	r.t.Helper()
	h.announce(nil)
	epoch := h.s.info().Epoch
	eventually(r.t, 5*time.Second, "followed", func() bool {
		return r.status(kv.WorkerRank{ID: h.cfg.Worker}).Epoch == epoch
	})
}

// relay starts a relay of e on conn.
func (r *rig) relay(e *engine, conn *nats.Conn, change func(*RelayConfig)) (relay *Relay, stop func()) {
	r.t.Helper()
	return startRelay(r.t, e, conn, func(c *RelayConfig) {
		c.Registerer = r.reg
		if change != nil {
			change(c)
		}
	})
}

func startRelay(t *testing.T, e *engine, conn *nats.Conn, change func(*RelayConfig)) (relay *Relay, stop func()) {
	t.Helper()
	cfg := RelayConfig{Worker: "w1", URL: "http://w1:8000", RelayID: "r1", Conn: conn, Logger: testLog()}
	if e != nil {
		cfg.Events, cfg.Replay = e.pub.Addr(), e.pub.ReplayAddr()
	}
	if change != nil {
		change(&cfg)
	}
	relay, err := NewRelay(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return relay, inBackground(t, relay.Run)
}

// held returns what the index holds for a rank.
func (r *rig) held(rank kv.WorkerRank) map[kv.SequenceHash]bool {
	got := make(map[kv.SequenceHash]bool)
	w, ok := r.workers.Lookup(rank)
	if !ok {
		return got
	}
	r.index.Each(func(_ int, x *index.Exact) {
		x.Dump(w, func(e kv.Event) bool {
			if e.Tier == kv.TierGPU {
				for _, h := range e.Hashes {
					got[h] = true
				}
			}
			return true
		})
	})
	return got
}

func (r *rig) status(rank kv.WorkerRank) FeedStatus {
	for _, s := range r.consumer.Status() {
		if s.Rank == rank {
			return s
		}
	}
	return FeedStatus{State: FeedNone}
}

var w1 = kv.WorkerRank{ID: "w1"}

// equals tells whether the index holds exactly the truth.
func (r *rig) equals(rank kv.WorkerRank, truth map[kv.SequenceHash]int) bool {
	got := r.held(rank)
	if len(got) != len(truth) {
		return false
	}
	for h := range truth {
		if !got[h] {
			return false
		}
	}
	return true
}

// converges waits until the index holds the truth and the feed is in the state.
func (r *rig) converges(within time.Duration, rank kv.WorkerRank, state FeedState, truth map[kv.SequenceHash]int) {
	r.t.Helper()
	deadline := time.Now().Add(within)
	for !(r.equals(rank, truth) && r.status(rank).State == state) {
		if time.Now().After(deadline) {
			r.t.Fatalf("not within %v: %d blocks of %d in the index, feed %+v, want %s", within, len(r.held(rank)), len(truth), r.status(rank), state)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// truthOf makes a truth of chains.
func truthOf(chains ...[]kv.SequenceHash) map[kv.SequenceHash]int {
	m := make(map[kv.SequenceHash]int)
	for _, c := range chains {
		for _, h := range c {
			m[h]++
		}
	}
	return m
}

// counter returns the sum of a counter's series whose labels contain the given ones.
func (r *rig) counter(name string, labels ...string) float64 {
	r.t.Helper()
	all, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range all {
		if f.GetName() != "warmroute_events_"+name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for i := 0; i+1 < len(labels); i += 2 {
				ok := false
				for _, l := range m.GetLabel() {
					ok = ok || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				if !ok {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

// sorted returns the hashes that have copies, in an order that a seed repeats.
func (e *engine) sorted() []kvwire.EngineHash { return slices.Sorted(maps.Keys(e.copies)) }

// cycles is n, or 50 times that in a soak test.
func cycles(n int) int {
	if os.Getenv("WARMROUTE_SOAK") != "" {
		return 50 * n
	}
	return n
}

// freePorts returns the first of n consecutive free ports.
func freePorts(t *testing.T, n int) int {
	t.Helper()
next:
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		first := l.Addr().(*net.TCPAddr).Port
		l.Close()
		for i := range n {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if err != nil {
				continue next
			}
			l.Close()
		}
		return first
	}
	t.Fatal("no free ports")
	return 0
}

// announcements sends what arrives on the announcements' subject to c.
func announcements(c chan<- Announcement) nats.MsgHandler {
	return func(m *nats.Msg) {
		var a Announcement
		if decodeJSON(m.Data, &a, &a.V) == nil {
			c <- a
		}
	}
}

// await reads c until a value is right.
func await[T any](t *testing.T, c <-chan T, right func(T) bool) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	var last T
	for {
		select {
		case last = <-c:
			if right(last) {
				return
			}
		case <-deadline:
			t.Fatalf("not within 5 s; last was %+v", last)
		}
	}
}
