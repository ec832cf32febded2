package index

import (
	"math"
	"sync"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// A tick is the unit of last-touch times. 24 bits of them are four years.
const (
	tickSeconds = 8
	maxTick     = 1<<stampBits - 1
	ageTicks    = 256 // older blocks share one bucket: 34 minutes, e^(−6.8) at τ = 300 s
)

// ages counts one worker's GPU blocks by the tick in which they were last stored or
// matched: a ring over the last ageTicks ticks and one bucket for all older.
type ages struct {
	first uint32 // oldest tick of the ring
	older int
	ring  [ageTicks]uint32
}

// advance moves the ring so that it ends with tick now.
func (a *ages) advance(now uint32) {
	if now < a.first+ageTicks {
		return
	}
	to := now - ageTicks + 1
	for t := a.first; t < min(to, a.first+ageTicks); t++ {
		a.older += int(a.ring[t%ageTicks])
		a.ring[t%ageTicks] = 0
	}
	a.first = to
}

// add counts n more blocks (fewer if negative) of tick stamp, which is not in the
// future of the last advance.
func (a *ages) add(stamp uint32, n int) {
	if stamp < a.first {
		a.older += n
		return
	}
	a.ring[stamp%ageTicks] = uint32(int(a.ring[stamp%ageTicks]) + n)
}

// decayedOldest returns Σ e^(−idle age/τ) over the blocks longest idle at tick now.
func (a *ages) decayedOldest(blocks int, now uint32, tau time.Duration) float64 {
	if blocks <= 0 {
		return 0
	}
	// Below 5 s, less than a tick, the powers leave the range of a float64.
	step := tickSeconds / max(tau.Seconds(), 5)
	age := float64(now) - float64(a.first) + 1
	n := min(blocks, a.older)
	sum := float64(n) * math.Exp(-age*step)
	blocks -= n
	// Within a bucket the mean age counts: a block of the current tick is at most
	// half a tick old.
	weight, factor := math.Exp(-max(age-1, 0)*step), math.Exp(step)
	for t := a.first; t < a.first+ageTicks && blocks > 0; t++ {
		if c := int(a.ring[t%ageTicks]); c > 0 {
			n = min(blocks, c)
			sum += float64(n) * min(weight, 1)
			blocks -= n
		}
		weight *= factor
	}
	return sum
}

// workerBytes is the size of a worker, rounded up to the runtime's size class.
const workerBytes = 1152

// worker is what an exact index keeps per worker besides intervals.
type worker struct {
	// changing serialises the changes of one worker: a Drop or Replace, which lets
	// go of the index lock between slices, is not interleaved with an Apply. It is
	// taken before the index lock.
	changing sync.Mutex

	// Guarded by the index lock.
	held [kv.Tiers]int
	ages ages
}
