package report

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

// noisy draws the blocks of an A/B run from a model of a serving machine: conversations
// differ (σ 0.25, the same ones in both arms), turns differ (σ 0.35), 2 % of the turns are
// in a tail, and the machine has another mood in each block (σ 0.03). effect is the true
// ratio of B's times.
func noisy(r *rand.Rand, pairs, users int, effect float64) *AB {
	x := &AB{Pairs: pairs, Workload: Workload{Users: users, Turns: 8, Seed: r.Uint64()}}
	turns := make([]int, users)
	talk := make([]float64, users)
	for u := range turns {
		turns[u] = 2 + r.IntN(7)
		talk[u] = .25 * r.NormFloat64()
	}
	usage := 100
	for i := range 2 * pairs {
		b := Block{Pair: i / 2, Treatment: i%2 == 1}
		mood := .03 * r.NormFloat64()
		if b.Treatment {
			mood += math.Log(effect)
		}
		for u := range users {
			for turn := range turns[u] {
				d := float64(200*time.Millisecond) * math.Exp(talk[u]+mood+.35*r.NormFloat64())
				if r.IntN(50) == 0 {
					d *= 4
				}
				b.Records = append(b.Records, Record{User: u, Turn: turn, OK: true, TTFT: Micros(d), E2E: Micros(d) + Micros(time.Second), PromptTokens: &usage, CompletionTokens: &usage})
			}
		}
		x.Blocks = append(x.Blocks, b)
	}
	return x
}

// TestAB_CallsNoiseNoiseAndFindsTenPercent: at the planned size of 5 pairs and 100
// conversations, nothing is called different in more than 7 % of A/A runs, and a true
// −10 % is found in at least 85 %. The full numbers, 400 and 200 runs, with
// WARMROUTE_SOAK=1.
func TestAB_CallsNoiseNoiseAndFindsTenPercent(t *testing.T) {
	same, changed := 16, 8
	if testing.Short() { // under the race detector
		same, changed = 2, 2
	}
	if os.Getenv("WARMROUTE_SOAK") != "" {
		same, changed = 400, 200
	}
	r := rand.New(rand.NewPCG(11, 7))
	count := func(runs int, effect float64, verdicts ...string) (n int) {
		for range runs {
			x := noisy(r, 5, 100, effect)
			x.Judge()
			for _, v := range verdicts {
				if x.Result.Verdict == v {
					n++
				}
			}
		}
		return n
	}
	// A cut is held to what it can show: binomial bounds of the same probabilities.
	allowed, wanted := same*7/100, changed*85/100
	if same < 400 {
		allowed, wanted = same/4, changed*3/4
	}
	if n := count(same, 1, Better, Worse); n > allowed {
		t.Errorf("%d of %d A/A runs are called different, at most %d may be", n, same, allowed)
	} else {
		t.Logf("A/A: %d of %d called different", n, same)
	}
	if n := count(changed, .9, Better); n < wanted {
		t.Errorf("a true −10 %% is found in %d of %d runs, at least %d must be", n, changed, wanted)
	} else {
		t.Logf("−10 %%: %d of %d found", n, changed)
	}
}
