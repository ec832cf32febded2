package prefill

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/router"
)

// edge plays a story on a rig of thinking workers that have been idle for a while.
func edge(t *testing.T, workers int, mode Mode, story func(g *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Workers: workers, Thinking: true, Prefill: Config{Default: mode}})
		time.Sleep(time.Minute)
		story(g)
		g.balanced("at the end")
		g.close()
	})
}

// long is a turn whose next one a warm-up of 0.5 s helps.
func long(name string) say {
	return say{User: someText(name+"u", 400), Reasoning: someText(name+"t", 40), Reply: someText(name+"r", 4000), Output: 20}
}

// fork is a second client, or tab, with the history of c.
func (c *chat) fork(name string) *chat {
	f := *c
	f.name, f.messages = name, slices.Clone(c.messages)
	return &f
}

// TestEdge_Branch: two different next turns of one conversation both find the warmed
// prefix, and the warm-up is used once: the second is nobody's next turn.
func TestEdge_Branch(t *testing.T) {
	edge(t, 1, ModeOn, func(g *rig) {
		c := &chat{rig: g, name: "a"}
		c.turn(long("a"))
		time.Sleep(5 * time.Second)
		other := c.fork("b")
		first, second := c.turn(long("x")), other.turn(long("y"))
		for _, o := range []outcome{first, second} {
			if o.Cached < o.Prompt-400-2*16-20 {
				t.Errorf("a branch finds %d of %d tokens", o.Cached, o.Prompt)
			}
		}
		if got := g.counts(); first.State != stateWarmed || second.State != "" || got[outcomeUsed] != 1 {
			t.Errorf("states %q and %q, outcomes %v", first.State, second.State, got)
		}
		time.Sleep(5 * time.Second) // each branch gets a warm-up of its own
		c.turn(long("z"))
		other.turn(long("v"))
		if got := g.counts(); got[outcomeUsed] != 3 {
			t.Errorf("outcomes of both branches: %v", got)
		}
	})
}

// TestEdge_Edit: a request that changes an earlier message is no next turn. It claims
// nothing, and what was warmed for the other history is wasted once nobody comes.
func TestEdge_Edit(t *testing.T) {
	edge(t, 1, ModeOn, func(g *rig) {
		c := &chat{rig: g, name: "a"}
		c.turn(long("a"))
		time.Sleep(5 * time.Second)
		c.turn(long("b"))
		time.Sleep(5 * time.Second)
		c.messages = c.messages[:2] // the second question is asked in another way
		if o := c.turn(long("edited")); o.State != "" {
			t.Errorf("an edited question is the next turn of nothing, and its state is %q", o.State)
		}
		c.messages[0] = strings.Replace(c.messages[0], "au", "AU", 1) // and then the first
		if o := c.turn(long("edited more")); o.State != "" || o.Cached > 16 {
			t.Errorf("another first message: state %q, %d cached", o.State, o.Cached)
		}
		time.Sleep(20 * time.Minute)
		if got := g.counts(); got[outcomeUsed] != 1 || got["wasted/no_return"] != 3 {
			t.Errorf("outcomes %v", got)
		}
	})
}

// TestEdge_TwoTabs: the same conversation is sent from two tabs at the same time, answered
// twice, and goes on in one of them. No more than one warm-up is under way for it.
func TestEdge_TwoTabs(t *testing.T) {
	edge(t, 2, ModeOn, func(g *rig) {
		under, most := 0, 0
		g.answer = func(ctx context.Context) (Answer, error) {
			g.mu.Lock()
			under++
			most = max(most, under)
			g.mu.Unlock()
			defer func() { g.mu.Lock(); under--; g.mu.Unlock() }()
			select {
			case <-ctx.Done():
				return Answer{}, ctx.Err()
			case <-time.After(3 * time.Second):
				return Answer{Status: 200}, nil
			}
		}
		g.quiet = true
		a := &chat{rig: g, name: "a"}
		b := a.fork("b")
		done := make(chan struct{})
		go func() { a.turn(long("same")); close(done) }() // owned by the bubble
		b.turn(long("same"))
		<-done
		time.Sleep(500 * time.Millisecond)
		if o := a.turn(long("next")); o.State != outcomeCancelled {
			t.Errorf("the tab that goes on: %q", o.State)
		}
		time.Sleep(30 * time.Second)
		g.mu.Lock()
		defer g.mu.Unlock()
		if most != 1 {
			t.Errorf("%d warm-ups of one conversation at a time", most)
		}
		if got := g.counts(); got["skipped/superseded"]+got["cancelled/superseded"] != 1 {
			t.Errorf("outcomes %v", got)
		}
	})
}

// TestEdge_WorkerDrainsWhileItWaits: the warm-up goes where the next turn will go, although
// it began to wait for another worker.
func TestEdge_WorkerDrainsWhileItWaits(t *testing.T) {
	edge(t, 2, ModeOn, func(g *rig) {
		c := &chat{rig: g, name: "a"}
		first := c.turn(long("a")).Worker
		g.prefill.Pause(first, 20*time.Second)
		time.Sleep(2 * time.Second)
		if n := len(g.warmups()); n != 0 {
			t.Fatalf("%d warm-ups were sent in the pause", n)
		}
		g.router.SetDraining(first, true)
		time.Sleep(5 * time.Second)
		o := c.turn(long("b"))
		if o.Worker == first || o.State != stateWarmed || o.Cached < 4000 {
			t.Errorf("the next turn: %+v", o)
		}
	})
}

