package router

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestMeter_EqualsASum drives a meter with random switches and compares it with the
// intervals themselves.
func TestMeter_EqualsASum(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		var m meter
		type interval struct{ from, to int64 }
		var on []interval
		now, since := rnd.Int64N(1000*second), int64(-1)
		for range 400 {
			switch rnd.IntN(3) {
			case 0:
				if since < 0 {
					since = now
				}
				m.set(true, now)
			case 1:
				if since >= 0 {
					on = append(on, interval{since, now})
					since = -1
				}
				m.set(false, now)
			}
			now += []int64{0, rnd.Int64N(second), rnd.Int64N(10 * second), rnd.Int64N(100 * second)}[rnd.IntN(4)]
			got := m.last(now)
			from := (now/second - meterSpan + 1) * second
			var want int64
			for _, v := range append(on, interval{since, now}) {
				if v.from >= 0 {
					want += max(v.to-max(v.from, from), 0)
				}
			}
			if int64(got) != want {
				t.Fatalf("seed %d: %v on in the last 60 s, want %v", seed, got, time.Duration(want))
			}
		}
	}
}

// TestWarmUp_IsInNoCounter: what users see is the same with and without warm-ups (FC-78).
func TestWarmUp_IsInNoCounter(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{BlockSize: 64})
	for range 5 {
		l := w.route(&Request{Prompt: prompt("a/100", 64, false), Speculative: true, PinRank: -1})
		w.advance(time.Second)
		l.FirstToken()
		l.Done(Outcome{OK: true, CachedTokens: 64, PromptTokens: 6400, OutputTokens: 1})
	}
	for name, v := range counters(t, w.router) {
		if v != 0 {
			t.Errorf("%s is %v", name, v)
		}
	}
	if entries, _, _ := w.router.talks.stats(); entries != 0 {
		t.Errorf("%d conversations were learned from warm-ups", entries)
	}
	if entries, _ := w.router.expect.stats(); entries != 0 {
		t.Errorf("%d lengths of answers were learned from warm-ups", entries)
	}
}

// counters returns every counter, and the count of every histogram, of a router.
func counters(t *testing.T, r *Router) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	m := r.metrics
	reg.MustRegister(m.decisions, m.refusals, m.predictedTTFT, m.actualTTFT, m.errorTTFT, m.promptTokens, m.predictedCached,
		m.overlapBlocks, m.reportedPrompt, m.reportedCached, m.reportedPredicted, m.overlapError, m.reuseLost, m.staleHits)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		for _, v := range f.Metric {
			sums[f.GetName()] += v.GetCounter().GetValue() + float64(v.GetHistogram().GetSampleCount())
		}
	}
	if len(sums) == 0 {
		t.Fatal("the router has no counters")
	}
	return sums
}

// TestOutlook_UnstreamedTurnWaitsWhileItPrefills: a turn that is not streamed never tells
// of its first token; it counts as waiting until its prompt should be computed, not until
// its answer ends.
func TestOutlook_UnstreamedTurnWaitsWhileItPrefills(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(1, WorkerSpec{BlockSize: 64})
	w.advance(60 * time.Second)
	l := w.route(&Request{Prompt: prompt("a/100", 64, false), PinRank: -1})
	look := func() Outlook {
		t.Helper()
		o, err := w.router.Outlook(&Request{Model: "m", Prompt: prompt("b/1", 64, false), PinRank: -1})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	w.advance(500 * time.Millisecond)
	if o := look(); o.Waiting != 1 || o.Busy != 500*time.Millisecond {
		t.Errorf("while it prefills: %d waiting, busy for %v", o.Waiting, o.Busy)
	}
	w.advance(9 * time.Second)
	if o := look(); o.Waiting != 0 || o.Busy != 800*time.Millisecond {
		t.Errorf("while it decodes: %d waiting, busy for %v, want 6400 tokens at 8000 a second", o.Waiting, o.Busy)
	}
	l.Done(Outcome{OK: true, CachedTokens: -1, PromptTokens: 6400, OutputTokens: 900})
	if o := look(); o.Busy != 800*time.Millisecond {
		t.Errorf("after it: busy for %v", o.Busy)
	}
}
