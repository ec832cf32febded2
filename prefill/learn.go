package prefill

import (
	"math"
	"math/rand/v2"
	"time"
)

const (
	startTurn  = 0.5  // p(return) after an answer, before anything is known
	startTools = 0.95 // after tool calls
	poolWeight = 4    // of the start value, in returns, against those of all tenants
	ownWeight  = 8    // of all tenants' against one tenant's own
	returnKept = 0.995

	proof      = 20    // turns of each group before the learning gate may close
	probeEvery = 20    // turns of a closed scope of which one is warmed
	armKept    = 0.998 // of a group's weight per new turn: about 500 turns count
	totalKept  = 0.9995

	takesOver = 20 // warm-ups that count for what one takes

	maxScopes = 4096
)

// scope is what is learned apart: one tenant's use of one model, by trigger.
type scope struct {
	key, model string
	trigger    Trigger
}

// learning is what experience says: who comes back, and whether warming pays. Guarded
// by Prefiller.mu.
type learning struct {
	scopes    map[scope]*experience
	pools     map[Trigger]*returns
	total     experiment // turns whose group the holdout chose
	forgotten uint64     // scopes dropped for room
}

type experience struct {
	returns
	experiment
}

// returns counts conversations that came back, when, and that did not.
type returns struct {
	back, lost float64
	gaps       gaps
}

func (r *returns) add(back, lost float64) {
	r.back = r.back*returnKept + back
	r.lost = r.lost*returnKept + lost
}

// experiment compares two groups that chance has made. In a scope whose gate is closed
// almost all turns are the held ones.
type experiment struct {
	held, warmed arm
	spent        float64 // engine seconds × utilisation of the warm-ups behind warmed
	takes        float64 // engine seconds of a warm-up, of late; 0: none was sent
}

// arm is one group's TTFT in seconds: decayed sums.
type arm struct {
	turns          int // without decay
	w, w2          float64
	sum, sq        float64
	logSum, logSqr float64
}

func (a *arm) add(seconds, kept float64) {
	l := math.Log(max(seconds, 1e-6))
	a.turns++
	a.w = a.w*kept + 1
	a.w2 = a.w2*kept*kept + 1
	a.sum = a.sum*kept + seconds
	a.sq = a.sq*kept + seconds*seconds
	a.logSum = a.logSum*kept + l
	a.logSqr = a.logSqr*kept + l*l
}

func (l *learning) init() {
	l.scopes = map[scope]*experience{}
	l.pools = map[Trigger]*returns{TriggerTurn: {}, TriggerTools: {}}
}

// of returns the experience of a scope.
func (l *learning) of(s scope) *experience {
	e := l.scopes[s]
	if e == nil {
		if len(l.scopes) >= maxScopes {
			for old := range l.scopes { // any: map order is random
				delete(l.scopes, old)
				l.forgotten++
				break
			}
		}
		e = &experience{}
		l.scopes[s] = e
	}
	return e
}

// back counts a next turn that came so long after the end of the one before.
func (l *learning) back(s scope, gap time.Duration) {
	for _, r := range []*returns{&l.of(s).returns, l.pools[s.trigger]} {
		r.add(1, 0)
		r.gaps.add(gap)
	}
}

func (l *learning) lost(s scope) {
	l.of(s).add(0, 1)
	l.pools[s.trigger].add(0, 1)
}

// probability returns p(return): the tenant's own experience, filled in by that of all
// tenants, filled in by the start value.
func (l *learning) probability(s scope) float64 {
	p := startTurn
	if s.trigger == TriggerTools {
		p = startTools
	}
	pool := l.pools[s.trigger]
	p = (poolWeight*p + pool.back) / (poolWeight + pool.back + pool.lost)
	if e := l.scopes[s]; e != nil {
		p = (ownWeight*p + e.returns.back) / (ownWeight + e.returns.back + e.returns.lost)
	}
	return p
}

// closed tells whether warming is known not to pay: what it has saved its turns is less
// than the engine time that it took from others.
func (e *experiment) closed() bool {
	return e.held.turns >= proof && e.warmed.turns >= proof && e.saving().Value*e.warmed.w < e.spent
}

