package prefill

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// claims tells what a headline says to an operator: that warming saves, or that it costs.
func claims(i Interval) (saves, costs bool) { return i.Known && i.Low > 0, i.Known && i.High < 0 }

// most is the number of n runs that a share p of them exceeds once in 1,000 times at most.
func most(n int, p float64) int {
	return int(math.Ceil(float64(n)*p + 3.1*math.Sqrt(float64(n)*p*(1-p))))
}

// TestProof_TheHeadlineIsRight for the operator who reads it: where a warm-up changes
// nothing it claims a saving in no more runs than its interval allows, and where one saves
// it says so. TTFTs have the long tail of a busy fleet (log-normal, σ 0.8), and 5 % of the
// turns are held out. That it costs is claimed more often, because a headline that says so
// by chance closes the gate and stays as it is; the tenant's own comparison goes on.
func TestProof_TheHeadlineIsRight(t *testing.T) {
	const runs, turns = 400, 2000
	play := func(seed uint64, factor float64) (headline, own Interval) {
		var l learning
		l.init()
		r := rand.New(rand.NewPCG(seed, 17))
		s := scope{"", "m", TriggerTurn}
		for range turns {
			g, probe := l.assign(s, defaultHoldout, r)
			ttft := 0.2 * math.Exp(0.8*r.NormFloat64())
			if g == groupWarmed {
				ttft *= factor
			}
			l.measured(&conversation{scope: s, group: g, probe: probe}, time.Duration(ttft*1e9))
		}
		return l.total.saving(), l.of(s).saving()
	}
	saves, costs, owns, found := 0, 0, 0, 0
	for seed := range uint64(runs) {
		i, own := play(seed, 1)
		if s, c := claims(i); s {
			saves++
		} else if c {
			costs++
		}
		if s, _ := claims(own); s {
			owns++
		}
		if i, _ := play(seed, 0.5); i.Low > 0 {
			found++
		}
	}
	t.Logf("without effect: %d of %d runs claim a saving, %d a cost; the tenant's own says %d savings; a saving of half is found in %d", saves, runs, costs, owns, found)
	if saves > most(runs, 0.025) || owns > most(runs, 0.025) || costs > most(runs, 0.1) {
		t.Errorf("without effect %d of %d runs claim a saving, %d a cost, %d a tenant's saving", saves, runs, costs, owns)
	}
	if found < runs*95/100 {
		t.Errorf("a saving of half of TTFT is found in %d of %d runs", found, runs)
	}
}

// TestProof_WholeRuns: the same through the whole machine in virtual time. Workers that
// answer warm-ups without computing them are the A/A run, real ones the A/B.
func TestProof_WholeRuns(t *testing.T) {
	runs := 16
	if soak {
		runs = 200
	}
	c := crowd{
		Workers: 2, Users: 6, Turns: 240, PerChat: 6, Think: expo(6 * time.Second), User: between(50, 150), Reply: between(1000, 2000),
		Output: 20, Mode: ModeOn, Holdout: 0.5,
	}
	saves, costs, found, turns := 0, 0, 0, 0
	for seed := range uint64(runs) {
		c.Seed, c.Placebo = seed+1, true
		h := play(t, c).debug.Headline
		if s, k := claims(h.SavedSeconds); s {
			saves++
		} else if k {
			costs++
		}
		turns += h.Held + h.Warmed
		c.Placebo = false
		if s, _ := claims(play(t, c).debug.Headline.SavedSeconds); s {
			found++
		}
	}
	t.Logf("A/A: %d of %d runs claim a saving, %d a cost, of %d turns each; A/B: %d find it", saves, runs, costs, turns/runs, found)
	if saves > most(runs, 0.025) || costs > most(runs, 0.1) {
		t.Errorf("without effect %d of %d runs claim a saving, %d a cost", saves, runs, costs)
	}
	if found < runs*95/100 {
		t.Errorf("the saving is found in %d of %d runs", found, runs)
	}
}
