package main

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/warmroute/warmroute/bench"
	"github.com/warmroute/warmroute/bench/report"
)

// soak makes the runs as large as a bound on latencies needs. Smaller ones, on a machine
// that does other things too, bound what is cached only, and that less tightly: a warm-up
// that comes late for want of a processor is no fault.
var soak = os.Getenv("WARMROUTE_SOAK") == "1"

// faster tells whether the headline's whole interval is below the limit; small runs do not
// say.
func faster(x *report.AB, limit float64) bool {
	h := x.Result.Headline
	return h != nil && (h.High < limit || !soak)
}

// share is the part that must be cached.
func share(full float64) float64 {
	if soak {
		return full
	}
	return full - 0.2
}

// play compares warm-ups off and on over the demo's fleet, on real sockets.
func play(t *testing.T, template string, change func(*bench.ABConfig)) *report.AB {
	t.Helper()
	t.Parallel() // they wait for clocks, not for processors
	work := demoWorkload(template)
	work.Users, work.Turns, work.UserTokens, work.MeanDelay, work.Stagger = 4, 3, 60, 2*time.Second, 500*time.Millisecond
	change(&work)
	x, err := demoPart(t.Context(), template, 300*time.Microsecond, work, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s", template, x.Sentence())
	return x
}

// slow is a think time in which every warm-up of these tests can end.
const slow = report.Micros(time.Second)

// warmable is the share of the tokens of later turns' prompts that a warm-up can have
// cached, that was cached: whole blocks before the new message, if its user took his time.
func warmable(x *report.AB, treatment bool, block, message int) float64 {
	cached, all := 0, 0
	for i := range x.Blocks {
		if x.Blocks[i].Treatment != treatment {
			continue
		}
		for _, q := range x.Blocks[i].Records {
			if q.OK && q.Turn > 0 && q.Step == 0 && q.Think >= slow {
				can := (*q.PromptTokens - message) / block * block
				cached, all = cached+min(*q.CachedTokens, can), all+can
			}
		}
	}
	return float64(cached) / float64(all)
}

// TestSpeculation_ToolLoops: after three steps of a tool loop whose client echoes reasoning,
// a reasoning model's next user turn finds almost all of its prompt cached and waits at
// most a third as long; strangers notice nothing.
func TestSpeculation_ToolLoops(t *testing.T) {
	x := play(t, "thinking", func(c *bench.ABConfig) {
		c.ToolSteps, c.ToolDelay, c.IgnoreEOS, c.EchoReasoning, c.Turns, c.ProbeRate = 3, 200*time.Millisecond, false, true, 2, 4
		if soak {
			c.Users, c.Pairs = 8, 6
		}
	})
	r := &x.Result
	a, b := warmable(x, false, 1, 0), warmable(x, true, 1, 0)
	t.Logf("cached of the whole prompts of turns ≥ 2: %.3f without, %.3f with warm-ups; probes %s %+v", a, b, r.ProbeVerdict, r.Probes)
	if a >= 0.3 || b < share(0.9) || !faster(x, 1./3) {
		t.Errorf("%s; cached %.3f and %.3f", x.Sentence(), a, b)
	}
	if r.ProbeVerdict == "" || r.ProbeVerdict == report.Worse && soak {
		t.Errorf("probes: %q %+v", r.ProbeVerdict, r.Probes)
	}
}

// TestSpeculation_Chats: a reasoning model's next turn finds what can be cached.
func TestSpeculation_Chats(t *testing.T) {
	x := play(t, "thinking", func(c *bench.ABConfig) {})
	const message = 70 // tokens of the shortest user message, without its frame
	a, b := warmable(x, false, 64, message), warmable(x, true, 64, message)
	t.Logf("cached of what can be: %.3f without, %.3f with warm-ups", a, b)
	if b < share(0.98) || !faster(x, 1) {
		t.Errorf("%s; %.3f of what can be is cached", x.Sentence(), b)
	}
}

// TestSpeculation_PlainTemplate: where the template keeps what was said, nothing is sent.
func TestSpeculation_PlainTemplate(t *testing.T) {
	x := play(t, "plain", func(c *bench.ABConfig) { c.MaxCompletionTokens, c.Users, c.MeanDelay = 200, 8, 300*time.Millisecond })
	sent := x.Result.B.Counters[`warmroute_prefill_sent_total{trigger="turn"}`]
	if limit := 0.01 * float64(x.Result.B.Turns); sent > max(limit, 2) || soak && sent > limit {
		t.Errorf("plain template: %v warm-ups for %d turns", sent, x.Result.B.Turns)
	}
}
