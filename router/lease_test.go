package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// idle fails the test unless nothing is booked on any rank, of the fleet or not.
func (w *world) idle(ranks map[*rank]bool) {
	w.t.Helper()
	r := w.router
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.mu.workers {
		if x.inflight != 0 {
			w.t.Errorf("worker %s: %d in flight", x.spec.ID, x.inflight)
		}
		for _, k := range x.ranks {
			ranks[k] = true
		}
	}
	for k := range ranks {
		if k.inflight != 0 || len(k.prefill) != 0 || k.booked != 0 || k.prompts != 0 || k.held.tokens != 0 ||
			len(k.held.refs) != 0 || k.kvTokens.Load() != 0 || k.sequences.Load() != 0 || k.window.blind != 0 ||
			!k.window.since.IsZero() || len(k.warm) != 0 || k.warmTokens != 0 || k.busy.on || k.warmed.on || k.calmSince.Load() == notCalm {
			w.t.Errorf("rank %v is not idle: %+v", k.name, k)
		}
	}
}

// TestLease_GaugesReturnToZero runs random interleavings of every step of leases and
// of changes of the fleet; at the end nothing is booked and no number is held twice.
func TestLease_GaugesReturnToZero(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t, Config{Mode: []Mode{ModeKV, ModeRoundRobin, ModeRandom, ModeLeastLoaded}[seed%4], Seed: seed + 1})
			spec := WorkerSpec{BlockSize: 64, Ranks: 2, CapacityTokens: 20000, MaxNumSeqs: 4, MaxInflight: 9}
			w.fleet(3, spec)
			seen := map[*rank]bool{}
			var open []*Lease
			for range 200 {
				w.advance(time.Duration(rnd.IntN(300)) * time.Millisecond)
				switch rnd.IntN(10) {
				case 0, 1, 2, 3:
					p := prompt(fmt.Sprintf("s/%d+t%d/%d", rnd.IntN(30), rnd.IntN(4), rnd.IntN(20)), 64, rnd.IntN(3) == 0)
					l, err := w.router.Route(context.Background(), &Request{
						Model: "m", Prompt: p, Stream: rnd.IntN(4) > 0, PinRank: -1, FirstTurn: rnd.IntN(2) == 0,
						Speculative: rnd.IntN(5) == 0,
					})
					var full *SaturatedError
					if errors.As(err, &full) || errors.Is(err, ErrNoWorkers) || len(w.router.Models()) == 0 {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					seen[l.rank] = true
					open = append(open, l)
				case 4, 5:
					if len(open) > 0 {
						open[rnd.IntN(len(open))].FirstToken()
					}
				case 6, 7:
					if len(open) > 0 {
						open[rnd.IntN(len(open))].Progress(1 + rnd.IntN(3))
					}
				case 8:
					if len(open) > 0 {
						i := rnd.IntN(len(open))
						o := Outcome{OK: rnd.IntN(2) == 0, CachedTokens: rnd.IntN(100) - 1, PromptTokens: -1, OutputTokens: -1}
						for range 1 + rnd.IntN(2) {
							open[i].Done(o)
						}
						if rnd.IntN(2) == 0 {
							open = append(open[:i], open[i+1:]...)
						}
					}
				default:
					specs := append([]WorkerSpec(nil), w.specs[:rnd.IntN(len(w.specs)+1)]...)
					for i := range specs {
						specs[i].Ranks = 1 + rnd.IntN(3)
					}
					w.router.SetWorkers(specs)
				}
			}
			for _, l := range open {
				l.Done(Outcome{CachedTokens: -1, PromptTokens: -1, OutputTokens: -1})
				l.FirstToken()
				l.Progress(1)
			}
			w.idle(seen)
			w.router.SetWorkers(nil)
			for k := range seen {
				if n, held := w.numbers.Lookup(k.name); held {
					t.Errorf("number %d of %v is still held", n, k.name)
				}
			}
		})
	}
}

// TestRoute_ConcurrentUse is for the race detector.
func TestRoute_ConcurrentUse(t *testing.T) {
	numbers := &kv.Workers{}
	r := New(Config{Index: index.NewSet(index.Config{}), Workers: numbers, OnStaleHits: func(kv.WorkerRank) {}})
	specs := make([]WorkerSpec, 6)
	for i := range specs {
		specs[i] = WorkerSpec{ID: "w" + strconv.Itoa(i), Models: []ModelSpec{{Name: "m"}}, BlockSize: 64, Ranks: 1 + i%2, CapacityTokens: 100000, MaxNumSeqs: 8}
	}
	r.SetWorkers(specs)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for i := range 200 {
				p := prompt(fmt.Sprintf("s/8+g%d/%d", g, 1+i%5), 64, i%3 == 0)
				l, err := r.Route(context.Background(), &Request{Model: "m", Prompt: p, Stream: i%4 > 0, PinRank: -1, Key: strconv.Itoa(g)})
				if err != nil {
					continue
				}
				var both sync.WaitGroup
				both.Go(func() { l.Done(Outcome{OK: true, CachedTokens: i % 200, PromptTokens: -1, OutputTokens: -1}) })
				l.FirstToken()
				for range 20 {
					l.Progress(1)
				}
				_ = l.Decision().Explain()
				both.Wait()
			}
		})
	}
	wg.Go(func() {
		for i := range 200 {
			r.SetWorkers(specs[i%3:])
			r.SetHealth("w4", i%2 == 0, "probe failed")
			r.SetDraining("w5", i%3 == 0)
			r.SetFeed(kv.WorkerRank{ID: "w3", Rank: 0}, Feed{State: []string{FeedComplete, FeedPartial, FeedNone}[i%3]})
			_, _, _ = r.Status(), r.Decisions(), r.Models()
		}
	})
	wg.Wait()
	r.SetWorkers(specs)
	for _, s := range r.Status() {
		if s.Inflight != 0 || s.BacklogTokens != 0 || s.KVTokens != 0 {
			t.Errorf("%s/%d: %+v", s.Worker, s.Rank, s)
		}
	}
}

// TestLease_InheritedPrefillIsBookedLikeItsOwn: a request whose whole prompt was to be
// computed by another one takes over the work when that one ends early, also where it
// will tell of no first token.
func TestLease_InheritedPrefillIsBookedLikeItsOwn(t *testing.T) {
	for _, stream := range []bool{true, false} {
		w := newWorld(t, Config{})
		w.fleet(1, WorkerSpec{BlockSize: 100})
		route := func(stream bool) *Lease {
			return w.route(&Request{Prompt: prompt("a/40", 100, false), Stream: stream, PinRank: -1})
		}
		first, second := route(true), route(stream)
		if second.uncached != 0 {
			t.Fatalf("%v tokens are booked for a prompt that is being computed", second.uncached)
		}
		first.Done(Outcome{CachedTokens: -1})
		if s := w.router.Status()[0]; s.BacklogTokens != 4000 {
			t.Errorf("backlog %d tokens after the first one ended, want 4,000", s.BacklogTokens)
		}
		w.advance(time.Second)
		second.FirstToken()
		second.Done(Outcome{OK: true, CachedTokens: -1})
		w.idle(map[*rank]bool{})
		want := 0
		if stream {
			want = 1
		}
		if s := w.router.Status()[0]; s.RateSamples != want {
			t.Errorf("stream %v: %d samples of R, want %d", stream, s.RateSamples, want)
		}
	}
}
