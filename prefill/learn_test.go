package prefill

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestStudent(t *testing.T) {
	for df, want := range map[float64]float64{4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 1000: 1.962} {
		if got := student(df); math.Abs(got-want) > 0.01*want {
			t.Errorf("df %v: %v, want %v", df, got, want)
		}
	}
}

// TestDifference_CoversTheTruth in about 95 of 100 experiments.
func TestDifference_CoversTheTruth(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	covered := 0
	const runs = 1000
	for range runs {
		var a, b arm
		for range 30 {
			a.add(0.5+0.1*r.NormFloat64(), armKept)
		}
		for range 50 {
			b.add(0.3+0.05*r.NormFloat64(), armKept)
		}
		if i := difference(a.mean, b.mean); i.Low <= 0.2 && 0.2 <= i.High {
			covered++
		}
	}
	if covered < 930 || covered > 970 {
		t.Errorf("%d of %d intervals hold the truth", covered, runs)
	}
	var one arm
	one.add(1, 1)
	if i := difference(one.mean, one.mean); i.Known {
		t.Errorf("one turn a group says %+v", i)
	}
}

// TestLearning_ReturnsAreLearned per tenant, with all tenants' filling in.
func TestLearning_ReturnsAreLearned(t *testing.T) {
	var l learning
	l.init()
	bot, human := scope{"bot", "m", TriggerTurn}, scope{"human", "m", TriggerTurn}
	if p := l.probability(bot); p != startTurn {
		t.Errorf("at first %v", p)
	}
	if p := l.probability(scope{"bot", "m", TriggerTools}); p != startTools {
		t.Errorf("at first, for tools, %v", p)
	}
	for range 200 {
		l.back(bot, time.Second)
		l.lost(human)
	}
	if b, h := l.probability(bot), l.probability(human); b < 0.9 || h > 0.1 {
		t.Errorf("bot %v, human %v", b, h)
	}
	if p := l.probability(scope{"third", "m", TriggerTurn}); p < 0.4 || p > 0.6 {
		t.Errorf("a new tenant starts at %v", p)
	}
}

// TestLearning_GateClosesWhereWarmingDoesNotPay and probes go on, so that it can open.
func TestLearning_GateClosesWhereWarmingDoesNotPay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	s := scope{"", "m", TriggerTurn}
	play := func(l *learning, turns int, saves float64) (warmed int) {
		for range turns {
			g, probe := l.assign(s, 0.05, r)
			c := &conversation{scope: s, group: g, probe: probe, warm: warmth{seconds: 0.1, busy: 0.5}}
			ttft := 0.3 + 0.02*r.NormFloat64()
			if g == groupWarmed {
				warmed++
				l.spent(c, time.Second)
				ttft -= saves
			}
			l.measured(c, time.Duration(ttft*float64(time.Second)))
		}
		return warmed
	}
	var useless learning
	useless.init()
	play(&useless, 1000, 0)
	if n := play(&useless, 1000, 0); n > 100 {
		t.Errorf("where nothing is saved, %d of 1,000 turns are warmed", n)
	}
	if n := useless.total.warmed.turns; n > 700 {
		t.Errorf("%d probes of a closed gate are in the headline", n)
	}
	// The model changes: it pays now. Probes tell.
	play(&useless, 5000, 0.2)
	if n := play(&useless, 1000, 0.2); n < 900 {
		t.Errorf("after it began to pay, %d of 1,000 turns are warmed", n)
	}
	var useful learning
	useful.init()
	if n := play(&useful, 2000, 0.2); n < 1800 {
		t.Errorf("where 200 ms are saved for 50 ms, %d of 2,000 turns are warmed", n)
	}
	// Nothing is measured without a holdout, so nothing closes.
	for range 100 {
		if g, _ := useless.assign(s, -1, r); g != groupWarmed {
			t.Fatalf("without a holdout a turn is %v", g)
		}
	}
}

func TestLearning_ScopesAreBounded(t *testing.T) {
	var l learning
	l.init()
	for i := range maxScopes + 100 {
		l.back(scope{string(rune(i)), "m", TriggerTurn}, time.Second)
	}
	if len(l.scopes) > maxScopes || l.forgotten != 100 {
		t.Errorf("%d scopes, %d forgotten", len(l.scopes), l.forgotten)
	}
}

func TestValidate(t *testing.T) {
	f := func(want string, c Config) {
		t.Helper()
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
	f(`speculative prefill "maybe" is not one of off, on, auto`, Config{Default: "maybe"})
	f(`speculative prefill "x" of model "m" is not one of off, on, auto`, Config{Models: map[string]Mode{"m": "x"}})
	f(`speculative prefill "x" of key "k" is not one of off, on, auto`, Config{Keys: map[string]Mode{"k": "x"}})
	f(`speculation_holdout 2 is a share: at most 1`, Config{Holdout: 2})
	f(`bytes held for warming -1: must not be negative`, Config{HeldBytes: -1})
	f(`prefill needs a router, a sender and identities of prompts`, Config{})
}
