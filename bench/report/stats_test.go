package report

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func near(t *testing.T, what string, got, want, by float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > by {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestQuantile_Type7: values that R's quantile(type = 7) and numpy give.
func TestQuantile_Type7(t *testing.T) {
	v := []float64{10, 20, 30, 40}
	near(t, "p50", quantileOf(v, .5), 25, 0)
	near(t, "p90", quantileOf(v, .9), 37, 1e-12)
	near(t, "p25", quantileOf(v, .25), 17.5, 0)
	near(t, "min", quantileOf(v, 0), 10, 0)
	near(t, "max", quantileOf(v, 1), 40, 0)
	near(t, "one value", quantileOf([]float64{7}, .99), 7, 0)
	if !math.IsNaN(quantileOf(nil, .5)) || !math.IsNaN(median(nil)) {
		t.Error("no values have a quantile")
	}
}

func TestMedian_EqualsSorting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := 1; n < 200; n++ {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(r.IntN(50)) // many ties
		}
		sorted := slices.Sorted(slices.Values(v))
		if got, want := median(v), quantileOf(sorted, .5); got != want {
			t.Fatalf("n=%d: %v, want %v of %v", n, got, want, sorted)
		}
	}
}

// TestStudent: table values of Student's distribution.
func TestStudent(t *testing.T) {
	for df, want := range map[float64]float64{1: 12.7062, 2: 4.30265, 4: 2.77645, 9: 2.26216, 30: 2.04227, 1000: 1.96234} {
		near(t, "t.975", studentQuantile(.975, df), want, 1e-4)
		near(t, "t.025", studentQuantile(.025, df), -want, 1e-4)
	}
	near(t, "t.8, df 4", studentQuantile(.8, 4), 0.94096, 1e-4)
	near(t, "cdf(0)", studentCDF(0, 4), .5, 1e-12)
	near(t, "cdf(-3), df 9", 2*studentCDF(-3, 9), 0.014956, 1e-5)
}

func TestHolm(t *testing.T) {
	es := []Estimate{{P: .04}, {P: .01}, {P: .03}, {P: .9}}
	holm(es)
	for i, want := range []float64{.09, .04, .09, .9} {
		near(t, "holm", es[i].Holm, want, 1e-12)
	}
}

func TestSignTest(t *testing.T) {
	near(t, "0 of 6", signTest(0, 6), 2./64, 1e-12)
	near(t, "6 of 6", signTest(6, 6), 2./64, 1e-12)
	near(t, "1 of 6", signTest(1, 6), 14./64, 1e-12)
	near(t, "3 of 6", signTest(3, 6), 1, 1e-12)
}

// TestFC89_HitRateIsSumOverSum: three turns of 100, 300 and 900 tokens with 0, 90 and 280
// cached are 28.5 %, whatever the average of their ratios; turn 1 counts, and an answer
// that says nothing of cached tokens is no zero.
func TestFC89_HitRateIsSumOverSum(t *testing.T) {
	tokens := func(turn, prompt int, cached *int) Record {
		return Record{Turn: turn, OK: true, TTFT: 1, E2E: 2, PromptTokens: &prompt, CachedTokens: cached}
	}
	n := func(i int) *int { return &i }
	r := Run{Workload: Workload{Users: 1, Turns: 3}, Records: []Record{tokens(0, 100, n(0)), tokens(1, 300, n(90)), tokens(2, 900, n(280))}}
	r.Summarise()
	if got := r.Tokens.describe(); got != "28.5 % of prompt tokens were cached (370 of 1300)" {
		t.Error(got)
	}
	near(t, "hit", *r.CacheHit, 370./1300, 1e-12)

	r.Records = append(r.Records, Record{User: 1, Turn: 0, OK: true, TTFT: 1, E2E: 2, PromptTokens: n(5000)})
	r.Summarise()
	if got := r.Tokens.describe(); got != "28.5 % of prompt tokens were cached (370 of 1300); only 3 of 4 answers said so, the others count for nothing" {
		t.Error(got)
	}
	r.Records = r.Records[3:]
	r.Summarise()
	if r.CacheHit != nil {
		t.Errorf("a run in which no answer says cached tokens has the hit rate %v", *r.CacheHit)
	}
}
