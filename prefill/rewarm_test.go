package prefill

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/testcluster"
)

// people returns conversations of users who think for minutes: lognormal with a median of
// 130 s and σ = 2.1, at most 600 s.
func people(seed uint64, n int) (list []testcluster.Conversation) {
	r := rand.New(rand.NewPCG(seed, 0x9e09))
	for i := range n {
		c := testcluster.Conversation{ID: seed<<16 | uint64(i)}
		for t := range 3 + r.IntN(6) {
			turn := testcluster.Turn{InputTokens: 30 + r.IntN(800), OutputTokens: 100 + r.IntN(400)}
			if t == 0 {
				turn.InputTokens = 4_000 + r.IntN(8_000)
			} else {
				turn.Think = time.Duration(min(130*math.Exp(2.1*r.NormFloat64()), 600) * float64(time.Second))
			}
			c.Turns = append(c.Turns, turn)
		}
		list = append(list, c)
	}
	return list
}

func (l *lived) returning() float64 {
	var prompt, cached int
	for i := range l.rows {
		if l.rows[i].turn > 0 {
			prompt += l.rows[i].prompt
			cached += l.rows[i].cached
		}
	}
	return float64(cached) / float64(prompt)
}

func TestLoad_TryRewarm(t *testing.T) {
	for _, cleared := range []bool{false, true} {
		for _, c := range []int{16, 32, 48, 80, 120} {
			for seed := range uint64(2) {
				var l [2]lived
				for i, on := range []bool{false, true} {
					w := town{Workers: 4, Clients: c, Stagger: 5 * time.Minute, Mode: ModeOn, Seed: seed + 1, Chats: people(seed+1, 6*c),
						Prefill: Config{Rewarm: on}}
					w.Engine.CapacityTokens = 100_000
					if cleared {
						w.At = 20 * time.Minute
						w.What = func(g *rig) {
							for k := 0; k < 6; k++ {
								g.engine([]string{"w1", "w2", "w3", "w4"}[k%4]).clear()
								if !sleep(g.ctx, 5*time.Minute) {
									return
								}
							}
						}
					}
					l[i] = w.live(t)
				}
				t.Logf("cleared %v c=%d seed %d reuse of returning %.4f %.4f; ttft mean %.3f %.3f p95 %.3f %.3f", cleared, c, seed, l[0].returning(), l[1].returning(),
					l[0].mean(func(r *row) float64 { return r.ttft.Seconds() }), l[1].mean(func(r *row) float64 { return r.ttft.Seconds() }), quantile(l[0].ttft(), .95), quantile(l[1].ttft(), .95))
				for k, v := range l[1].sums {
					if v > 0 && len(k) > 4 && k[:4] == "copy" || v > 0 && len(k) > 6 && k[:6] == "copies" {
						t.Log("   ", k, v)
					}
				}
			}
		}
	}
}
