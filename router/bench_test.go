package router

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// busy makes a router over n workers that hold prefixes of one 1,600-block prompt and
// are nearly full, and returns the prompt, hashed already.
func busy(tb testing.TB, n int) (*Router, *kv.Prompt) {
	numbers := &kv.Workers{}
	set := index.NewSet(index.Config{})
	r := New(Config{Index: set, Workers: numbers, Seed: 1})
	p := prompt("system/1000+chat/600", 16, false)
	other := &kv.Prompt{}
	for i := range uint32(20000 * 16) {
		other.Tokens = append(other.Tokens, 1<<31|i)
	}
	var specs []WorkerSpec
	for i := range n {
		specs = append(specs, WorkerSpec{
			ID: "w" + strconv.Itoa(i), Models: []ModelSpec{{Name: "m"}}, BlockSize: 16, CapacityTokens: 400_000, MaxNumSeqs: 128,
		})
	}
	r.SetWorkers(specs)
	for i, s := range specs {
		k := kv.WorkerRank{ID: s.ID}
		r.SetFeed(k, Feed{State: FeedComplete})
		w, _ := numbers.Lookup(k)
		set.Exact(16).Apply(w, kv.Event{Kind: kv.EventStored, Hashes: p.Chain(16)[:100+i*20]})
		set.Exact(16).Apply(w, kv.Event{Kind: kv.EventStored, Hashes: other.Chain(16)})
		for j := range 8 {
			l, err := r.Route(tb.Context(), &Request{Model: "m", PinWorker: s.ID, PinRank: -1, Stream: true, Prompt: prompt(fmt.Sprintf("b%d-%d/40", i, j), 16, false)})
			if err != nil {
				tb.Fatal(err)
			}
			l.FirstToken()
		}
	}
	return r, p
}

var finished = Outcome{OK: true, CachedTokens: 0, PromptTokens: 25600, OutputTokens: 200}

// BenchmarkRoute is one whole life of a lease: Route over workers, first token, done.
func BenchmarkRoute(b *testing.B) {
	for _, n := range []int{8, 64} {
		b.Run(fmt.Sprintf("workers=%d/blocks=1600", n), func(b *testing.B) {
			r, p := busy(b, n)
			req := &Request{Model: "m", PinRank: -1, Stream: true, Prompt: p, FirstTurn: true}
			b.ReportAllocs()
			for b.Loop() {
				l, err := r.Route(b.Context(), req)
				if err != nil {
					b.Fatal(err)
				}
				l.FirstToken()
				l.Done(finished)
			}
		})
	}
}

func BenchmarkProgress(b *testing.B) {
	r, p := busy(b, 8)
	l, err := r.Route(b.Context(), &Request{Model: "m", PinRank: -1, Stream: true, Prompt: p})
	if err != nil {
		b.Fatal(err)
	}
	l.FirstToken()
	b.ReportAllocs()
	for b.Loop() {
		l.Progress(1)
	}
}

// TestRoute_AllocatesOnlyWhatItReturns: the lease, the decision with its id and its
// table, and what the predicted index keeps.
func TestRoute_AllocatesOnlyWhatItReturns(t *testing.T) {
	r, p := busy(t, 64)
	req := &Request{Model: "m", PinRank: -1, Stream: true, Prompt: p, FirstTurn: true}
	allocs := testing.AllocsPerRun(200, func() {
		l, err := r.Route(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		l.FirstToken()
		l.Done(finished)
	})
	if allocs > 8 {
		t.Errorf("%v allocations per request, want ≤ 8", allocs)
	}
}

func TestProgress_AllocatesNothing(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{})
	l := w.route(&Request{Prompt: prompt("a/10", 64, false), Stream: true, PinRank: -1})
	l.FirstToken()
	if n := testing.AllocsPerRun(500, func() {
		w.advance(10 * time.Millisecond)
		l.Progress(1)
	}); n != 0 {
		t.Errorf("%v allocations per chunk", n)
	}
}
