package events

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

func TestFC43_HolesAreNoticed(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{})
	for i := range 7 { // sequence 0 to 6, before anyone listens
		e.store(tokens(10*i, 2))
	}
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	e.subscribed()
	e.store(tokens(100, 2)) // 7 is the first one seen: a gap
	r.converges(5*time.Second, w1, FeedPartial, truthOf(chain(base, tokens(100, 2))))
	e.pub.Skip(3) // 8 to 10, a removal among them
	e.evict(tokens(100, 2), 2)
	e.store(tokens(110, 2))
	e.store(tokens(120, 2)) // 11: another gap
	r.converges(5*time.Second, w1, FeedPartial, truthOf(chain(base, tokens(120, 2))))
	if n := r.counter("relay_lost_batches_total"); n != 10 {
		t.Fatalf("lost batches = %v, want 7 + 3", n)
	}
	eventually(t, 5*time.Second, "the reason", func() bool { return strings.Contains(r.status(w1).Reason, "were lost") })
	e.clear()
	e.store(tokens(130, 2))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)

	// With a replay socket the hole is filled and nobody notices.
	e = newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r.relay(e, r.bus.Local(), func(c *RelayConfig) { c.Worker, c.RelayID = "w2", "r2" })
	e.subscribed()
	e.store(tokens(100, 2))
	e.pub.Drop(3)
	e.evict(tokens(100, 2), 1)
	e.store(tokens(110, 2))
	e.store(tokens(120, 2))
	e.store(tokens(130, 2))
	r.converges(10*time.Second, kv.WorkerRank{ID: "w2"}, FeedComplete, e.truth)
	if n := r.counter("relay_lost_batches_total", "worker", "w2"); n != 0 {
		t.Fatalf("lost batches = %v in spite of the replay", n)
	}
}

func TestFC44_ChildBeforeParentOnTheWire(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	toks := tokens(0, 3)
	b, a, c := e.event(toks, 1, 2), e.event(toks, 0, 1), e.event(toks, 2, 3)
	e.publish(b)
	r.converges(5*time.Second, w1, FeedPartial, nil)
	e.publish(a)
	e.publish(c)
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
}

func TestFC46_ChurnLeavesNothingBehind(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow(), resolve: func(a *Announcement) (string, bool) { return a.Worker, a.URL != "" }})
	toks := tokens(0, 2000)
	cycle := func(i int) {
		id := fmt.Sprintf("w-%d", i)
		h := newHandRelay(t, r.bus.Local(), id, "r1").serve()
		h.apply(store(0, toks, seqOf(1, 2000)...)).lose()
		rank := kv.WorkerRank{ID: id}
		h.announce(nil)
		r.converges(10*time.Second, rank, FeedComplete, h.truth())
		h.announce(func(a *Announcement) { a.URL = "" }) // not ours any more
		eventually(t, 10*time.Second, "ended", func() bool { _, ok := r.workers.Lookup(rank); return !ok })
		h.announce(func(a *Announcement) { a.URL, a.Farewell = "", true })
		eventually(t, 10*time.Second, "forgotten", func() bool { return len(r.consumer.Status()) == 0 })
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for i := range 3 {
		cycle(i)
	}
	before, gathered := heap(), len(gather(t, r))
	for i := range cycles(20) {
		cycle(100 + i)
	}
	if s := r.index.Stats(); s.Memberships != 0 || r.workers.Len() != 1 {
		t.Fatalf("memberships %d, numbers %d", s.Memberships, r.workers.Len())
	}
	if after := len(gather(t, r)); after != gathered {
		t.Fatalf("metric series grew from %d to %d", gathered, after)
	}
	// The test's own subscriptions and relays stay until its end: about 400 kB each.
	if after := heap(); after > before+before/20+uint64(cycles(20))*600<<10 {
		t.Fatalf("heap grew from %d to %d", before, after)
	}
}

func gather(t *testing.T, r *rig) (series []string) {
	t.Helper()
	all, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			series = append(series, f.GetName()+m.String())
		}
	}
	return series
}

