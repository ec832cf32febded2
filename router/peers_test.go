package router

import (
	"errors"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// ofPeer returns what a proxy would tell of a request that it has booked on w1.
func ofPeer(lease uint64, tokens int, streams bool) kv.Booking {
	return kv.Booking{Lease: lease, Rank: kv.WorkerRank{ID: "w1"}, Streams: streams, Uncached: tokens, KV: tokens}
}

// A request that a peer has booked costs others just what an own one costs: while it
// waits, drains, decodes, and when it has ended.
func TestPeers_CountLikeOwn(t *testing.T) {
	for _, stream := range []bool{true, false} {
		own, other := newWorld(t, Config{}), newWorld(t, Config{})
		var tables [2][]Candidate
		compare := func(when string) {
			t.Helper()
			for i, w := range []*world{own, other} {
				d, err := w.router.Preview(&Request{Model: "m", PinRank: -1, Prompt: prompt("new/20", 64, false)})
				if err != nil {
					t.Fatal(err)
				}
				tables[i] = d.Candidates
			}
			if !reflect.DeepEqual(tables[0], tables[1]) {
				t.Errorf("stream %v, %s: own\n%+v\nof a peer\n%+v", stream, when, tables[0], tables[1])
			}
		}
		both := func(f func(w *world)) { f(own); f(other) }
		both(func(w *world) {
			w.fleet(2, WorkerSpec{BlockSize: 64, CapacityTokens: 40_000, MaxNumSeqs: 2})
			w.route(&Request{PinWorker: "w1", PinRank: -1, Stream: stream, Prompt: prompt("a/30", 64, false)})
			w.advance(100 * time.Millisecond)
		})
		l := own.route(&Request{PinWorker: "w1", PinRank: -1, Stream: stream, Prompt: prompt("b/400", 64, false)})
		b := ofPeer(1, 400*64, stream)
		other.router.Book("p", []kv.Booking{b}, false)
		compare("booked")
		both(func(w *world) { w.advance(200 * time.Millisecond) })
		compare("drained in part")
		both(func(w *world) { w.advance(10 * time.Second) })
		compare("drained")
		l.FirstToken()
		b.Phase = kv.PhaseDecode
		other.router.Book("p", []kv.Booking{b}, false)
		compare("past its first token")
		l.Progress(500)
		b.KV += 500
		other.router.Book("p", []kv.Booking{b}, true)
		compare("500 tokens on")
		l.Done(Outcome{CachedTokens: -1, PromptTokens: -1, OutputTokens: -1}) // not OK: nothing is learned of it
		b.Phase = kv.PhaseDone
		other.router.Book("p", []kv.Booking{b}, false)
		compare("done")
		if s := other.router.Status()[0]; s.Peers != nil || s.Inflight != 1 {
			t.Errorf("stream %v: at the end %+v", stream, s)
		}
	}
}

// The prefill of a peer's request is a sample of the worker's speed and no measure of
// ITL is taken beside it.
func TestPeers_Measure(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{BlockSize: 64})
	l := w.route(&Request{PinRank: -1, Stream: true, Prompt: prompt("a/10", 64, false)})
	l.FirstToken()
	b := ofPeer(1, 8000, true)
	w.router.Book("p", []kv.Booking{b}, false)
	for range 100 {
		w.advance(20 * time.Millisecond)
		l.Progress(1)
	}
	if _, n := w.router.mu.models["m"].itl.coefficients(); n != 0 {
		t.Errorf("%d samples of ITL while a peer's request was prefilled", n)
	}
	b.Phase = kv.PhaseDecode
	w.router.Book("p", []kv.Booking{b}, false)
	if s := w.router.Status()[0]; s.RateSamples != 1 || s.Rate >= 8000 {
		t.Errorf("%d samples, %.0f tokens/s after 8,000 tokens in 2 s", s.RateSamples, s.Rate)
	}
}

