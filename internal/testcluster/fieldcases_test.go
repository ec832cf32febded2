package testcluster

import (
	"slices"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router"
)

// mustRun is Run for tests.
func mustRun(t *testing.T, cfg Config, w Workload) *Result {
	t.Helper()
	r, err := Run(cfg, w)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// inFlightRatio is the imbalance gauge of FC-61: mean requests in flight of the
// fullest worker ÷ those of the emptiest.
func inFlightRatio(r *Result) float64 { return slices.Max(r.InFlight) / slices.Min(r.InFlight) }

// A hot system prompt must not pull all traffic to the worker that saw it first, not
// even where answers are so short that one request alone would never pay for a copy.
func TestFC61_HotPrefixSpreads(t *testing.T) {
	for _, output := range []int{30, 150, 600} {
		for _, stagger := range []time.Duration{0, 5 * time.Second} {
			w := Siblings(240, 8_000, 200, output, 0, 61)
			r := mustRun(t, Config{Workers: 4, Concurrency: 16, Stagger: stagger, Seed: 61}, w)
			t.Logf("output %d, stagger %v: in flight %.2f, requests %v, reuse %.3f, %.1f rps", output, stagger, r.InFlight, r.PerWorker, r.Reuse, r.RPS)
			if got := inFlightRatio(r); got > 2 {
				t.Errorf("output %d, stagger %v: max/min in flight %.2f, want ≤ 2", output, stagger, got)
			}
			if r.Reuse <= 0.8 {
				t.Errorf("output %d, stagger %v: reuse %.3f, want > 0.8", output, stagger, r.Reuse)
			}
		}
	}
}

// Equal costs must not always pick the first worker.
func TestFC63_TiesSpread(t *testing.T) {
	var w Workload
	for i := range 300 {
		w.Conversations = append(w.Conversations, Conversation{ID: uint64(i), Turns: []Turn{{InputTokens: 200, OutputTokens: 20}}})
	}
	for _, mode := range allModes {
		r := mustRun(t, Config{Workers: 3, Concurrency: 1, Mode: mode, Seed: 63}, w)
		for i, n := range r.PerWorker {
			if n < 75 || n > 126 {
				t.Errorf("%s: worker %d got %d of 300 unique prompts, want 25 to 42 %%: %v", mode, i, n, r.PerWorker)
			}
		}
	}
}

// Two proxies that share the event feed send a session's turns to one worker, whether or
// not they see each other's bookings.
func TestFC65_TwoProxiesAgree(t *testing.T) {
	w := chats("sessions", 20, 6, 0, Turn{InputTokens: 1_500, OutputTokens: 200}, 65)
	r := rng(65, 1)
	for _, c := range w.Conversations {
		for i := range c.Turns[1:] {
			c.Turns[i+1].Think = time.Duration(r.ExpFloat64() * float64(5*time.Second))
		}
	}
	for _, stagger := range []time.Duration{0, 10 * time.Second} {
		for _, delay := range []time.Duration{0, time.Millisecond} {
			r := mustRun(t, Config{Workers: 4, Routers: 2, BookingDelay: delay, Concurrency: 20, Stagger: stagger, Seed: 65}, w)
			t.Logf("stagger %v, bookings after %v: same worker %.3f, reuse %.3f, requests %v", stagger, delay, r.SameWorker, r.Reuse, r.PerWorker)
			if r.SameWorker < 0.9 {
				t.Errorf("stagger %v, bookings after %v: %.0f %% of later turns went to their session's worker, want ≥ 90 %%", stagger, delay, 100*r.SameWorker)
			}
		}
	}
}

// A burst of requests with one prefix that nobody holds yet, on a fleet at work,
// follows its first one instead of computing the prefix on every worker: what is
// booked counts as held before any event tells of it.
func TestBurst_SiblingsDoNotScatter(t *testing.T) {
	const siblings, prefix = 8, 16_000
	w := chats("chats", 32, 40, 2_000, Turn{InputTokens: 300, OutputTokens: 300, Think: time.Second}, 5)
	for i := range w.Conversations {
		w.Conversations[i].Arrival = time.Duration(i) * 300 * time.Millisecond
	}
	background := len(w.Conversations)
	for _, c := range Siblings(siblings, prefix, 200, 100, 20*time.Millisecond, 6).Conversations {
		c.Arrival += 40 * time.Second
		w.Conversations = append(w.Conversations, c)
	}
	for _, mode := range []router.Mode{router.ModeKV, router.ModeLeastLoaded} {
		r := mustRun(t, Config{Seed: 5, Mode: mode}, w)
		workers, computed, ttft := map[int]int{}, 0, time.Duration(0)
		for _, q := range r.Rows {
			if q.Conversation >= background {
				workers[q.Worker]++
				computed += q.PromptTokens - q.CachedTokens
				ttft += q.TTFT / siblings
			}
		}
		t.Logf("%s: workers %v, %d tokens computed, mean TTFT %.2f s", mode, workers, computed, ttft.Seconds())
		if mode == router.ModeKV && (len(workers) > 2 || computed > 2*prefix+siblings*300) {
			t.Errorf("%d siblings went to %d workers and computed %d tokens, want at most 2 workers: %v", siblings, len(workers), computed, workers)
		}
	}
}
