package prefill

import (
	"math"
	"time"
)

// Return gaps, from the end of a turn to the arrival of the next one, are counted in bins
// whose bounds grow by √2 from 50 ms; the last bin ends where a conversation is given up.
const (
	gapBins  = 30
	firstGap = 50 * time.Millisecond
)

// gapBounds holds the upper bounds of the bins in seconds: 0.05, 0.07, 0.1 … 820, 900.
var gapBounds = func() (b [gapBins]float64) {
	for i := range b {
		b[i] = firstGap.Seconds() * math.Pow(2, float64(i)/2)
	}
	b[gapBins-1] = openLife.Seconds()
	return b
}()

// What gaps look like before any was seen: log-normal, in seconds. The tools' are those of
// coding agents (Claude Code traces, 41,245 gaps), the users' those of a chat service.
var startGaps = map[Trigger]shares{
	TriggerTurn:  lognormal(130, 2.1),
	TriggerTools: lognormal(9, 1.6),
}

// shares says which part of the returns falls into each bin.
type shares [gapBins]float64

// lognormal returns a distribution by its median and σ, cut off at the last bound.
func lognormal(median, sigma float64) (s shares) {
	below := func(x float64) float64 { return math.Erfc(-math.Log(x/median)/sigma/math.Sqrt2) / 2 }
	last, all := 0.0, below(gapBounds[gapBins-1])
	for i, bound := range gapBounds {
		p := below(bound) / all
		s[i], last = p-last, p
	}
	return s
}

// gaps is a histogram of return gaps in which older ones weigh less.
type gaps struct {
	counts [gapBins]float64
	sum    float64
}

func (g *gaps) add(gap time.Duration) {
	i := 0
	for i < gapBins-1 && gap.Seconds() > gapBounds[i] {
		i++
	}
	for j := range g.counts {
		g.counts[j] *= returnKept
	}
	g.counts[i]++
	g.sum = g.sum*returnKept + 1
}

// over returns the shares of g, filled in by weight returns that are like prior.
func (g *gaps) over(prior *shares, weight float64) (s shares) {
	for i := range s {
		s[i] = (weight*prior[i] + g.counts[i]) / (weight + g.sum)
	}
	return s
}

// before returns the share of the gaps that are shorter than x seconds, and the mean of
// those times their share. Gaps are even within a bin.
func (s *shares) before(x float64) (share, moment float64) {
	low := 0.0
	for i, high := range gapBounds {
		if x <= low {
			break
		}
		to := min(x, high)
		part := s[i] * (to - low) / (high - low)
		share += part
		moment += part * (low + to) / 2
		low = high
	}
	return share, moment
}

// quantile returns the gap, in seconds, that a share q of the returns is shorter than.
func (s *shares) quantile(q float64) float64 {
	low, sum := 0.0, 0.0
	for i, high := range gapBounds {
		if sum+s[i] >= q && s[i] > 0 {
			return low + (high-low)*(q-sum)/s[i]
		}
		low, sum = high, sum+s[i]
	}
	return low
}

// forecast is what to expect of a warm-up that is sent at this moment.
type forecast struct {
	Return   float64 // probability that the next turn comes at all
	Resident float64 // and does before what is warmed is evicted
	InTime   float64 // and not before the warm-up is done
	Saved    float64 // seconds of prefill that the next turn will not have to wait for
}

// forecast looks ahead of a turn of scope s that ended so many seconds ago, at a warm-up
// that takes and whose blocks stay for so many. A next turn that comes midway cancels the
// warm-up and still finds what was done by then.
func (l *learning) forecast(s scope, waited, takes, residency float64) (f forecast) {
	p, gaps := l.probability(s), l.gaps(s)
	gone, _ := gaps.before(waited)
	left := 1 - p*gone // that it has not come yet
	if left <= 0 {
		return forecast{}
	}
	done, doneSum := gaps.before(waited + takes)
	kept, _ := gaps.before(waited + takes + residency)
	_, goneSum := gaps.before(waited)
	f.Return = p * (1 - gone) / left
	f.Resident = p * (kept - gone) / left
	f.InTime = p * (kept - done) / left
	midway := doneSum - goneSum - waited*(done-gone) // Σ of the time under way
	f.Saved = f.InTime*takes + p*max(midway, 0)/left
	return f
}

// gaps returns when the next turns of a scope come, if they do: the tenant's own
// experience, filled in by that of all tenants, filled in by the start values.
func (l *learning) gaps(s scope) shares {
	start := startGaps[s.trigger]
	all := l.pools[s.trigger].gaps.over(&start, poolWeight)
	if e := l.scopes[s]; e != nil {
		return e.returns.gaps.over(&all, ownWeight)
	}
	return all
}