func TestFC47_ClearEndsCredit(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	e.store(tokens(0, 4))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	e.clear()
	r.converges(5*time.Second, w1, FeedComplete, nil)
}

func TestFC47_StaleHitsHeal(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	e.store(tokens(0, 4))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	// The engine sleeps: it has dropped its cache and says nothing. The first doubt
	// asks the relay, which knows no better; the second withdraws the blocks.
	r.consumer.Resync(w1, "stale_hits")
	eventually(t, 5*time.Second, "resynced", func() bool { return r.counter("resyncs_total", "reason", "stale_hits") == 1 })
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	r.consumer.Resync(w1, "stale_hits")
	eventually(t, 5*time.Second, "no credit, and why", func() bool {
		s := r.status(w1)
		return len(r.held(w1)) == 0 && s.State == FeedPartial && strings.Contains(s.Reason, "cached tokens")
	})
	e.store(tokens(50, 3)) // it wakes up: what is stored from here on is believed
	r.converges(5*time.Second, w1, FeedPartial, truthOf(chain(base, tokens(50, 3))))
	e.clear()
	e.store(tokens(60, 3))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	r.consumer.Resync(kv.WorkerRank{ID: "nobody"}, "stale_hits")
}

func TestFC49_AddressReuse(t *testing.T) {
	// Both pods resolve to the worker that owns the address.
	r := newRig(t, rigConfig{timing: fast(), resolve: func(a *Announcement) (string, bool) { return "ip", a.URL == "http://ip:8000" }})
	ip := kv.WorkerRank{ID: "ip"}
	p1, p2 := newHandRelay(t, r.bus.Local(), "pod-1", "pod-1").serve(), newHandRelay(t, r.bus.Local(), "pod-2", "pod-2").serve()
	p1.cfg.URL, p2.cfg.URL = "http://ip:8000", "http://ip:8000"
	p1.apply(store(0, tokens(0, 3), 1, 2, 3)).lose()
	stop := inBackground(t, beat(p1))
	r.converges(5*time.Second, ip, FeedComplete, p1.truth())
	stop() // pod 1 dies without a word, pod 2 takes its address with an empty cache
	inBackground(t, beat(p2))
	r.converges(5*time.Second, ip, FeedComplete, nil)
	p1.farewell() // the delayed delete of pod 1 is not pod 2's
	p1.apply(remove(kv.TierGPU, 3), store(3, tokens(9, 1), 9)).send(nil)
	p2.apply(store(0, tokens(70, 2), 1, 2)).send(nil)
	r.converges(5*time.Second, ip, FeedComplete, p2.truth())
}

func TestFC50_RanksOnOnePort(t *testing.T) {
	port := freePorts(t, 8)
	at := func(p int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", p) }
	e := newEngine(t, kvwire.PublisherConfig{Endpoint: at(port), ReplayEndpoint: at(port + 4)})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), func(c *RelayConfig) { c.Ranks = 4 })
	rank := func(i int) kv.WorkerRank { return kv.WorkerRank{ID: "w1", Rank: i} }
	truth := make([]map[kv.SequenceHash]int, 4)
	for i := range 4 {
		toks := tokens(100*i, 2+i)
		e.publishRank(i, e.event(toks, 0, 2+i))
		truth[i] = truthOf(chain(base, toks))
	}
	more := tokens(900, 2)
	e.publishRank(-1, e.event(more, 0, 2)) // the rank left out: the socket's
	truth[0] = truthOf(chain(base, tokens(0, 2)), chain(base, more))
	for i := range 4 {
		r.converges(10*time.Second, rank(i), FeedComplete, truth[i])
	}
	e.publishRank(2, cleared()) // of one rank
	truth[2] = nil
	for i := range 4 {
		r.converges(10*time.Second, rank(i), FeedComplete, truth[i])
	}
	e.publishRank(7, e.event(tokens(5000, 1), 0, 1))
	eventually(t, 5*time.Second, "a rank that is not configured is named", func() bool { return strings.Contains(r.status(rank(0)).Reason, "ranks:") })
}

