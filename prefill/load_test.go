package prefill

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
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
	Placebo        bool // workers answer warm-ups and compute nothing
}

// played is what a crowd saw.
type played struct {
	later    []outcome // turns of a conversation after its first
	ttft     []float64 // of every turn, seconds
	elapsed  time.Duration
	outcomes map[string]float64
	debug    Snapshot

	forecasts map[string]map[string]float64 // by event and kind
}

// play runs a crowd in virtual time. Users draw from their own generators, so two runs
// that differ in Mode alone meet the same lengths and think times.
func play(t *testing.T, c crowd) (p played) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Workers: c.Workers, Thinking: true, Engine: c.Engine,
			Prefill: Config{Default: c.Mode, Holdout: c.Holdout, Seed: c.Seed + 1}})
		g.quiet = true
		if c.Placebo {
			g.answer = func(context.Context) (Answer, error) { return Answer{Status: 200, Usage: openai.NoUsage}, nil }
		}
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
		p.forecasts = g.forecasts()
		g.close()
	})
	return p
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

// expo draws think times with a long tail.
func expo(mean time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration {
		return min(time.Duration(r.ExpFloat64()*float64(mean)), 5*mean)
	}
}

// compare plays a crowd with and without warm-ups for each seed and returns the ratios of
// p95 TTFT.
func compare(t *testing.T, c crowd, seeds uint64) (ratio []float64, off, on []played) {
	for seed := range seeds {
		c.Seed, c.Mode = seed+1, ModeOff
		off = append(off, play(t, c))
		c.Mode = ModeOn
		on = append(on, play(t, c))
		ratio = append(ratio, quantile(on[seed].ttft, .95)/quantile(off[seed].ttft, .95))
	}
	return ratio, off, on
}

// checkTail fails where p95 TTFT with warm-ups is more than that without: by the bounds of
// the full size there, by a looser one in the cut, whose few seeds spread.
func checkTail(t *testing.T, what string, ratio []float64) {
	t.Helper()
	mean, upper := ratios(ratio)
	t.Logf("%s: p95 TTFT on/off %.3f (upper %.3f, %d seeds)", what, mean, upper, len(ratio))
	if soak && (mean > 1.02 || upper > 1.05) || mean > 1.1 {
		t.Errorf("%s: p95 TTFT with warm-ups is %.3f (at most %.3f) of that without", what, mean, upper)
	}
}

// TestRace_NextTurnIsNotSlowed: users who return sooner than a warm-up of 800 ms can end
// wait no longer than without it, and what it has computed by then is not lost. At 400 ms
// whole chunks are finished before the cancel.
func TestRace_NextTurnIsNotSlowed(t *testing.T) {
	seeds, turns := uint64(2), 64
	if soak {
		seeds, turns = 20, 2000
	}
	chunks, found := 0, 0
	for _, think := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond} {
		ratio, _, on := compare(t, crowd{
			Workers: 8, Users: 4, Turns: turns, PerChat: 8, Think: fixed(think), User: between(50, 150), Reply: between(5600, 7200), Output: 20,
		}, seeds)
		checkTail(t, fmt.Sprint("think ", think), ratio)
		for _, p := range on {
			for _, o := range p.later {
				if o.State == outcomeCancelled {
					n := o.Added / 2048
					chunks += n
					found += min(n, max(o.Cached-o.Live, 0)/2048)
				}
			}
		}
	}
	t.Logf("%d of %d finished chunks were found cached", found, chunks)
	if chunks == 0 || float64(found) < 0.8*float64(chunks) {
		t.Errorf("%d of %d chunks that were finished before the cancel were cached", found, chunks)
	}
}

// sessions is the crowd of the load tests: 50 sessions on two workers, which complete
// about 10.7 turns a second at most.
func sessions(think time.Duration, leave float64) (crowd, uint64) {
	c := crowd{
		Workers: 2, Users: 50, Turns: 600, PerChat: 8, Think: expo(think), User: between(50, 150), Reply: between(1000, 2000),
		Output: 20, Leave: leave,
	}
	if soak {
		c.Turns = 2000
		return c, 20
	}
	return c, 1
}

const saturated = 10.7 // turns a second with no think time

// warmed is the share of turns for which a warm-up was sent.
func (p *played) warmed() float64 {
	sent, all := 0.0, 0.0
	for name, n := range p.outcomes {
		all += n
		if name == outcomeUsed || name == outcomeCancelled+"/"+lateTurn || strings.HasPrefix(name, outcomeWasted) {
			sent += n
		}
	}
	return sent / all
}

// TestLoad_LittleIsWarmedNearSaturation: at 95 % load at most 5 % of turns are warmed, and
// nobody waits longer for it.
func TestLoad_LittleIsWarmedNearSaturation(t *testing.T) {
	c, seeds := sessions(1200*time.Millisecond, 0)
	ratio, off, on := compare(t, c, seeds)
	checkTail(t, "95 % load", ratio)
	for i := range on {
		if load := float64(c.Turns) / off[i].elapsed.Seconds() / saturated; load < 0.85 {
			t.Errorf("seed %d: load is %.2f", i, load)
		}
		if w := on[i].warmed(); w > 0.05 {
			t.Errorf("seed %d: %.1f %% of turns were warmed: %v", i, 100*w, on[i].outcomes)
		}
		if on[i].outcomes["skipped/load"] < 0.5*float64(c.Turns) {
			t.Errorf("seed %d: load is not the reason: %v", i, on[i].outcomes)
		}
	}
}

// TestLoad_WarmUpsStayAtModerateLoad: the same users at 30 % load keep their warm-ups and
// gain by them.
func TestLoad_WarmUpsStayAtModerateLoad(t *testing.T) {
	c, seeds := sessions(13*time.Second, 0)
	ratio, off, on := compare(t, c, seeds)
	checkTail(t, "30 % load", ratio)
	for i := range on {
		if load := float64(c.Turns) / off[i].elapsed.Seconds() / saturated; load < 0.2 || load > 0.4 {
			t.Errorf("seed %d: load is %.2f", i, load)
		}
		if w := on[i].warmed(); w < 0.8 {
			t.Errorf("seed %d: only %.1f %% of turns were warmed: %v", i, 100*w, on[i].outcomes)
		}
		if r := quantile(on[i].ttft, .5) / quantile(off[i].ttft, .5); r > 0.5 {
			t.Errorf("seed %d: median TTFT is %.2f of that without", i, r)
		}
	}
}

// TestFC81_LoadIsNotAmplified: near saturation, where half of the sessions never return,
// real turns are not slowed.
func TestFC81_LoadIsNotAmplified(t *testing.T) {
	c, seeds := sessions(time.Second, 0.5)
	ratio, _, on := compare(t, c, seeds)
	checkTail(t, "95 % load, half never return", ratio)
	for i := range on {
		if w := on[i].warmed(); w > 0.05 {
			t.Errorf("seed %d: %.1f %% of turns were warmed: %v", i, 100*w, on[i].outcomes)
		}
	}
}
