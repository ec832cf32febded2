package events

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// handRelay is a relay's state whose messages the test sends, or loses, by hand.
type handRelay struct {
	t     *testing.T
	conn  *nats.Conn
	cfg   RelayConfig
	subj  subjects
	s     *stream
	calls atomic.Int32 // state requests
	// reply changes an answer; nil sends it as it is.
	reply atomic.Pointer[func(msgs [][]byte) [][]byte]
}

func newHandRelay(t *testing.T, conn *nats.Conn, worker, id string) *handRelay {
	t.Helper()
	h := &handRelay{t: t, conn: conn, cfg: RelayConfig{Worker: worker, URL: "http://" + worker + ":8000", RelayID: id}}
	var err error
	if h.subj, err = newSubjects("", ""); err != nil {
		t.Fatal(err)
	}
	h.s = newStream(&h.cfg, 0, testLog(), newRelayMetrics(nil).rank(worker, 0), make(chan struct{}, 1))
	h.s.mu.link, h.s.mu.lack = "", lackNothing
	return h
}

// serve answers state requests.
func (h *handRelay) serve() *handRelay {
	h.t.Helper()
	sub, err := h.conn.Subscribe(h.subj.states(h.cfg.Worker), func(m *nats.Msg) {
		var q stateRequest
		if err := decodeJSON(m.Data, &q, &q.V); err != nil || q.Relay != h.cfg.RelayID {
			return
		}
		h.calls.Add(1)
		msgs := h.s.answer(q)
		if f := h.reply.Load(); f != nil {
			msgs = (*f)(msgs)
		}
		h.s.send(h.conn, m.Reply, msgs)
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { sub.Unsubscribe() })
	return h
}

func (h *handRelay) change(f func(msgs [][]byte) [][]byte) { h.reply.Store(&f) }

func (h *handRelay) apply(events ...kvwire.Event) *handRelay {
	h.s.apply(&kvwire.Batch{Events: events}, kvwire.Message{Payload: []byte{1}})
	return h
}

// send publishes the deltas that were not sent yet, changed by f if there is one.
func (h *handRelay) send(f func(msgs [][]byte) [][]byte) {
	h.t.Helper()
	msgs := h.s.unsent(nil)
	if f != nil {
		msgs = f(msgs)
	}
	for _, m := range msgs {
		if err := h.conn.Publish(h.subj.deltas(h.cfg.Worker, 0), m); err != nil {
			h.t.Fatal(err)
		}
	}
}

func (h *handRelay) lose() { h.s.unsent(nil) }

func (h *handRelay) announce(change func(*Announcement)) {
	h.t.Helper()
	a := Announcement{V: Version, Worker: h.cfg.Worker, URL: h.cfg.URL, Relay: h.cfg.RelayID, Ranks: []RankInfo{h.s.info()}}
	if change != nil {
		change(&a)
	}
	msg, err := json.Marshal(a)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.conn.Publish(h.subj.workers(), msg); err != nil {
		h.t.Fatal(err)
	}
}

func (h *handRelay) farewell() { h.announce(func(a *Announcement) { a.Farewell = true }) }

func (h *handRelay) restart() {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.mu.tr.Clear()
	h.s.newEpochLocked()
}

// truth is what the relay holds.
func (h *handRelay) truth() map[kv.SequenceHash]int {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	m := make(map[kv.SequenceHash]int)
	for _, e := range h.s.mu.tr.Snapshot() {
		for _, s := range e.Hashes {
			m[s]++
		}
	}
	return m
}

// fast are clocks for tests that wait for them.
func fast() *timing {
	return &timing{
		gap: 20 * time.Millisecond, stale: 300 * time.Millisecond, gone: 700 * time.Millisecond, chunk: 100 * time.Millisecond,
		check: 10 * time.Millisecond, capacity: 100 * time.Millisecond, distrust: time.Minute,
	}
}

// slow are clocks that never strike in a test.
func slow() *timing {
	return &timing{gap: 20 * time.Millisecond, stale: time.Hour, gone: time.Hour, chunk: time.Hour, check: 10 * time.Millisecond, capacity: time.Hour, distrust: time.Hour}
}

func TestConsumer_StartsFromEmptyAndFromState(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	a.announce(nil) // empty: nothing to ask for
	r.converges(5*time.Second, w1, FeedComplete, nil)
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	if n := a.calls.Load(); n != 0 {
		t.Fatalf("%d requests for an empty state", n)
	}
	b := newHandRelay(t, r.bus.Local(), "w2", "r2").serve()
	b.apply(store(0, tokens(0, 3), 1, 2, 3)).lose()
	b.announce(nil)
	r.converges(5*time.Second, kv.WorkerRank{ID: "w2"}, FeedComplete, b.truth())
	if n := b.calls.Load(); n != 1 {
		t.Fatalf("%d requests, want 1", n)
	}
}

func TestConsumer_GapIsReplayed(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	r.attach(a)
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	a.apply(remove(kv.TierGPU, 3)).apply(store(2, tokens(8, 1), 8)).lose()
	a.apply(store(8, tokens(9, 1), 9)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	if r.counter("gaps_total") != 1 || r.counter("resyncs_total", "reason", "gap") != 1 || a.s.mu.snapshot.msgs != nil {
		t.Fatalf("gaps %v, resyncs %v", r.counter("gaps_total"), r.counter("resyncs_total"))
	}
	// The same delta twice changes nothing.
	a.apply(remove(kv.TierGPU, 9)).send(func(m [][]byte) [][]byte { return append(m, m...) })
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	eventually(t, 5*time.Second, "the second one counted", func() bool { return r.counter("dropped_total", "reason", "duplicate") == 1 })
}

func TestConsumer_LostTailIsNoticed(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	r.attach(a)
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	a.apply(remove(kv.TierGPU, 3)).lose()
	a.announce(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	if r.counter("resyncs_total", "reason", "tail") != 1 {
		t.Fatal("the tail's loss was not the reason")
	}
}

func TestConsumer_RemovalsDoNotWaitForTheState(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1")
	r.attach(a)
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	c := chain(base, tokens(0, 3))
	a.apply(store(0, tokens(5, 1), 5)).lose()
	a.apply(remove(kv.TierGPU, 3), store(0, tokens(6, 1), 6)).send(nil)
	r.converges(5*time.Second, w1, FeedResyncing, truthOf(c[:2])) // nobody answers
	a.serve()
	a.announce(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
}

func TestConsumer_MissingChunkIsAskedAgain(t *testing.T) {
	r := newRig(t, rigConfig{timing: fast()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	a.s.limit = 4096 // many chunks
	for i := range 40 {
		a.apply(store(0, tokens(100*i, 50), seqOf(50*i+1, 50)...))
	}
	a.lose()
	lost := 0
	a.change(func(msgs [][]byte) [][]byte {
		if lost++; lost < 3 && len(msgs) > 2 {
			return slices.Delete(slices.Clone(msgs), 1, 2)
		}
		return msgs
	})
	a.announce(nil)
	live := inBackground(t, beat(a))
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	live()
	if a.calls.Load() < 3 {
		t.Fatalf("%d requests", a.calls.Load())
	}
	// Refusals and rubbish are no state.
	bad := 0
	a.change(func(msgs [][]byte) [][]byte {
		switch bad++; bad {
		case 1:
			return [][]byte{a.s.refuse("too large")}
		case 2:
			m := slices.Clone(msgs[0])
			return [][]byte{m[:len(m)-3]}
		case 3:
			return [][]byte{{Version, 99}, {Version + 1, 1, 0}}
		}
		return msgs
	})
	a.apply(store(0, tokens(9000, 3), 90001, 90002, 90003)).lose()
	inBackground(t, beat(a))
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
}

func seqOf(from, n int) []kvwire.EngineHash {
	out := make([]kvwire.EngineHash, n)
	for i := range out {
		out[i] = kvwire.EngineHash(from + i)
	}
	return out
}

// beat announces like a real relay, faster.
func beat(relays ...*handRelay) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, h := range relays {
				h.announce(nil)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}
}

func TestConsumer_EpochSwitchesAtOnce(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	r.attach(a)
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	a.apply(store(0, tokens(20, 1), 20))
	late := a.s.unsent(nil)
	a.restart()
	a.apply(store(0, tokens(7, 2), 1, 2)).send(func(m [][]byte) [][]byte { return append(m, late...) })
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	eventually(t, 5*time.Second, "the old epoch's delta dropped", func() bool {
		return r.counter("dropped_total", "reason", "old_epoch") == 1
	})
	if r.counter("incarnations_total", "worker", "w1") != 1 || a.calls.Load() != 0 {
		t.Fatalf("incarnations %v, requests %d", r.counter("incarnations_total"), a.calls.Load())
	}
	// An announcement that comes late does not bring an old epoch back.
	a.announce(func(a *Announcement) { a.Ranks[0].Epoch, a.Ranks[0].LastSeq = formatEpoch(7), 0 })
	// Its first delta is missed: the state is fetched.
	a.restart()
	a.apply(store(0, tokens(30, 2), 1, 2)).lose()
	a.apply(remove(kv.TierGPU, 2)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	if a.calls.Load() != 1 {
		t.Fatalf("requests %d, want 1", a.calls.Load())
	}
}

func TestConsumer_FollowsALowerEpochAfterSilence(t *testing.T) {
	r := newRig(t, rigConfig{timing: fast()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).lose()
	stop := inBackground(t, beat(a))
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	a.change(func([][]byte) [][]byte { return nil })
	stop() // the relay comes back on a machine whose clock is a day behind
	b := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	b.s.mu.epoch -= 24 * 3600 * 1000 << 20
	b.apply(store(0, tokens(40, 2), 1, 2)).lose()
	inBackground(t, beat(b))
	r.converges(5*time.Second, w1, FeedComplete, b.truth())
}

func TestConsumer_FollowsOneRelayOfAWorker(t *testing.T) {
	r := newRig(t, rigConfig{timing: fast()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	b := newHandRelay(t, r.bus.Local(), "w1", "r2").serve()
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).lose()
	b.apply(store(0, tokens(40, 2), 1, 2)).lose()
	stopA := inBackground(t, beat(a))
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	stopB := inBackground(t, beat(b))
	b.apply(store(2, tokens(50, 1), 3)).send(nil)
	eventually(t, 5*time.Second, "the other relay's deltas dropped", func() bool {
		return r.counter("dropped_total", "reason", "other_relay") > 3
	})
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	stopA()
	a.farewell() // then r2 takes over at once
	r.converges(5*time.Second, w1, FeedComplete, b.truth())
	stopB() // and after silence r1
	inBackground(t, beat(a))
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
}

func TestConsumer_SilenceIsStaleThenGone(t *testing.T) {
	var mu sync.Mutex
	var states []FeedState
	r := newRig(t, rigConfig{timing: fast(), onFeed: func(s FeedStatus) {
		mu.Lock()
		defer mu.Unlock()
		if n := len(states); n == 0 || states[n-1] != s.State {
			states = append(states, s.State)
		}
	}})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).lose()
	a.announce(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	r.converges(5*time.Second, w1, FeedStale, a.truth())
	if s := r.status(w1); !strings.Contains(s.Reason, "r1") {
		t.Fatalf("reason %q", s.Reason)
	}
	r.converges(5*time.Second, w1, FeedGone, nil)
	eventually(t, time.Second, "the number given back", func() bool { _, ok := r.workers.Lookup(w1); return !ok })
	inBackground(t, beat(a))
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	mu.Lock()
	defer mu.Unlock()
	if want := []FeedState{FeedResyncing, FeedComplete, FeedStale, FeedGone, FeedResyncing, FeedComplete}; !slices.Equal(states, want) {
		t.Fatalf("states %v, want %v", states, want)
	}
}

func TestConsumer_StrangersAreReportedByName(t *testing.T) {
	var allowed atomic.Bool
	r := newRig(t, rigConfig{timing: slow(), resolve: func(a *Announcement) (string, bool) { return "mine", allowed.Load() }})
	a := newHandRelay(t, r.bus.Local(), "stranger", "r1").serve()
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).lose()
	a.announce(nil)
	stranger, mine := kv.WorkerRank{ID: "stranger"}, kv.WorkerRank{ID: "mine"}
	eventually(t, 5*time.Second, "reported", func() bool { return strings.Contains(r.status(stranger).Reason, "allow_announced") })
	if r.workers.Len() != 0 || a.calls.Load() != 0 {
		t.Fatal("a stranger was followed")
	}
	allowed.Store(true)
	a.announce(nil)
	r.converges(5*time.Second, mine, FeedComplete, a.truth())
	if r.status(stranger).Reason != "" {
		t.Fatal("still reported as a stranger")
	}
	allowed.Store(false)
	a.announce(nil)
	r.converges(5*time.Second, mine, FeedNone, nil)
}

// TestConsumer_StrangerWithARelaysName: a forged announcement under the id of another
// worker's relay takes nothing from that worker.
func TestConsumer_StrangerWithARelaysName(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow(), resolve: func(a *Announcement) (string, bool) { return a.Worker, a.Worker == "w1" }})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).lose()
	a.announce(nil)
	w1 := kv.WorkerRank{ID: "w1"}
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	calls := a.calls.Load()
	newHandRelay(t, r.bus.Local(), "stranger", "r1").announce(nil)
	eventually(t, 5*time.Second, "reported", func() bool { return r.status(kv.WorkerRank{ID: "stranger"}).Reason != "" })
	a.apply(store(0, tokens(1, 3), 4, 5, 6)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	if a.calls.Load() != calls {
		t.Error("the state was fetched anew")
	}
}

func TestConsumer_AtMostFourResyncsAtOnce(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	var mu sync.Mutex
	running, most := 0, 0
	var relays []*handRelay
	release := make(chan struct{})
	for i := range 12 {
		h := newHandRelay(t, r.bus.Local(), "w"+string(rune('a'+i)), "r1").serve()
		h.apply(store(0, tokens(i, 3), 1, 2, 3)).lose()
		h.change(func(msgs [][]byte) [][]byte {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			<-release
			mu.Lock()
			running--
			mu.Unlock()
			return msgs
		})
		relays = append(relays, h)
		h.announce(nil)
	}
	eventually(t, 5*time.Second, "four under way", func() bool { mu.Lock(); defer mu.Unlock(); return running == 4 })
	close(release)
	for _, h := range relays {
		r.converges(5*time.Second, kv.WorkerRank{ID: h.cfg.Worker}, FeedComplete, h.truth())
	}
	if most != 4 {
		t.Fatalf("%d resyncs at once", most)
	}
}

func TestConsumer_FullIndexIsPartialUntilThereIsRoom(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow(), index: index.Config{MaxBytes: 512 << 10}})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	r.attach(a)
	const runs, per = 80, 1000
	for i := range runs {
		a.apply(store(0, tokens(i*per, per), seqOf(1+i*per, per)...)).send(nil)
	}
	eventually(t, 10*time.Second, "partial for want of room", func() bool {
		s := r.status(w1)
		return s.State == FeedPartial && strings.Contains(s.Reason, "index is full")
	})
	if r.counter("refused_blocks_total") == 0 {
		t.Fatal("nothing was counted as refused")
	}
	for i := 5; i < runs; i++ {
		a.apply(remove(kv.TierGPU, seqOf(1+i*per, per)...)).send(nil)
	}
	r.converges(10*time.Second, w1, FeedComplete, a.truth())
	if r.counter("resyncs_total", "reason", "room") == 0 {
		t.Fatal("no resync for the room")
	}
}

func TestConsumer_OverCapacityIsResyncedOnceAMinute(t *testing.T) {
	tm := slow()
	r := newRig(t, rigConfig{timing: tm})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	a.apply(store(0, tokens(0, 20), seqOf(1, 20)...)).lose()
	a.announce(func(a *Announcement) { a.Info.CapacityTokens = 10 * bs })
	eventually(t, 5*time.Second, "partial because of capacity", func() bool {
		s := r.status(w1)
		return s.State == FeedPartial && strings.Contains(s.Reason, "capacity")
	})
	if n := r.counter("resyncs_total", "reason", "capacity"); n != 1 {
		t.Fatalf("%v resyncs because of capacity", n)
	}
	a.announce(func(a *Announcement) { a.Info.CapacityTokens = 20 * bs })
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
}

func TestConsumer_IgnoresWhatItCannotRead(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	r.attach(a)
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).send(nil)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	future := appendHeader(nil, kindDelta, "r1", 1, 1, 0, bs)
	future[0] = Version + 1
	for _, m := range [][]byte{future, {}, {1}, []byte("rubbish")} {
		if err := r.bus.Local().Publish(a.subj.deltas("w1", 0), m); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []string{`{"v":9}`, `x`, `{"v":1}`, `{"v":1,"worker":"w1","relay":"r1","ranks":[{"rank":-1},{"rank":99999},{"rank":0,"epoch":"zz"}]}`} {
		if err := r.bus.Local().Publish(a.subj.workers(), []byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	a.apply(remove(kv.TierGPU, 3)).send(nil)
	eventually(t, 5*time.Second, "all counted", func() bool {
		return r.counter("unknown_version_total") == 3 && r.counter("dropped_total", "reason", "malformed") == 3 &&
			r.counter("announcements_total", "outcome", "malformed") == 2
	})
	eventually(t, 5*time.Second, "deltas still applied", func() bool { return r.equals(w1, a.truth()) })
}

func TestConsumer_RankThatLeavesIsDropped(t *testing.T) {
	r := newRig(t, rigConfig{timing: slow()})
	a := newHandRelay(t, r.bus.Local(), "w1", "r1").serve()
	a.apply(store(0, tokens(0, 3), 1, 2, 3)).lose()
	two := func(a *Announcement) {
		r1 := a.Ranks[0]
		r1.Rank, r1.LastSeq = 1, 0
		a.Ranks = append(a.Ranks, r1)
	}
	a.announce(two)
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
	r.converges(5*time.Second, kv.WorkerRank{ID: "w1", Rank: 1}, FeedComplete, nil)
	a.announce(nil)
	eventually(t, 5*time.Second, "rank 1 gone", func() bool { return len(r.consumer.Status()) == 1 })
	r.converges(5*time.Second, w1, FeedComplete, a.truth())
}