// TestEdge_WorkerLeavesWhileItRuns: drained or removed, the warm-up under way there ends
// and is made on the worker that is left.
func TestEdge_WorkerLeavesWhileItRuns(t *testing.T) {
	for what, leave := range map[string]func(g *rig, worker string){
		"drains": func(g *rig, worker string) { g.router.SetDraining(worker, true) },
		"is ill": func(g *rig, worker string) { g.router.SetHealth(worker, false, "test") },
		"is removed": func(g *rig, worker string) {
			for id, e := range g.engines {
				if id != worker {
					g.router.SetWorkers([]router.WorkerSpec{{ID: id, Models: []router.ModelSpec{{Name: "m"}}, Engine: "vllm",
						BlockSize: 16, CapacityTokens: e.sim.Config().CapacityTokens, MaxNumSeqs: e.sim.Config().MaxNumSeqs}})
				}
			}
		},
	} {
		edge(t, 2, ModeOn, func(g *rig) {
			hang := func(ctx context.Context) (Answer, error) { <-ctx.Done(); return Answer{}, ctx.Err() }
			g.answer = hang
			c := &chat{rig: g, name: "a"}
			first := c.turn(long("a")).Worker
			time.Sleep(time.Second)
			g.mu.Lock()
			g.answer = nil
			g.mu.Unlock()
			leave(g, first)
			time.Sleep(5 * time.Second)
			o := c.turn(long("b"))
			if o.Worker == first || o.State != stateWarmed || o.Cached < 4000 || len(g.warmups()) != 2 {
				t.Errorf("the worker %s: %d warm-ups, then %+v", what, len(g.warmups()), o)
			}
			if kinds, _ := g.tokenCounters(); g.counts()[outcomeUsed] != 1 || kinds[tokenWasted] == 0 {
				t.Errorf("the worker %s: outcomes %v, tokens %v", what, g.counts(), kinds)
			}
		})
	}
}

// TestEdge_NobodyIsLeft: without a worker that takes requests nothing is sent.
func TestEdge_NobodyIsLeft(t *testing.T) {
	edge(t, 1, ModeOn, func(g *rig) {
		c := &chat{rig: g, name: "a"}
		go func() { // owned by the bubble
			time.Sleep(100 * time.Millisecond)
			g.router.SetDraining("w1", true)
		}()
		c.turn(long("a"))
		time.Sleep(5 * time.Second)
		if got := g.counts(); len(g.warmups()) != 0 || got["skipped/no_worker"] != 1 {
			t.Errorf("%d warm-ups, outcomes %v", len(g.warmups()), got)
		}
	})
}

// TestEdge_Deadline: what has not been answered a minute after its turn is cut, and the
// worker is left alone for a while.
func TestEdge_Deadline(t *testing.T) {
	edge(t, 1, ModeOn, func(g *rig) {
		g.answer = func(ctx context.Context) (Answer, error) { <-ctx.Done(); return Answer{}, ctx.Err() }
		c := &chat{rig: g, name: "a"}
		c.turn(long("a"))
		time.Sleep(jobLife - 100*time.Millisecond)
		if got := g.counts(); len(got) != 0 {
			t.Errorf("before its time: %v", got)
		}
		time.Sleep(200 * time.Millisecond)
		got, kinds := g.counts(), g.balanced("after its time")
		if got["failed/timeout"] != 1 || kinds[tokenFailed] == 0 || len(g.prefill.Debug().Pauses) != 1 {
			t.Errorf("after its time: %v, %v", got, kinds)
		}
	})
}

// TestEdge_ForcedSwitchGains: where the worker of each turn drains at its end, the next
// turn runs on a worker that holds nothing of it, unless the warm-up went there.
func TestEdge_ForcedSwitchGains(t *testing.T) {
	play := func(mode Mode) (ttft []time.Duration, cached []float64) {
		edge(t, 2, mode, func(g *rig) {
			g.quiet = true
			for n := range 10 {
				c := &chat{rig: g, name: fmt.Sprint("c", n)}
				for turn := range 4 {
					o := c.turn(long(fmt.Sprint(n, ".", turn)))
					if turn > 0 {
						ttft = append(ttft, o.TTFT)
						cached = append(cached, float64(o.Cached)/float64(o.Prompt-400))
					}
					for id := range g.engines {
						g.router.SetDraining(id, id == o.Worker)
					}
					time.Sleep(6 * time.Second)
				}
			}
		})
		slices.Sort(ttft)
		slices.Sort(cached)
		return ttft, cached
	}
	off, offCached := play(ModeOff)
	on, onCached := play(ModeOn)
	t.Logf("p50 TTFT %v with warm-ups, %v without; p50 of what the user has not just said is cached: %.3f, %.3f",
		on[len(on)/2], off[len(off)/2], onCached[len(on)/2], offCached[len(off)/2])
	if r := float64(on[len(on)/2]) / float64(off[len(off)/2]); r > 0.35 || onCached[len(on)/2] < 0.98 {
		t.Errorf("p50 TTFT is %.2f of that without, %.2f is cached", r, onCached[len(on)/2])
	}
}