func TestPeers_DoNotFillMaxInflight(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{MaxInflight: 2})
	w.router.Book("p", []kv.Booking{ofPeer(1, 10, true), ofPeer(2, 10, true)}, false)
	w.route(&Request{PinRank: -1})
	w.route(&Request{PinRank: -1})
	var full *SaturatedError
	if _, err := w.router.Route(t.Context(), &Request{Model: "m", PinRank: -1}); !errors.As(err, &full) {
		t.Errorf("third own request: %v, want saturated", err)
	}
}

// A prefix that requests of peers share counts once among them, and not again where an
// own request holds it too and the cache looks full.
func TestPeers_SharedPrefixCountsOnce(t *testing.T) {
	sender := newWorld(t, Config{OnBooking: func() {}})
	sender.fleet(1, WorkerSpec{BlockSize: 64})
	for _, s := range []string{"head/600+a/10", "head/600+b/10", "head/600+c/10"} {
		sender.route(&Request{PinRank: -1, Stream: true, Prompt: prompt(s, 64, false)})
	}
	bookings := sender.router.Bookings(nil, false)
	const prompts, head = 610 * 64, 32 * 1024 // the largest mark within the head's 38,400 tokens

	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{BlockSize: 64, CapacityTokens: 100_000})
	w.router.Book("p", bookings[:2], true)
	w.router.Book("q", bookings[2:], true)
	if got := w.router.Status()[0].HeldTokens; got != 3*prompts-2*head {
		t.Errorf("%d tokens held, want %d", got, 3*prompts-2*head)
	}
	w.route(&Request{PinRank: -1, Stream: true, Prompt: prompt("head/600+d/10", 64, false)})
	d, err := w.router.Preview(&Request{Model: "m", PinRank: -1, Prompt: prompt("head/600+e/10", 64, false)})
	if err != nil {
		t.Fatal(err)
	}
	if c := d.Candidates[0]; c.Slot > 0 {
		t.Errorf("waits %.1f s for room: own and peers' heads are one", c.Slot)
	}
	w.router.Book("p", nil, true)
	w.router.Book("q", nil, true)
	k := w.router.mu.workers["w1"].ranks[0]
	if p := k.peers; p.held.tokens != 0 || len(p.held.refs) != 0 || p.kv != 0 || p.inflight != 0 || p.waiting != 0 {
		t.Errorf("left behind: %+v", p)
	}
}

// More than a bound is refused and counted, and nothing stays when the peers are gone.
func TestPeers_Bounds(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{})
	many := func(n int, phase kv.Phase) []kv.Booking {
		out := make([]kv.Booking, n)
		for i := range out {
			out[i] = ofPeer(uint64(i)+1, 1, true)
			out[i].Phase = phase
		}
		return out
	}
	f := func(what, peer string, b []kv.Booking, refused int) {
		t.Helper()
		if got := w.router.Book(peer, b, true); got != refused {
			t.Errorf("%s: %d refused, want %d", what, got, refused)
		}
	}
	f("bookings that wait", "p", many(maxPeerWaiting+5, kv.PhasePrefill), 5)
	f("bookings of one peer", "p", many(maxPeerBookings+7, kv.PhaseDecode), 7)
	for i := 1; i < maxPeersTotal/maxPeerBookings; i++ {
		f("another", strconv.Itoa(i), many(maxPeerBookings, kv.PhaseDecode), 0)
	}
	f("bookings of all", "over", many(1, kv.PhaseDecode), 1)
	f("none", "p", nil, 0)
	stranger := ofPeer(1, 1, true)
	stranger.Rank.ID = "elsewhere"
	rank := ofPeer(2, 1, true)
	rank.Rank.Rank = 1
	f("unknown ranks", "p", []kv.Booking{stranger, rank}, 2)
	for i := range maxPeers {
		w.router.Book(strconv.Itoa(i), nil, true)
	}
	for i := range maxPeers {
		f("peers", strconv.Itoa(i), many(1, kv.PhaseDecode), 0)
	}
	f("one peer more", "over", many(1, kv.PhaseDecode), 1)
	for i := range maxPeers {
		w.router.Book(strconv.Itoa(i), nil, true)
	}
	if s := w.router.Status()[0]; s.Peers != nil || s.KVTokens != 0 || s.HeldTokens != 0 || s.BacklogTokens != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