func TestFC50_OneRankPerURL(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	// Behind an external balancer the engine's rank 3 is a worker of its own.
	e.publishRank(3, e.event(tokens(0, 3), 0, 3))
	r.converges(5*time.Second, w1, FeedComplete, e.truth)
	e.publishRank(1, store(0, tokens(70, 1), 70)) // one that changes its mind is not believed
	eventually(t, 5*time.Second, "named", func() bool { return strings.Contains(r.status(w1).Reason, "ranks:") })
	if !r.equals(w1, e.truth) {
		t.Fatal("blocks of another rank were credited")
	}
}

func TestFC50_RanksOnTheirPorts(t *testing.T) {
	port := freePorts(t, 4)
	at := func(p int) string { return fmt.Sprintf("tcp://127.0.0.1:%d", p) }
	e0 := newEngine(t, kvwire.PublisherConfig{Endpoint: at(port), ReplayEndpoint: at(port + 2)})
	e1 := newEngine(t, kvwire.PublisherConfig{Endpoint: at(port + 1), ReplayEndpoint: at(port + 3)})
	r := newRig(t, rigConfig{})
	r.relay(e0, r.bus.Local(), func(c *RelayConfig) { c.Ranks = 2 })
	e0.publishRank(0, e0.event(tokens(0, 3), 0, 3))
	e1.publishRank(1, e1.event(tokens(50, 2), 0, 2))
	r.converges(5*time.Second, w1, FeedComplete, e0.truth)
	r.converges(5*time.Second, kv.WorkerRank{ID: "w1", Rank: 1}, FeedComplete, e1.truth)
	e1.restart()
	r.converges(10*time.Second, kv.WorkerRank{ID: "w1", Rank: 1}, FeedComplete, nil)
	r.converges(5*time.Second, w1, FeedComplete, e0.truth)
}

func TestFC51_PageSizeOneIsRefusedLoudly(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	e.layout = kvwire.LayoutSGLang
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	ev := store(0, []uint32{7}, 7)
	ev.BlockSize = 1
	e.publish(ev)
	eventually(t, 5*time.Second, "the flag that mends it", func() bool { return strings.Contains(r.status(w1).Reason, "--page-size") })

	e = newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	relay, _ := r.relay(e, r.bus.Local(), func(c *RelayConfig) { c.Worker = "w2" })
	relay.SetInfo(WorkerInfo{BlockSize: 64}) // registered with another size: the events' wins
	e.store(tokens(0, 3))
	r.converges(5*time.Second, kv.WorkerRank{ID: "w2"}, FeedComplete, e.truth)
	if s := r.status(kv.WorkerRank{ID: "w2"}); s.BlockSize != bs {
		t.Fatalf("block size %d", s.BlockSize)
	}
	eventually(t, 5*time.Second, "counted", func() bool { return r.counter("block_size_mismatch_total", "worker", "w2") == 1 })
}

func TestFC53_TiersReachTheIndex(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	toks := tokens(0, 2)
	ev := e.event(toks, 0, 2)
	e.publish(ev)
	e.publish(kvwire.Event{Kind: kv.EventStored, Hashes: ev.Hashes, Medium: "CPU", Tier: kv.TierCPU})
	held := func() [kv.Tiers]int {
		w, ok := r.workers.Lookup(w1)
		if !ok {
			return [kv.Tiers]int{}
		}
		return r.index.Exact(bs).Held(w)
	}
	eventually(t, 5*time.Second, "on both tiers", func() bool { return held() == [kv.Tiers]int{2, 2, 0} })
	e.publish(e.removal(ev.Hashes[1]), e.removal(ev.Hashes[0]))
	eventually(t, 5*time.Second, "in host memory alone", func() bool { return held() == [kv.Tiers]int{0, 2, 0} })
	dst := make([]kv.Overlap, r.workers.Len())
	r.index.Exact(bs).Overlap(chain(base, toks), dst)
	w, _ := r.workers.Lookup(w1)
	if dst[w] != (kv.Overlap{CPU: 2}) {
		t.Fatalf("overlap = %+v", dst[w])
	}
	e.publish(kvwire.Event{Kind: kv.EventRemoved, Hashes: ev.Hashes, Medium: "CPU", Tier: kv.TierCPU})
	eventually(t, 5*time.Second, "nowhere", func() bool { return held() == [kv.Tiers]int{} })
}

