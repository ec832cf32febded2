package prefill

import (
	"math"
	"time"
)

const (
	gapBuckets = 24
	gapFirst   = 1.0 // seconds, the end of the first bucket; each next one ends 4/3 later
	gapGrowth  = 4.0 / 3
	gapKept    = 0.998 // of what was counted, per return
	gapProof   = 20    // conversations that came back or did not, before it is believed
)

// gaps is how long users stay away: returns by the time since the last turn's end, and
// conversations that did not return in 15 minutes. Decayed counts.
type gaps struct {
	back [gapBuckets]float64
	lost float64
	n    int
}

func gapBucket(gap time.Duration) int {
	s := gap.Seconds() / gapFirst
	if s <= 1 {
		return 0
	}
	return min(int(math.Ceil(math.Log(s)/math.Log(gapGrowth))), gapBuckets-1)
}

// add counts a conversation that came back after a gap, or is lost.
func (g *gaps) add(gap time.Duration, lost bool) {
	for i := range g.back {
		g.back[i] *= gapKept
	}
	g.lost *= gapKept
	g.n++
	if lost {
		g.lost++
		return
	}
	g.back[gapBucket(gap)]++
}

// within returns the chance that a user who has been away for so long comes back within
// the time that follows; ok is false while too little is known.
func (g *gaps) within(away, next time.Duration) (p float64, ok bool) {
	if g.n < gapProof {
		return 0, false
	}
	from, to := gapBucket(away), gapBucket(away+next)
	soon, all := 0.0, g.lost
	for i := from + 1; i < gapBuckets; i++ {
		all += g.back[i]
		if i <= to {
			soon += g.back[i]
		}
	}
	if all < 1 {
		return 0, true // nobody has stayed away for so long and come back
	}
	return soon / all, true
}
