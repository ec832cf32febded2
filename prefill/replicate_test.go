package prefill

import (
	"os"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/testcluster"
)

func TestLoad_Try(t *testing.T) {
	run := func(name string, w town, seeds uint64, chats func(seed uint64) testcluster.Workload) {
		var sum [3]float64
		for seed := range seeds {
			w.Chats, w.Seed, w.Mode = chats(seed+1).Conversations, seed+1, ModeOn
			var l [3]lived
			for i := range 3 {
				w.Copies, w.Prefill.Replicate = i > 0, i > 0
				os.Setenv("VARIANT", []string{"", "A", "B"}[i])
				l[i] = w.live(t)
				sum[i] += l[i].rps()/float64(seeds)
			}
			t.Logf("%-14s seed %d rps %.4f %.4f %.4f ttft %.3f %.3f %.3f tok %v ", name, seed, l[0].rps(), l[1].rps(), l[2].rps(), 
				l[0].mean(func(r *row) float64 { return r.ttft.Seconds() }), l[1].mean(func(r *row) float64 { return r.ttft.Seconds() }),l[2].mean(func(r *row) float64 { return r.ttft.Seconds() }), l[2].sums["copy_tokens_total replicate"])
		}
		t.Logf("%s mean %.4f ×%.4f ×%.4f", name, sum[0], sum[1]/sum[0], sum[2]/sum[0])
	}
	for _, s := range []time.Duration{30,60} {
	run("seed 8", town{Workers: 8, Clients: 8, Stagger: s * time.Second}, 8, func(s uint64) testcluster.Workload { return testcluster.Seed(32, s) })
	run("seed 16", town{Workers: 8, Clients: 16, Stagger: s * time.Second}, 6, func(s uint64) testcluster.Workload { return testcluster.Seed(64, s) })
	run("seed 32", town{Workers: 8, Clients: 32, Stagger: s * time.Second}, 4, func(s uint64) testcluster.Workload { return testcluster.Seed(96, s) })
	}
}
