package prefill

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testcluster"
	"github.com/warmroute/warmroute/router"
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

// returning is the reuse of later turns.
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

// TestLoad_RewarmStaysOffUnderPressure: where caches are too small for users who think for
// minutes rewarm leaves them alone, and where a cache is cleared every five minutes it
// fills what it may: nobody loses by either.
func TestLoad_RewarmStaysOffUnderPressure(t *testing.T) {
	seeds, clients, chats := uint64(1), []int{16}, 3
	if soak {
		seeds, clients, chats = 4, []int{16, 24, 32, 48, 80}, 4
	}
	t.Log("| users on 400,000 tokens of cache | cleared | reuse of later turns | change | TTFT mean s | p95 | sent | of what clients compute |")
	for _, cleared := range []bool{false, true} {
		for _, c := range clients {
			var reuse, mean, tail [2]float64
			sent, share := 0.0, 0.0
			var found []float64 // reuse with ÷ without, by seed
			for seed := uint64(1); seed <= seeds; seed++ {
				var own [2]float64
				for arm, on := range []bool{false, true} {
					w := town{Workers: 4, Clients: c, Stagger: 5 * time.Minute, Mode: ModeOn, Seed: seed, Chats: people(seed, chats*c), Prefill: Config{Rewarm: on}}
					w.Engine.CapacityTokens = 100_000
					if cleared {
						w.At, w.What = 15*time.Minute, clearing
					}
					l := w.live(t)
					n := float64(seeds)
					own[arm] = l.returning()
					reuse[arm] += own[arm] / n
					mean[arm] += l.mean(func(r *row) float64 { return r.ttft.Seconds() }) / n
					tail[arm] += quantile(l.ttft(), .95) / n
					sent += l.sums["sent_total rewarm"] / n
					share += l.sums["copy_tokens_total rewarm"] / float64(l.computed()) / n
				}
				found = append(found, own[1]/own[0])
			}
			t.Logf("| %d | %v | %.3f → %.3f | %s | %.3f → %.3f | %.3f → %.3f | %.1f | %.1f %% |", c, cleared, reuse[0], reuse[1], percent(found), mean[0], mean[1], tail[0], tail[1], sent, 100*share)
			if reuse[1] < reuse[0]-0.015 || mean[1] > 1.03*mean[0] {
				t.Errorf("%d users: reuse %.3f → %.3f, mean TTFT %.3f → %.3f s", c, reuse[0], reuse[1], mean[0], mean[1])
			}
		}
	}
}

// clearing empties one cache after the other.
func clearing(g *rig) {
	for k := range 6 {
		g.engine([]string{"w1", "w2", "w3", "w4"}[k%4]).clear()
		if !sleep(g.ctx, 5*time.Minute) {
			return
		}
	}
}

// waiting is the scope of the tests' conversations, and comeBack what is known of users who
// stay away for 80 seconds.
var waiting = scope{model: "m", trigger: TriggerTurn}

func comeBack(l *learning) {
	for range 40 {
		l.back(waiting, 80*time.Second)
	}
}

// TestRewarm_OncePerPause: a conversation whose blocks are gone is warmed again once while
// its user is likely to come back, and its next turn finds it; where users do not come back,
// or nothing is known of them, it is left alone.
func TestRewarm_OncePerPause(t *testing.T) {
	for _, c := range []struct {
		name  string
		known func(l *learning)
		sent  float64
	}{
		{"likely", comeBack, 1},
		{"lost", func(l *learning) {
			for range 20 {
				l.lost(waiting)
			}
		}, 0},
		{"unknown", func(*learning) {}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, rigConfig{Prefill: Config{Default: ModeOn, Rewarm: true}})
			g.quiet = true
			g.prefill.mu.Lock()
			g.prefill.mu.budget.work = 1000
			c.known(&g.prefill.mu.learn)
			g.prefill.mu.Unlock()
			talk := &chat{rig: g, name: "a"}
			talk.turn(say{User: someText("u", 2000), Reply: "yes"})
			for range 2 {
				g.engine("w1").clear()
				<-g.engine("w1").submit([]uint32{1, 2, 3}, []uint32{9}).done // a step tells of it
				time.Sleep(25 * time.Second)
			}
			s := g.sums()
			if s["sent_total rewarm"] != c.sent {
				t.Errorf("%s: %v were sent: %v", c.name, s["sent_total rewarm"], s)
			}
			if c.sent == 0 && s["copies_total skipped return rewarm"] != 1 {
				t.Errorf("%s: counters %v", c.name, s)
			}
			g.close()
		})
	}
}

// evicted plays a turn whose user is likely to come back, after which its blocks are gone.
func evicted(g *rig) *chat {
	g.prefill.mu.Lock()
	g.prefill.mu.budget.work = 1000
	comeBack(&g.prefill.mu.learn)
	g.prefill.mu.Unlock()
	talk := &chat{rig: g, name: "a"}
	talk.turn(say{User: someText("u", 2000), Reply: "yes"})
	g.engine("w1").clear()
	<-g.engine("w1").submit([]uint32{1, 2, 3}, []uint32{9}).done
	return talk
}

// TestRewarm_IsFoundByTheNextTurn, and what was kept for it is given back.
func TestRewarm_IsFoundByTheNextTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Prefill: Config{Default: ModeOn, Rewarm: true}})
		g.quiet = true
		talk := evicted(g)
		time.Sleep(25 * time.Second)
		held := g.prefill.held.Load()
		if o := talk.turn(say{User: "and?", Reply: "no"}); o.Cached < 1900 {
			t.Errorf("the next turn found %d tokens", o.Cached)
		}
		if s := g.sums(); s["copy_used_tokens_total used rewarm"] < 1900 {
			t.Errorf("counters: %v", s)
		}
		if held < 4*1900 {
			t.Errorf("%d bytes were counted for what was kept", held)
		}
		g.close()
	})
}

// TestRewarm_EndsWithThePause: the next turn cancels what is under way for it, wherever it
// goes, and none is sent after it has come.
func TestRewarm_EndsWithThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Prefill: Config{Default: ModeOn, Rewarm: true}})
		g.quiet = true
		g.answer = func(ctx context.Context) (Answer, error) { <-ctx.Done(); return Answer{}, ctx.Err() }
		evicted(g)
		under := func() int {
			g.prefill.mu.Lock()
			defer g.prefill.mu.Unlock()
			return len(g.prefill.mu.copies)
		}
		for under() == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		g.prefill.mu.Lock()
		k := g.prefill.mu.rewarming.order.Front().Value.(*kept)
		g.prefill.mu.Unlock()
		c := g.prefill.returned([]uint64{k.c.key, 0, 0})
		if c != k.c || under() != 0 {
			t.Fatalf("%d copies are under way for a conversation that has gone on", under())
		}
		o := router.Outlook{Rate: 1000, Over: time.Minute}
		if reason := g.prefill.worthwhile(k, time.Now(), &o, 1); reason != skipReturn {
			t.Errorf("after its next turn has come the gate says %q", reason)
		}
		g.close()
	})
}