// A worker that leaves and comes back takes the bookings of peers anew, and the number
// of its rank is given back.
func TestPeers_WorkerComesBack(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{})
	b := []kv.Booking{ofPeer(1, 10, true)}
	w.router.Book("p", b, true)
	w.router.SetWorkers(nil)
	if refused := w.router.Book("p", b, true); refused != 1 {
		t.Errorf("%d bookings of a worker that is gone are refused, want 1", refused)
	}
	if _, held := w.numbers.Lookup(kv.WorkerRank{ID: "w1"}); held {
		t.Error("the rank's number is still held")
	}
	w.fleet(1, WorkerSpec{})
	w.router.Book("p", b, true)
	w.router.SetWorkers(nil)
	w.fleet(1, WorkerSpec{})
	w.router.Book("p", b, true)
	if s := w.router.Status()[0]; s.Peers == nil || s.Peers.Inflight != 1 {
		t.Errorf("peers there: %+v", s.Peers)
	}
}

// What is told is bounded while nobody takes it; all of it is in the full state.
func TestBookings_Bounded(t *testing.T) {
	woken := 0
	w := newWorld(t, Config{MaxInflight: 2 * maxChanges, OnBooking: func() { woken++ }})
	w.fleet(1, WorkerSpec{})
	var last *Lease
	for range maxChanges + 100 {
		last = w.route(&Request{PinRank: -1})
	}
	if got := len(w.router.Bookings(nil, false)); got != maxChanges || woken != 1 || w.router.mu.exchange.dropped < 100 {
		t.Errorf("%d changes, woken %d times, %d dropped", got, woken, w.router.mu.exchange.dropped)
	}
	if got := len(w.router.Bookings(nil, true)); got != maxChanges+100 {
		t.Errorf("%d bookings in the full state", got)
	}
	last.Done(finished)
	if got := w.router.Bookings(nil, false); len(got) != 1 || got[0].Phase != kv.PhaseDone || got[0].Lease != maxChanges+100 {
		t.Errorf("%+v", got)
	}
	// What nobody has heard of is not told when it has ended.
	w.route(&Request{PinRank: -1}).Done(finished)
	if got := w.router.Bookings(nil, false); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// BenchmarkRoute_Shared is BenchmarkRoute with peers: what is told is taken every 64
// requests, and each worker has 16 of a peer's.
func BenchmarkRoute_Shared(b *testing.B) {
	r, p := busy(b, 8)
	r.cfg.OnBooking = func() {}
	var peers []kv.Booking
	for i := range 128 {
		q := ofPeer(uint64(i)+1, 1000, true)
		q.Rank.ID, q.Phase = "w"+strconv.Itoa(i%8), kv.PhaseDecode
		peers = append(peers, q)
	}
	r.Book("p", peers, true)
	req := &Request{Model: "m", PinRank: -1, Stream: true, Prompt: p, FirstTurn: true}
	var told []kv.Booking
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l, err := r.Route(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		l.FirstToken()
		l.Done(finished)
		if i%64 == 0 {
			told = r.Bookings(told[:0], false)
		}
	}
}

// The requests of peers take KV room, and what they give back calls who waits for it.
func TestPeers_TakeRoom(t *testing.T) {
	l := newPool(t, Config{})
	all := make([]kv.Booking, 9)
	for i := range all {
		all[i] = ofPeer(uint64(i)+1, 2000, true)
	}
	all[8].KV = 2001 // more than 0.9 of two workers of 10,000 tokens
	l.router.Book("p", all, true)
	l.ask("new", 10, Request{FirstTurn: true})
	if l.leases["new"] != nil {
		t.Fatal("a first turn finds room that peers have taken")
	}
	all[0].Phase = kv.PhaseDone
	l.router.Book("p", all[:1], false)
	if got := l.serve(); got != "new" {
		t.Errorf("%q were served when a peer's request had ended", got)
	}
}
