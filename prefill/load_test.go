package prefill

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/sim"
)

// soak makes the statistical tests run at the size that their bounds are meant for.
var soak = os.Getenv("WARMROUTE_SOAK") == "1"

// crowd is a closed loop of users, each with one conversation after the other.
type crowd struct {
	Workers, Users int
	Turns          int // of all users together
	PerChat        int // turns of one conversation
	Think          func(r *rand.Rand) time.Duration
	User, Reply    func(r *rand.Rand) int // tokens
	Output         int                    // tokens generated a turn; the rest of the reply costs nothing
	Leave          float64                // chance that a user ends the conversation after a turn
	Engine         sim.EngineConfig
	Mode           Mode
	Seed           uint64
	Holdout        float64
}

// played is what a crowd saw.
type played struct {
	later    []outcome // turns of a conversation after its first
	ttft     []float64 // of every turn, seconds
	elapsed  time.Duration
	outcomes map[string]float64
	debug    Snapshot
}

// play runs a crowd in virtual time. Users draw from their own generators, so two runs
// that differ in Mode alone meet the same lengths and think times.
func play(t *testing.T, c crowd) (p played) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Workers: c.Workers, Thinking: true, Engine: c.Engine,
			Prefill: Config{Default: c.Mode, Holdout: c.Holdout, Seed: c.Seed + 1}})
		g.quiet = true
		start := time.Now()
		var mu sync.Mutex
		var wg sync.WaitGroup
		left := c.Turns
		for u := range c.Users {
			r := rand.New(rand.NewPCG(c.Seed, uint64(u)))
			wg.Go(func() {
				time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
				for n := 0; ; n++ {
					ch := &chat{rig: g, name: fmt.Sprintf("%d.%d.%d", c.Seed, u, n)}
					for turn := range c.PerChat {
						user, reply, think, leave := c.User(r), c.Reply(r), c.Think(r), r.Float64() < c.Leave
						mu.Lock()
						left--
						over := left < 0
						mu.Unlock()
						if over {
							return
						}
						id := fmt.Sprintf("%s.%d", ch.name, turn)
						o := ch.turn(say{User: someText(id+"u", user), Reasoning: someText(id+"t", 40), Reply: someText(id+"r", reply), Output: c.Output})
						mu.Lock()
						p.ttft = append(p.ttft, o.TTFT.Seconds())
						if turn > 0 {
							p.later = append(p.later, o)
						}
						mu.Unlock()
						time.Sleep(think)
						if leave {
							break
						}
					}
				}
			})
		}
		wg.Wait()
		p.elapsed = time.Since(start)
		p.outcomes = g.counts()
		p.debug = g.prefill.Debug()
		g.close()
	})
	return p
}

func (p *played) share(state string) float64 {
	n := 0
	for _, o := range p.later {
		if o.State == state {
			n++
		}
	}
	return float64(n) / float64(max(len(p.later), 1))
}

func quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// ratios is the mean of on/off and the upper end of its 95 % interval.
func ratios(v []float64) (mean, upper float64) {
	var sum, sq float64
	for _, x := range v {
		sum += x
		sq += x * x
	}
	n := float64(len(v))
	mean = sum / n
	sd := math.Sqrt(max(sq/n-mean*mean, 0) * n / max(n-1, 1))
	return mean, mean + student(n-1)*sd/math.Sqrt(n)
}

func fixed(d time.Duration) func(*rand.Rand) time.Duration {
	return func(*rand.Rand) time.Duration { return d }
}

func between(lo, hi int) func(*rand.Rand) int {
	return func(r *rand.Rand) int { return lo + r.IntN(hi-lo) }
}

// TestRace_NextTurnIsNotSlowed: users who return sooner than a warm-up of 800 ms can end
// wait no longer than without it, and what it has computed by then is not lost.
func TestRace_NextTurnIsNotSlowed(t *testing.T) {
	seeds, turns := uint64(3), 200
	if soak {
		seeds, turns = 20, 2000
	}
	chunks, found := 0, 0
	for _, think := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
		var r []float64
		cancelled := 0.0
		for seed := range seeds {
			c := crowd{
				Workers: 4, Users: 4, Turns: turns, PerChat: 4, Think: fixed(think), User: between(50, 150), Reply: between(5600, 7200),
				Output: 20, Seed: seed + 1, Mode: ModeOff,
			}
			off := play(t, c)
			c.Mode = ModeOn
			on := play(t, c)
			r = append(r, quantile(on.ttft, .95)/quantile(off.ttft, .95))
			cancelled += on.share(outcomeCancelled) / float64(seeds)
			for _, o := range on.later {
				if o.State == outcomeCancelled {
					n := o.Added / 2048
					chunks += n
					found += min(n, max(o.Cached-o.Live, 0)/2048)
				}
			}
		}
		mean, upper := ratios(r)
		t.Logf("think %v: p95 TTFT on/off %.3f (upper %.3f), cancelled %.0f %%", think, mean, upper, 100*cancelled)
		if mean > 1.02 || soak && upper > 1.05 {
			t.Errorf("think %v: p95 TTFT with warm-ups is %.3f (at most %.3f) of that without", think, mean, upper)
		}
	}
	t.Logf("%d of %d chunks were found cached", found, chunks)
	if chunks == 0 || float64(found) < 0.8*float64(chunks) {
		t.Errorf("%d of %d chunks that were finished before the cancel were cached", found, chunks)
	}
}
