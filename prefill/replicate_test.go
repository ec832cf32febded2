package prefill

import (
	"fmt"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/testcluster"
)

// arms plays a town with and without replicate for each seed and returns the means of
// requests a second, TTFT and E2E in seconds.
func arms(t *testing.T, name string, w town, seeds uint64, chats func(seed uint64) testcluster.Workload) (rps [2]float64) {
	t.Helper()
	var ttft, e2e, reuse [2]float64
	sent, tokens := 0.0, 0.0
	horizons := []time.Duration{w.Until}
	for h := 4 * time.Minute; h < w.Until; h += 4 * time.Minute {
		horizons = append(horizons, h)
	}
	ratio := make([][]float64, len(horizons)) // of requests a second, by horizon and seed
	for seed := uint64(1); seed <= seeds; seed++ {
		w.Chats, w.Seed, w.Mode = chats(seed).Conversations, seed, ModeOn
		var ended [2][]float64
		for arm, on := range []bool{false, true} {
			w.Copies, w.Prefill.Replicate = on, on
			l := w.live(t)
			for _, h := range horizons {
				ended[arm] = append(ended[arm], l.rps(h))
			}
			rps[arm] += l.rps(w.Until) / float64(seeds)
			ttft[arm] += l.mean(func(r *row) float64 { return r.ttft.Seconds() }) / float64(seeds)
			e2e[arm] += l.mean(func(r *row) float64 { return r.e2e.Seconds() }) / float64(seeds)
			reuse[arm] += l.reuse() / float64(seeds)
			sent += l.sums["sent_total replicate"] / float64(seeds)
			tokens += l.sums["copy_tokens_total replicate"] / float64(l.computed()) / float64(seeds)
		}
		for i := range horizons {
			ratio[i] = append(ratio[i], ended[1][i]/ended[0][i])
		}
	}
	gains := ""
	for i, h := range horizons {
		gains += fmt.Sprintf(" %v: %s;", h, percent(ratio[i]))
	}
	t.Logf("| %s | %d | %.3f → %.3f |%s | %.3f → %.3f | %.2f → %.2f | %.3f → %.3f | %.1f | %.1f %% |",
		name, seeds, rps[0], rps[1], gains, ttft[0], ttft[1], e2e[0], e2e[1], reuse[0], reuse[1], sent, 100*tokens)
	return rps
}

// percent prints the mean of paired ratios as a change, with its 95 % interval.
func percent(v []float64) string {
	mean, upper := ratios(v)
	if len(v) < 2 {
		return fmt.Sprintf("%+.2f %%", 100*(mean-1))
	}
	return fmt.Sprintf("%+.2f ± %.2f %%", 100*(mean-1), 100*(upper-mean))
}

// TestLoad_ReplicateRaisesTheSeedWorkload: copies of the hot head raise the throughput of
// the project's shared-prefix workload with staggered starts, and no other workload of
// decision 0010 loses more than 2 % by them.
func TestLoad_ReplicateRaisesTheSeedWorkload(t *testing.T) {
	seeds, size := uint64(5), 1
	if soak {
		seeds, size = 20, 2
	}
	seed := func(clients int) func(uint64) testcluster.Workload {
		return func(s uint64) testcluster.Workload { return testcluster.Seed(8*clients, s) }
	}
	few := func(n uint64) uint64 { // as many seeds where a run takes longer
		if soak {
			return n
		}
		return 1
	}
	t.Log("| workload | seeds | rps | gain by horizon | TTFT mean s | E2E mean s | reuse | copies sent | of what clients compute |")
	crowd := func(clients int) town {
		return town{Workers: 8, Clients: clients, Stagger: time.Minute, Until: 4 * time.Minute}
	}
	if r := arms(t, "seed, c = 8, staggered", crowd(8), seeds, seed(8)); r[1] <= r[0] {
		t.Errorf("rps %.4f without and %.4f with replicate", r[0], r[1])
	}
	hot := func(output int) func(uint64) testcluster.Workload {
		return func(s uint64) testcluster.Workload {
			return testcluster.Siblings(500*size, 8_000, 200, output, 0, s)
		}
	}
	simultaneous := crowd(8)
	simultaneous.Stagger = 0
	small := town{Workers: 4, Clients: 16, Stagger: 5 * time.Second}
	for _, c := range []struct {
		name  string
		town  town
		seeds uint64
		chats func(uint64) testcluster.Workload
	}{
		{"seed, c = 8, simultaneous", simultaneous, few(5), seed(8)},
		{"seed, c = 16, staggered", crowd(16), few(10), seed(16)},
		{"seed, c = 32, staggered", crowd(32), few(6), seed(32)},
		{"seed, c = 64, staggered", crowd(64), few(4), seed(64)},
		{"agents, c = 72", crowd(72), few(3), func(s uint64) testcluster.Workload { return testcluster.Agents(250, s) }},
		{"agents, c = 104", crowd(104), few(3), func(s uint64) testcluster.Workload { return testcluster.Agents(250, s) }},
		{"FC-61, answers of 30", small, few(5), hot(30)},
		{"FC-61, answers of 150", small, few(5), hot(150)},
		{"FC-61, answers of 600", small, few(5), hot(600)},
	} {
		if r := arms(t, c.name, c.town, c.seeds, c.chats); r[1] < 0.98*r[0] {
			t.Errorf("%s: rps %.4f without and %.4f with replicate", c.name, r[0], r[1])
		}
	}
}

// TestLoad_ReplicateByHorizon: the gain is in the time in which the fleet fills; longer runs
// do not lose it.
func TestLoad_ReplicateByHorizon(t *testing.T) {
	seeds := uint64(1)
	if soak {
		seeds = 20
	}
	w := town{Workers: 8, Clients: 8, Stagger: time.Minute, Until: 12 * time.Minute}
	long := arms(t, "seed, c = 8, staggered", w, seeds, func(s uint64) testcluster.Workload { return testcluster.Seed(80, s) })
	w.Until = 0 // as the benchmark counts: to the end of the last conversation
	whole := arms(t, "the same, 32 conversations to the end", w, seeds, func(s uint64) testcluster.Workload { return testcluster.Seed(32, s) })
	if long[1] < 0.98*long[0] || whole[1] < 0.98*whole[0] {
		t.Errorf("rps %v over 12 minutes, %v to the end", long, whole)
	}
}
