package prefill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// tokenCounters reads warmroute_prefill_tokens_total and what is open.
func (g *rig) tokenCounters() (kinds map[string]float64, open float64) {
	all := g.sums()
	kinds = map[string]float64{}
	for name, n := range all {
		if kind, ok := strings.CutPrefix(name, "tokens_total "); ok {
			kinds[kind] = n
		}
	}
	return kinds, all["open_tokens"]
}

// forecasts reads warmroute_prefill_forecast_total by event and kind.
func (g *rig) forecasts() map[string]map[string]float64 {
	out := map[string]map[string]float64{}
	for name, n := range g.sums() {
		if l := strings.Fields(name); l[0] == "forecast_total" { // event, kind, trigger
			if out[l[1]] == nil {
				out[l[1]] = map[string]float64{}
			}
			out[l[1]][l[2]] += n
		}
	}
	return out
}

// balanced checks that every token sent is in one of the other counters.
func (g *rig) balanced(when string) map[string]float64 {
	g.t.Helper()
	kinds, open := g.tokenCounters()
	sum := open
	for kind, n := range kinds {
		if kind != tokenSent {
			sum += n
		}
	}
	if sum != kinds[tokenSent] || open < 0 {
		g.t.Errorf("%s: %v and %v open are %v together, %v were sent", when, kinds, open, sum, kinds[tokenSent])
	}
	return kinds
}

// TestAccount_TokensAddUp over a mix in which warm-ups are used, cut short by their own and
// by others' turns, refused, left alone, not measured and repeated.
func TestAccount_TokensAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Workers: 2, Thinking: true, Prefill: Config{Default: ModeOn}})
		g.quiet = true
		var wg sync.WaitGroup
		for u := range 12 {
			r := rand.New(rand.NewPCG(7, uint64(u)))
			wg.Go(func() {
				for n := range 6 {
					ch := &chat{rig: g, name: fmt.Sprintf("%d.%d", u, n)}
					for turn := range 2 + r.IntN(5) {
						id := fmt.Sprintf("%s.%d", ch.name, turn)
						ch.turn(say{
							User: someText(id+"u", 100), Reasoning: someText(id+"t", 40), Reply: someText(id+"r", 1000+r.IntN(5000)), Output: 20,
							Usage: r.IntN(10) == 0, Failed: r.IntN(12) == 0,
						})
						time.Sleep(time.Duration(r.ExpFloat64() * 4e9))
						if r.IntN(10) == 0 && len(ch.messages) > 1 { // the same request once more
							ch.messages = ch.messages[:len(ch.messages)-2]
						}
					}
				}
			})
		}
		for i := range 40 {
			time.Sleep(3 * time.Second)
			g.balanced(fmt.Sprint("after ", time.Since(g.start)))
			g.mu.Lock()
			g.answer = nil
			if i%5 == 0 {
				g.answer = func(context.Context) (Answer, error) { return Answer{Status: 500}, nil }
			}
			g.mu.Unlock()
		}
		wg.Wait()
		time.Sleep(20 * time.Minute) // whoever is still expected is given up
		kinds := g.balanced("at the end")
		for _, kind := range []string{tokenUsed, tokenLeft, tokenCancelled, tokenWasted, tokenFailed, tokenUnknown} {
			if kinds[kind] == 0 {
				t.Errorf("no token was %s: %v", kind, kinds)
			}
		}
		if _, open := g.tokenCounters(); open != 0 {
			t.Errorf("%v tokens are open and nobody can come", open)
		}
		d := g.prefill.Debug()
		if float64(d.Tokens[tokenSent]) != kinds[tokenSent] || d.Tokens["open"] != 0 {
			t.Errorf("the page says %v, the counters %v", d.Tokens, kinds)
		}
		t.Logf("%v, outcomes %v", kinds, g.counts())
		g.close()
	})
}

// TestAccount_ForecastsAreKept: what the gate expected of its warm-ups is near what came.
func TestAccount_ForecastsAreKept(t *testing.T) {
	p := play(t, crowd{
		Workers: 2, Users: 3, Turns: 900, PerChat: 1000, Think: expo(4 * time.Second), User: between(50, 150), Reply: between(1000, 3000),
		Output: 20, Leave: 0.3, Mode: ModeOn, Seed: 3,
	})
	for _, s := range p.debug.Scopes {
		if s.Probability < 0.5 || s.Probability > 0.8 || s.GapP50 < 1.5 || s.GapP50 > 5 {
			t.Errorf("%+v: 65 %% come back, half of them within 2.8 s", s)
		}
		if s.Expect.InTime >= s.Probability || s.Expect.InTime < 0.5*s.Probability || s.Expect.Saved <= 0 || s.Expect.Takes <= 0 {
			t.Errorf("expected: %+v", s.Expect)
		}
	}
	for event, n := range p.forecasts {
		expected, seen := n["expected"], n["seen"]
		t.Logf("%s: %.0f expected, %.0f seen", event, expected, seen)
		if seen < 100 || expected < 0.8*seen || expected > 1.25*seen {
			t.Errorf("%s: %.0f expected, %.0f seen", event, expected, seen)
		}
	}
}
