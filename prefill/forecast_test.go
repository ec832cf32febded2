package prefill

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// TestForecast_IsWhatUsersDo: the forecast of a scope whose users come back by a known law
// agrees with what a thousand of them do, from any moment after the turn.
func TestForecast_IsWhatUsersDo(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := scope{"k", "m", TriggerTurn}
	const back, mean = 0.7, 8.0
	gap := func() float64 { return mean * r.ExpFloat64() }
	var l learning
	l.init()
	for range 3000 {
		if r.Float64() < back {
			l.back(s, time.Duration(gap()*1e9))
		} else {
			l.lost(s)
		}
	}
	f := func(waited, takes, residency float64) {
		t.Helper()
		var want forecast
		n := 0.0
		for range 40_000 {
			g := math.Inf(1)
			if r.Float64() < back {
				g = gap()
			}
			if g < waited {
				continue
			}
			n++
			if math.IsInf(g, 1) {
				continue
			}
			want.Return++
			if g < waited+takes+residency {
				want.Resident++
				if g > waited+takes {
					want.InTime++
				}
				want.Saved += min(g-waited, takes)
			}
		}
		got := l.forecast(s, waited, takes, residency)
		for what, v := range map[string][2]float64{
			"return": {got.Return, want.Return / n}, "before eviction": {got.Resident, want.Resident / n},
			"in time": {got.InTime, want.InTime / n}, "saved ÷ takes": {got.Saved / takes, want.Saved / n / takes},
		} {
			if math.Abs(v[0]-v[1]) > 0.08 { // 140 returns count, in bins of √2
				t.Errorf("after %v s, a warm-up of %v s that stays %v s: %s %.3f, users do %.3f", waited, takes, residency, what, v[0], v[1])
			}
		}
	}
	f(0, 0.5, math.Inf(1))
	f(0, 5, math.Inf(1))
	f(3, 1, 10)
	f(0, 0.5, 4)
	f(10, 20, math.Inf(1))
}

// TestForecast_ColdStart: nothing is known of a tenant, so agents are expected soon and
// surely, users later and perhaps; all shares add up.
func TestForecast_ColdStart(t *testing.T) {
	var l learning
	l.init()
	for trigger, want := range map[Trigger]forecast{
		TriggerTurn: {Return: startTurn, Resident: 0.15}, TriggerTools: {Return: startTools, Resident: 0.73},
	} {
		s := scope{"", "m", trigger}
		gaps, sum := l.gaps(s), 0.0
		for _, p := range gaps {
			sum += p
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s: the shares are %v together", trigger, sum)
		}
		f := l.forecast(s, 0, 0.5, math.Inf(1))
		if math.Abs(f.Return-want.Return) > 1e-9 || f.Resident != f.Return {
			t.Errorf("%s: %+v at first, want a return in %v", trigger, f, want.Return)
		}
		if f := l.forecast(s, 0, 0.5, 30); math.Abs(f.Resident-want.Resident) > 0.05 {
			t.Errorf("%s: %+v within 30 s, want %v", trigger, f, want.Resident)
		}
	}
	if f := l.forecast(scope{"", "m", TriggerTurn}, 3600, 1, 1); f != (forecast{}) && f.Return > 1e-6 {
		t.Errorf("after an hour %+v", f)
	}
}

// TestForecast_ClosesTheGate: blocks that are evicted long before the user is back are not
// worth what their eviction costs others, and a user who was seen to return in time is.
func TestForecast_ClosesTheGate(t *testing.T) {
	var l learning
	l.init()
	slow, quick := scope{"slow", "m", TriggerTurn}, scope{"quick", "m", TriggerTurn}
	for range 100 {
		l.back(slow, 5*time.Minute)
		l.back(quick, 5*time.Second)
	}
	s, q := l.forecast(slow, 0, 0.5, 20), l.forecast(quick, 0, 0.5, 20)
	if s.Resident > 0.1 || s.Saved > 0.05 || q.Resident < 0.85 || q.Saved < 0.4 {
		t.Errorf("five minutes %+v, five seconds %+v", s, q)
	}
	// Sooner than the warm-up takes: only what is done by then is saved.
	if f := l.forecast(quick, 0, 50, math.Inf(1)); f.InTime > 0.1 || f.Saved < 3 || f.Saved > 8 {
		t.Errorf("a warm-up of 50 s for 5: %+v", f)
	}
}

// TestOrder_MostSavedFirst: of the warm-ups that wait for one worker the surest goes first,
// not the oldest, and is made to look when another could have gone.
func TestOrder_MostSavedFirst(t *testing.T) {
	p := still(t, Config{})
	w, other := kv.WorkerRank{ID: "w"}, kv.WorkerRank{ID: "other"}
	waiting := func(at kv.WorkerRank, worth float64, age time.Duration) *job {
		j := &job{waits: at, worth: worth, ended: time.Now().Add(-age), poke: make(chan struct{}, 1)}
		p.mu.jobs = append(p.mu.jobs, j)
		return j
	}
	first := waiting(w, 0.3, 3*time.Second)
	best := waiting(w, 0.9, time.Second)
	waiting(other, 1, 0)
	waiting(w, 0.95, jobLife) // its time is over
	if !p.outdoneLocked(first, w) || p.outdoneLocked(best, w) || p.outdoneLocked(best, kv.WorkerRank{ID: "third"}) {
		t.Error("not the one goes first that saves the most on that worker")
	}
	if len(best.poke) != 1 || len(first.poke) != 0 {
		t.Error("the best one was not made to look")
	}
	began := time.Now()
	if !rest(t.Context(), time.Hour, best.poke) || time.Since(began) > time.Minute {
		t.Error("a poke did not end the rest")
	}
}