func TestFC54_LoRAOverlapIsDiagonal(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r := newRig(t, rigConfig{})
	names := []string{"", "lora-a", "lora-b"}
	toks := tokens(0, 3)
	for i, name := range names { // one worker each
		e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
		ev := store(0, toks, 1, 2, 3)
		ev.LoRAName, ev.LoRAID, ev.HasLoRAID = name, int64(i), i > 0
		e.publish(ev)
		r.relay(e, r.bus.Local(), func(c *RelayConfig) { c.Worker = "w" + name })
	}
	for _, prompt := range names {
		c := chain(kv.Namespace{LoRA: prompt}, toks)
		for _, name := range names {
			want := uint32(0)
			if name == prompt {
				want = 3
			}
			var got kv.Overlap
			eventually(t, 5*time.Second, fmt.Sprintf("overlap of %q on %q is %d", prompt, name, want), func() bool {
				w, ok := r.workers.Lookup(kv.WorkerRank{ID: "w" + name})
				if !ok || r.status(kv.WorkerRank{ID: "w" + name}).Blocks != 3 {
					return false
				}
				dst := make([]kv.Overlap, r.workers.Len())
				r.index.Exact(bs).Overlap(c, dst)
				got = dst[w]
				return got.GPU == want
			})
		}
	}
	_ = e
}

func TestFC58_EngineHashSeedsDiffer(t *testing.T) {
	r := newRig(t, rigConfig{})
	toks := tokens(0, 4)
	for _, id := range []string{"w1", "w2"} {
		e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
		e.salt = uint64(len(id)) * e.rng.Uint64()
		if id == "w2" {
			e.salt++
		}
		e.store(toks)
		r.relay(e, r.bus.Local(), func(c *RelayConfig) { c.Worker = id })
		r.converges(5*time.Second, kv.WorkerRank{ID: id}, FeedComplete, e.truth)
	}
	dst := make([]kv.Overlap, r.workers.Len())
	r.index.Exact(bs).Overlap(chain(base, toks), dst)
	for w, o := range dst {
		if o.GPU != 4 {
			t.Fatalf("worker %d: overlap %+v", w, o)
		}
	}
}

func TestFC59_MalformedStoreOnTheWire(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r := newRig(t, rigConfig{})
	r.relay(e, r.bus.Local(), nil)
	e.store(tokens(0, 3))
	e.publish(store(7, tokens(60, 3), 7, 8, 7), e.event(tokens(70, 1), 0, 1))
	r.converges(time.Second*5, w1, FeedComplete, e.truth)
	if n := r.counter("relay_refused_total"); n != 1 {
		t.Fatalf("refused = %v", n)
	}
}

func TestFC72_SlowConsumer(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	release := make(chan struct{})
	var stalled atomic.Bool
	r.stop()
	r.consumeWith(rigConfig{timing: slow()}, func(c *Consumer) {
		c.beforeApply = func(kv.WorkerRank) {
			if stalled.Load() {
				<-release
			}
		}
	})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	r.attach(a)
	stalled.Store(true)
	step := func(events ...kvwire.Event) {
		a.apply(events...)
		a.send(nil)
	}
	for i := range 100 {
		step(store(0, tokens(300*i, 300), seqOf(1+300*i, 300)...))
	}
	for i := range 50_000 { // small ones, some of which come too often for the queue
		h := kvwire.EngineHash(1_000_000 + i%100)
		step(store(0, tokens(1_000_000+i%100, 1), h))
		step(remove(kv.TierGPU, h))
	}
	for i := range 100 {
		step(remove(kv.TierGPU, seqOf(1+300*i+200, 100)...))
	}
	if err := a.conn.Flush(); err != nil {
		t.Fatal(err)
	}
	close(release)
	a.announce(nil)
	r.converges(10*time.Second, w1, FeedComplete, a.truth())
	if r.counter("dropped_total", "reason", "overflow") == 0 || r.counter("resyncs_total", "reason", "overflow") == 0 {
		t.Fatalf("dropped %v, resyncs %v", r.counter("dropped_total"), r.counter("resyncs_total"))
	}
}