// assign lets chance choose the group of a turn that every gate lets pass. probe marks
// a warm-up in a scope that is closed.
func (l *learning) assign(s scope, holdout float64, r *rand.Rand) (g group, probe bool) {
	if holdout > 0 && l.of(s).closed() {
		if r.Float64() < 1.0/probeEvery {
			return groupWarmed, true
		}
		return groupClosed, false
	}
	if r.Float64() < holdout {
		return groupHoldout, false
	}
	return groupWarmed, false
}

// spent counts the engine time of a warm-up that took so long.
func (l *learning) spent(c *conversation, took time.Duration) {
	e := l.of(c.scope)
	e.spent += min(took.Seconds(), c.warm.seconds) * c.warm.busy
	if e.takes == 0 {
		e.takes = c.warm.seconds
	}
	e.takes += (c.warm.seconds - e.takes) / takesOver
}

// measured counts the TTFT of the turn after c.
func (l *learning) measured(c *conversation, ttft time.Duration) {
	e, s := l.of(c.scope), ttft.Seconds()
	if c.group == groupWarmed {
		e.experiment.spent *= armKept
		e.warmed.add(s, armKept)
	} else {
		e.held.add(s, armKept)
	}
	switch {
	case c.group == groupWarmed && !c.probe:
		l.total.warmed.add(s, totalKept)
	case c.group == groupHoldout:
		l.total.held.add(s, totalKept)
	}
}

// Interval is an estimate with its 95 % confidence interval. It means something only
// where Known.
type Interval struct {
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Known bool    `json:"known"`
}

// saving returns the seconds that warming saves a returned turn: mean TTFT of the held
// group minus that of the warmed.
func (e *experiment) saving() Interval {
	return difference(e.held.mean, e.warmed.mean)
}

// ratio returns the typical TTFT of warmed turns as a share of the held ones': the
// ratio of geometric means.
func (e *experiment) ratio() Interval {
	i := difference(e.warmed.logMean, e.held.logMean)
	if !i.Known {
		return Interval{}
	}
	return Interval{math.Exp(i.Value), math.Exp(i.Low), math.Exp(i.High), true}
}

// estimate is a mean, the variance of that mean, and the degrees of freedom.
type estimate struct{ mean, variance, df float64 }

func (a *arm) mean() (estimate, bool)    { return a.estimate(a.sum, a.sq) }
func (a *arm) logMean() (estimate, bool) { return a.estimate(a.logSum, a.logSqr) }

func (a *arm) estimate(sum, sq float64) (estimate, bool) {
	if a.turns < 2 || a.w2 == 0 {
		return estimate{}, false
	}
	n := a.w * a.w / a.w2 // turns of equal weight that say as much
	mean := sum / a.w
	spread := max(sq/a.w-mean*mean, 0) * n / (n - 1)
	return estimate{mean, spread / n, n - 1}, true
}

// difference is Welch's interval of a − b.
func difference(a, b func() (estimate, bool)) Interval {
	x, ok := a()
	y, also := b()
	if !ok || !also {
		return Interval{}
	}
	v := x.variance + y.variance
	df := 1.0
	if v > 0 {
		df = v * v / (x.variance*x.variance/x.df + y.variance*y.variance/y.df)
	}
	d, half := x.mean-y.mean, student(df)*math.Sqrt(v)
	return Interval{d, d - half, d + half, true}
}

// student returns the 97.5 % quantile of Student's t (Cornish–Fisher expansion; within
// 1 % from 4 degrees of freedom on, too narrow below 3).
func student(df float64) float64 {
	const z = 1.959964
	df = max(df, 1)
	g1 := (z*z*z + z) / 4
	g2 := (5*math.Pow(z, 5) + 16*z*z*z + 3*z) / 96
	g3 := (3*math.Pow(z, 7) + 19*math.Pow(z, 5) + 17*z*z*z - 15*z) / 384
	return z + g1/df + g2/(df*df) + g3/(df*df*df)
}
