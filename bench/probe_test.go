package bench

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/bench/report"
	"github.com/warmroute/warmroute/internal/sim"
)

// TestAB_ProbesShowTheCostToOthers: an engine that is 30 % slower while the treatment runs
// slows the probes too, at a constant rate in both arms; one that is not does not.
func TestAB_ProbesShowTheCostToOthers(t *testing.T) {
	play := func(effect float64) (x *report.AB) {
		synctest.Test(t, func(t *testing.T) {
			engine := &moody{r: rand.New(rand.NewPCG(1, 2)), treatment: math.Log(effect), conditions: .02}
			transport, stop := simulated(t, sim.Config{Engine: sim.EngineConfig{Profile: engine}})
			defer stop()
			var err error
			x, err = AB(t.Context(), ABConfig{
				Config: Config{URL: "http://sim", Users: 8, Turns: 4, UserTokens: 128, MaxCompletionTokens: 20,
					MeanDelay: 2 * time.Second, Stagger: time.Second, IgnoreEOS: true, Seed: 1, Transport: transport},
				Pairs: 4, ProbeRate: 5, OnBlock: func(_, _ int, treatment bool) { engine.block(treatment) },
			})
			if err != nil {
				t.Fatal(err)
			}
		})
		return x
	}
	x := play(1.3)
	for i := range x.Blocks {
		b := &x.Blocks[i]
		if want := 5 * time.Duration(b.Duration).Seconds(); math.Abs(float64(len(b.Probes))-want) > 12 {
			t.Errorf("block %d of %v has %d probes, want %.0f", i, time.Duration(b.Duration), len(b.Probes), want)
		}
		for _, q := range b.Probes {
			if !q.OK || q.Lag != 0 || *q.CachedTokens > 16 || *q.PromptTokens < 60 {
				t.Fatalf("a probe: %+v, %d of %d cached", q, *q.CachedTokens, *q.PromptTokens)
			}
		}
	}
	r := &x.Result
	if r.ProbeVerdict != report.Worse || len(r.Probes) != 2 || r.Probes[0].Ratio < 1.15 || r.Probes[0].Ratio > 1.45 || r.A.Turns != 4*8*4 {
		t.Errorf("30 %% slower: %s %+v, %d turns in A", r.ProbeVerdict, r.Probes, r.A.Turns)
	}
	var text strings.Builder
	if err := x.WriteText(&text); err != nil || !strings.Contains(text.String(), "\ncost to others: worse: probe TTFT p50 × 1.") {
		t.Errorf("%v %s", err, text.String())
	}
	if same := play(1); same.Result.ProbeVerdict != report.NoDifference {
		t.Errorf("the same engine: %s %+v", same.Result.ProbeVerdict, same.Result.Probes)
	}
}

// TestRun_ToolLoop: each turn calls the tool as often as asked, answers it after its delay,
// and ends in text; turns are measured by their first request.
func TestRun_ToolLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, stop := simulated(t, sim.Config{})
		defer stop()
		cfg := Config{URL: "http://sim", Users: 2, Turns: 3, UserTokens: 40, MaxCompletionTokens: 60,
			ToolSteps: 2, ToolDelay: 700 * time.Millisecond, MeanDelay: time.Second, Seed: 1, Transport: transport}
		r, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r.Planned != 18 || r.Successful != 18 || r.Dropped != 0 || r.AggregateTTFT.Count != 6 || r.PerTurnTTFT[1].Count != 2 {
			t.Fatalf("%d planned, %d answered, %d dropped, TTFT of %d", r.Planned, r.Successful, r.Dropped, r.AggregateTTFT.Count)
		}
		for i := range r.Records {
			q := &r.Records[i]
			want := "tool_calls"
			if q.Step == 2 {
				want = "stop"
			}
			if q.Turn != i/3%3 || q.Step != i%3 || q.Finish != want && q.Finish != "length" {
				t.Errorf("request %d is turn %d step %d and ends with %q", i, q.Turn, q.Step, q.Finish)
			}
			if q.Step > 0 && q.Planned-r.Records[i-1].End != report.Micros(cfg.ToolDelay) {
				t.Errorf("the tool took %v", time.Duration(q.Planned-r.Records[i-1].End))
			}
			if q.Step > 0 && *q.PromptTokens < *r.Records[i-1].PromptTokens+40 {
				t.Errorf("turn %d step %d: the prompt grows from %d to %d", q.Turn, q.Step, *r.Records[i-1].PromptTokens, *q.PromptTokens)
			}
		}
	})
}
