package testcluster

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/warmroute/warmroute/internal/sim"
)

// goodTTFT is the time to first token, from the client's send, up to which a turn counts
// as good.
const goodTTFT = 2 * time.Second

// arriving gives the conversations of w Poisson arrivals, rate a second.
func arriving(w Workload, rate float64, seed uint64) Workload {
	r := rng(seed, 0xa44)
	var at float64
	for i := range w.Conversations {
		at += r.ExpFloat64() / rate
		w.Conversations[i].Arrival = time.Duration(at * float64(time.Second))
	}
	return w
}

// capacityRate returns the arrivals a second that are load 1: the contexts of the
// conversations, each from its first turn to its last, fill the caches of so many workers,
// beside one copy of each head. A turn takes 8,000 tokens/s of prefill and 10 ms a token.
func capacityRate(w Workload, workers, capacity int) float64 {
	heads := map[*uint32]int{}
	var tokenSeconds float64
	for i := range w.Conversations {
		c := &w.Conversations[i]
		heads[&c.Prefix[0]] = len(c.Prefix)
		own := 0
		for _, t := range c.Turns {
			tokenSeconds += float64(own) * t.Think.Seconds()
			own += t.InputTokens + t.OutputTokens
			tokenSeconds += float64(own) * (float64(t.InputTokens)/8000 + 0.01*float64(t.OutputTokens))
		}
	}
	for _, n := range heads {
		capacity -= n
	}
	return float64(workers*capacity) / (tokenSeconds / float64(len(w.Conversations)))
}

// overload is one run of an open loop.
type overload struct {
	load      float64
	admission bool
	seed      uint64
	result    *Result
	good      float64 // turns a second that saw their first token in time
	all       float64 // turns a second that saw one
}

// run plays arrivals for so long and measures the last three quarters of that time.
func (o *overload) run(workers int, length time.Duration) error {
	const capacity = 400_000
	rate := o.load * capacityRate(Agents(400, o.seed), workers, capacity)
	w := arriving(Agents(int(rate*length.Seconds()), o.seed), rate, o.seed)
	r, err := Run(Config{Workers: workers, Engine: sim.EngineConfig{CapacityTokens: capacity}, Admission: o.admission, Until: length, Seed: o.seed}, w)
	if err != nil {
		return err
	}
	for _, q := range r.Rows {
		if at := q.Sent + q.TTFT; at >= length/4 && at < length {
			o.all++
			if q.TTFT <= goodTTFT {
				o.good++
			}
		}
	}
	o.result = r
	o.good /= (length * 3 / 4).Seconds()
	o.all /= (length * 3 / 4).Seconds()
	return nil
}

// TestRouting_Overload asserts that at 1.5 times what the caches hold of live
// conversations, goodput stays within 10 % of its peak: later turns keep their contexts
// because first turns wait, and are refused. Without that the caches collapse.
func TestRouting_Overload(t *testing.T) {
	workers, length, seeds, loads := 2, time.Hour, 1, []float64{0.5, 0.75, 1, 1.5}
	if testing.Short() {
		loads = []float64{0.75, 1.5}
	}
	if full {
		workers, length, seeds, loads = 8, time.Hour, 3, []float64{0.5, 0.75, 0.875, 1, 1.25, 1.5, 2}
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	var runs []*overload
	for _, load := range loads {
		for _, admission := range []bool{false, true} {
			for seed := range seeds {
				o := &overload{load: load, admission: admission, seed: uint64(seed + 1)}
				runs = append(runs, o)
				g.Go(func() error { return o.run(workers, length) })
			}
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| load | admission | good turns/s | turns/s | reuse | TTFT p50 s | mean | p99 | conversations refused |\n|---|---|---|---|---|---|---|---|---|\n")
	good := map[string]float64{}
	peak := 0.0
	for i := 0; i < len(runs); i += seeds {
		mean := func(f func(*overload) float64) (sum float64) {
			for _, o := range runs[i : i+seeds] {
				sum += f(o) / float64(seeds)
			}
			return sum
		}
		o := runs[i]
		goodput := mean(func(o *overload) float64 { return o.good })
		good[fmt.Sprint(o.load, o.admission)] = goodput
		peak = max(peak, goodput)
		fmt.Fprintf(&b, "| %g | %v | %.3f | %.3f | %.3f | %.2f | %.2f | %.1f | %.2f |\n", o.load, o.admission, goodput,
			mean(func(o *overload) float64 { return o.all }),
			mean(func(o *overload) float64 { return o.result.Reuse }), mean(func(o *overload) float64 { return o.result.TTFT.P50 }),
			mean(func(o *overload) float64 { return o.result.TTFT.Mean }), mean(func(o *overload) float64 { return o.result.TTFT.P99 }),
			mean(func(o *overload) float64 {
				return float64(o.result.Refused) / float64(o.result.Refused+o.result.Ended)
			}))
	}
	t.Logf("%d workers, %v, means over %d seeds; good is a TTFT of at most %v\n%s", workers, length, seeds, goodTTFT, b.String())
	with, without := good["1.5 true"], good["1.5 false"]
	t.Logf("at load 1.5: %.0f %% of the peak with admission, %.0f %% without", 100*with/peak, 100*without/peak)
	if with < 0.9*peak {
		t.Errorf("goodput at 1.5 times the capacity is %.3f turns/s, want ≥ 90 %% of the peak of %.3f", with, peak)
	}
	if without > 0.5*peak {
		t.Errorf("goodput without admission is %.3f turns/s of a peak of %.3f: this is no overload", without, peak)
	}
	if at := good["0.5 true"]; at != good["0.5 false"] {
		t.Errorf("at load 0.5 admission changes goodput from %.3f to %.3f turns/s", good["0.5 false"], at)
	}
}

// TestRouting_AdmissionRefusesNobodyElse: single requests that come faster than the engines
// compute them wait there, whatever they fill, for nothing is lost with them; and users who think for minutes overflow every cache
// but leave the engines the time to compute again.
func TestRouting_AdmissionRefusesNobodyElse(t *testing.T) {
	const workers, capacity = 2, 100_000
	batch := Workload{Name: "batch"}
	for i := range 200 {
		batch.Conversations = append(batch.Conversations, Conversation{
			ID: uint64(i), Arrival: time.Duration(i) * 200 * time.Millisecond, Turns: []Turn{{InputTokens: 8_000, OutputTokens: 100}},
		})
	}
	chat := Workload{Name: "chat"}
	turns := []Turn{{InputTokens: 6_000, OutputTokens: 300}}
	for range 6 {
		turns = append(turns, Turn{InputTokens: 100, OutputTokens: 300, Think: 4 * time.Minute})
	}
	for i := range 60 {
		chat.Conversations = append(chat.Conversations, Conversation{
			ID: uint64(i), Arrival: time.Duration(i) * 5 * time.Second, Turns: turns,
		})
	}
	for _, w := range []Workload{batch, chat} {
		r := mustRun(t, Config{Workers: workers, Engine: sim.EngineConfig{CapacityTokens: capacity}, Admission: true, Seed: 1}, w)
		t.Logf("%s: %d requests, live %.2f, reuse %.2f, TTFT p99 %.1f s, %d refused", w.Name, r.Requests, r.LiveKV, r.Reuse, r.TTFT.P99, r.Refused)
		if r.Refused > 0 {
			t.Errorf("%s: %d conversations were refused", w.Name, r.Refused)
		}
	}
}