func TestFC74_EventsOfAnySize(t *testing.T) {
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	r := newRig(t, rigConfig{})
	var largest atomic.Int64
	for _, subject := range []string{"warmroute.v1.>", "_INBOX.>"} {
		_, err := r.bus.Local().Subscribe(subject, func(m *nats.Msg) {
			if n := int64(len(m.Data)); n > largest.Load() { // callbacks of one subscription come in turn
				largest.Store(n)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, stop := r.relay(e, r.bus.Local(), nil)
	batch := make([]kvwire.Event, 6)
	var chains [][]kv.SequenceHash
	for i := range batch { // 220,000 tokens each: more than 1 MB of token ids in one batch
		toks := tokens(20_000*i, 220_000/bs)
		batch[i] = store(0, toks, seqOf(1+20_000*i, 220_000/bs)...)
		chains = append(chains, chain(base, toks))
	}
	truth := truthOf(chains...)
	e.publish(batch...)
	r.converges(10*time.Second, w1, FeedComplete, truth)
	stop()
	// And as a state in chunks, to a consumer that comes later.
	r.stop()
	r.relay(e, r.bus.Local(), nil)
	r.consume(rigConfig{})
	r.converges(10*time.Second, w1, FeedComplete, truth)
	if n := r.counter("relay_unpublished_total"); n != 0 {
		t.Fatalf("%v messages could not be published", n)
	}
	if n := largest.Load(); n > maxMessage || n < maxMessage/2 {
		t.Fatalf("largest message has %d bytes", n)
	}
}

func TestNATSComesLate(t *testing.T) {
	port := freePorts(t, 1)
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	e.store(tokens(0, 5))
	relaySide := openBus(t, BusConfig{URL: "nats://" + addr})
	r := newRig(t, rigConfig{bus: BusConfig{URL: "nats://" + addr}, away: true})
	r.relay(e, relaySide.External(), nil)
	e.store(tokens(40, 3))
	natsServer(t, addr, nil)
	r.converges(10*time.Second, w1, FeedComplete, e.truth)
}

func TestNATSAway_IndexEqualsTruthSoonAfter(t *testing.T) {
	s := natsServer(t, "127.0.0.1:0", nil)
	addr := s.Addr().String()
	e := newEngine(t, kvwire.PublisherConfig{ReplayEndpoint: replayed})
	relaySide := openBus(t, BusConfig{URL: "nats://" + addr})
	r := newRig(t, rigConfig{bus: BusConfig{URL: "nats://" + addr}})
	r.relay(e, relaySide.External(), nil)
	for i := range 20 {
		e.store(tokens(100*i, 10))
	}
	r.converges(5*time.Second, w1, FeedComplete, e.truth)

	s.Shutdown()
	s.WaitForShutdown()
	eventually(t, 5*time.Second, "noticed", func() bool { return !r.bus.Connected() && r.counter("connected") == 0 })
	away := time.NewTimer(2 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ { // load goes on, removals included
		select {
		case <-tick.C:
			e.store(tokens(10_000+100*i, 5))
			if i < 20 {
				e.evict(tokens(100*i, 10), 7)
			}
			continue
		case <-away.C:
		}
		break
	}
	if st := r.status(w1); st.State != FeedComplete || len(r.held(w1)) != 200 {
		t.Fatalf("while NATS is away the last state holds: %+v, %d blocks", st, len(r.held(w1)))
	}
	natsServer(t, addr, func(*server.Options) {})
	r.converges(3*time.Second, w1, FeedComplete, e.truth)
	if n := r.counter("resyncs_total", "reason", "reconnect"); n == 0 {
		t.Fatal("no resync after the reconnect")
	}
}
