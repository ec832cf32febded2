package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// line is a world whose requests wait by name, in the order of their arrival.
type line struct {
	*world
	waiting []string
	waiters map[string]*Waiter
	errs    map[string]error
}

// newLine makes n workers that take limit requests each.
func newLine(t testing.TB, cfg Config, n, limit int) *line {
	if cfg.MaxQueue == 0 {
		cfg.MaxQueue = defaultMaxQueue
	}
	l := &line{world: newWorld(t, cfg), waiters: map[string]*Waiter{}, errs: map[string]error{}}
	l.fleet(n, WorkerSpec{BlockSize: 100, MaxInflight: limit})
	return l
}

// ask sends a request of a name; blocks of 100 tokens are its prompt.
func (l *line) ask(name string, blocks int, req Request) {
	l.t.Helper()
	if req.Model == "" {
		req.Model = "m"
	}
	if req.PinRank == 0 {
		req.PinRank = -1
	}
	req.Prompt = prompt(fmt.Sprintf("%s/%d", name, blocks), 100, false)
	lease, v, err := l.router.Enter(l.t.Context(), &req)
	switch {
	case v != nil:
		l.waiting = append(l.waiting, name)
		l.waiters[name] = v
	case err != nil:
		l.errs[name] = err
	default:
		l.leases[name] = lease
	}
}

// serve claims for everybody who was called and returns their names, in the order of
// their arrival.
func (l *line) serve() string {
	l.t.Helper()
	var served, still []string
	for _, name := range l.waiting {
		v := l.waiters[name]
		select {
		case <-v.Called():
			lease, err := v.Claim(l.t.Context())
			switch {
			case err != nil:
				l.errs[name] = err
				served = append(served, name+"!")
				continue
			case lease != nil:
				l.leases[name] = lease
				served = append(served, name)
				continue
			}
		default:
		}
		still = append(still, name)
	}
	l.waiting = still
	return strings.Join(served, " ")
}

// end ends requests, which makes others be called.
func (l *line) end(names ...string) string {
	l.t.Helper()
	for _, name := range names {
		l.leases[name].Done(finished)
	}
	return l.serve()
}

// drain ends one request after the other, the first one by name, and returns who came.
func (l *line) drain(first string) string {
	l.t.Helper()
	var order []string
	for name := first; ; {
		name = l.end(name)
		if name == "" {
			return strings.Join(order, " ")
		}
		order = append(order, name)
	}
}

func (l *line) empty() {
	l.t.Helper()
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	q := &l.router.mu.queue
	if q.waiting != 0 || len(q.lanes) != 0 || q.depth != [classes]int{} || q.asleep != 0 {
		l.t.Errorf("the queue is not empty: %+v", q)
	}
	for _, w := range l.router.mu.workers {
		if w.inflight != 0 || w.called != 0 || w.base.promised != 0 {
			l.t.Errorf("%s: %d in flight, %d called, %v tokens promised", w.spec.ID, w.inflight, w.called, w.base.promised)
		}
	}
}

func TestQueue_ServesByClassThenByArrival(t *testing.T) {
	l := newLine(t, Config{}, 1, 1)
	l.ask("x", 1, Request{})
	for i, priority := range []int{1, 0, -1, 7, 0, -9} {
		l.ask(fmt.Sprintf("%c%d", 'a'+i, priority), 1, Request{Priority: priority})
	}
	if got := l.router.Queue(); got.Waiting != 6 || got.Classes["urgent"] != 2 || got.Models["m"] != 6 {
		t.Errorf("%+v", got)
	}
	if got, want := l.drain("x"), "c-1 f-9 b0 e0 a1 d7"; got != want {
		t.Errorf("served %s, want %s", got, want)
	}
	l.empty()
}

func TestQueue_StarvesNoClass(t *testing.T) {
	l := newLine(t, Config{}, 1, 1)
	l.ask("x", 1, Request{})
	for i := range 40 {
		l.ask(fmt.Sprintf("u%d", i), 1, Request{Priority: -1})
		if i < 3 {
			l.ask(fmt.Sprintf("n%d", i), 1, Request{})
			l.ask(fmt.Sprintf("b%d", i), 1, Request{Priority: 1})
		}
	}
	order := strings.Fields(l.drain("x"))
	for i, name := range order {
		if name == "b2" && i > 3*(maxPassed+2) || name == "n2" && i > 3*(maxPassed+2) {
			t.Errorf("%s came as number %d: %v", name, i, order)
		}
	}
	if order[maxPassed-1] != "u7" || order[maxPassed][0] == 'u' {
		t.Errorf("%v: want %d urgent ones, then another", order, maxPassed)
	}
	l.empty()
}

// A tenant that floods with prompts of 10,000 tokens gets as many tokens as one that sends
// 1,000 at a time, and its flood costs the other nothing.
func TestQueue_TenantsShareByTokens(t *testing.T) {
	l := newLine(t, Config{}, 1, 1)
	l.ask("x", 1, Request{})
	for i := range 50 {
		l.ask(fmt.Sprintf("flood%d", i), 100, Request{Key: "flood"})
	}
	for i := range 50 {
		l.ask(fmt.Sprintf("small%d", i), 10, Request{Key: "small"})
	}
	var flood, small int
	for _, name := range strings.Fields(l.drain("x")) {
		if strings.HasPrefix(name, "flood") {
			flood += 100
		} else {
			small += 10
		}
		if d := flood - small; small < 500 && (d > 100 || d < -10) {
			t.Fatalf("after %d blocks of the flood the other tenant had %d", flood, small)
		}
	}
	l.empty()
}

// A tenant with one request at a time gets the next slot whatever another has in the queue:
// at equal prompts every other one, at three times the tokens every fourth.
func TestQueue_AReturningTenantHasSavedNothing(t *testing.T) {
	for _, x := range []struct{ blocks, least, most int }{{10, 45, 51}, {30, 22, 26}} {
		l := newLine(t, Config{}, 1, 1)
		l.ask("x", 1, Request{})
		for i := range 100 {
			l.ask(fmt.Sprintf("flood%d", i), 10, Request{Key: "flood"})
		}
		l.ask("one0", x.blocks, Request{Key: "one"})
		got := 0
		for i, name := 0, "x"; i < 100; i++ {
			name = l.end(name)
			if strings.HasPrefix(name, "one") {
				got++
				l.ask(fmt.Sprintf("one%d", got), x.blocks, Request{Key: "one"})
			}
		}
		if got < x.least || got > x.most {
			t.Errorf("%d blocks a time: %d of 100 slots, want %d to %d", x.blocks, got, x.least, x.most)
		}
	}
}

func TestQueue_ANewTenantHasSavedNothing(t *testing.T) {
	l := newLine(t, Config{}, 1, 1)
	l.ask("x", 1, Request{})
	for i := range 60 {
		l.ask(fmt.Sprintf("old%d", i), 10, Request{Key: "old"})
	}
	name := "x"
	for range 40 {
		name = l.end(name)
	}
	for i := range 20 {
		l.ask(fmt.Sprintf("new%d", i), 10, Request{Key: "new"})
	}
	first := strings.Fields(l.drain(name))[:20]
	if n := strings.Count(strings.Join(first, " "), "new"); n < 9 || n > 11 {
		t.Errorf("%d of the next 20 slots went to the new tenant, want half: %v", n, first)
	}
}

// Fairness holds while requests come, are served and leave: over a long run each of three
// tenants that always have something waiting gets a third of the tokens.
func TestQueue_IsFairUnderChurn(t *testing.T) {
	l := newLine(t, Config{}, 1, 1)
	r := rand.New(rand.NewPCG(3, 3))
	sizes := map[string]int{"a": 1, "b": 7, "c": 50}
	n, got := 0, map[string]int{}
	add := func(key string) {
		n++
		l.ask(fmt.Sprintf("%s%d", key, n), sizes[key], Request{Key: key})
	}
	l.ask("x", 1, Request{})
	for key := range sizes {
		for range 30 {
			add(key)
		}
	}
	for i, name := 0, "x"; i < 5000; i++ {
		name = l.end(name)
		key := name[:1]
		got[key] += sizes[key]
		add(key)
		if gone := r.IntN(len(l.waiting)); i%3 == 0 { // somebody's client leaves
			left := l.waiting[gone]
			l.waiters[left].Leave()
			l.waiting = append(l.waiting[:gone], l.waiting[gone+1:]...)
			add(left[:1])
		}
	}
	for key, tokens := range got {
		if mean := (got["a"] + got["b"] + got["c"]) / 3; tokens < mean*9/10 || tokens > mean*11/10 {
			t.Errorf("tenant %s got %d blocks, the mean is %d", key, tokens, mean)
		}
	}
}

func TestQueue_IsBounded(t *testing.T) {
	l := newLine(t, Config{MaxQueue: 3}, 1, 1)
	l.ask("x", 1, Request{})
	for _, name := range []string{"flood1", "flood2", "flood3", "flood4"} {
		l.ask(name, 1, Request{Key: "flood"})
	}
	var full *SaturatedError
	if !errors.As(l.errs["flood4"], &full) || full.RetryAfter < time.Second || !strings.Contains(full.Error(), "the queue is full (max_queue 3)") {
		t.Errorf("fourth of a full queue: %v", l.errs["flood4"])
	}
	// Another tenant takes the place of the flood's newest; so does a more urgent one.
	l.ask("other", 1, Request{Key: "other"})
	if got := l.serve(); got != "flood3!" || !errors.As(l.errs["flood3"], &full) {
		t.Errorf("%q was displaced, want flood3", got)
	}
	l.ask("urgent", 1, Request{Key: "flood", Priority: -1})
	if got := l.serve(); got != "flood2!" {
		t.Errorf("%q was displaced, want flood2", got)
	}
	l.ask("background", 1, Request{Key: "new", Priority: 1})
	if l.errs["background"] == nil {
		t.Error("the least urgent must go first")
	}
	if got, want := l.drain("x"), "urgent flood1 other"; got != want {
		t.Errorf("served %s, want %s", got, want)
	}
	l.empty()
}

func TestQueue_NegativeRefusesAtOnce(t *testing.T) {
	l := newLine(t, Config{MaxQueue: -1}, 1, 1)
	l.ask("x", 1, Request{})
	l.ask("a", 1, Request{})
	var full *SaturatedError
	if !errors.As(l.errs["a"], &full) || full.Limit != 1 {
		t.Errorf("error %v", l.errs["a"])
	}
}

// One free slot calls one waiter, and nobody who comes later takes what is kept for it.
func TestQueue_OneSlotCallsOne(t *testing.T) {
	l := newLine(t, Config{}, 1, 2)
	l.ask("x", 1, Request{})
	l.ask("y", 1, Request{})
	for _, name := range []string{"a", "b", "c"} {
		l.ask(name, 1, Request{})
	}
	l.leases["x"].Done(finished)
	called := 0
	for _, v := range l.waiters {
		called += len(v.called)
	}
	if called != 1 {
		t.Errorf("%d were called for one slot", called)
	}
	l.ask("late", 1, Request{Priority: -1})
	if l.leases["late"] != nil {
		t.Error("a newcomer took the slot that is kept")
	}
	if got := l.serve(); got != "a" {
		t.Errorf("%q was served, want a", got)
	}
	// A slot of one that was called and left goes on to the next.
	l.leases["y"].Done(finished)
	l.waiters["late"].Leave()
	l.waiting = []string{"b", "c"}
	if got := l.serve(); got != "b" {
		t.Errorf("%q was served, want b", got)
	}
	// Also where nobody else waits.
	l.leases["a"].Done(finished)
	l.ask("later", 1, Request{})
	if got := l.serve(); got != "c" || l.leases["later"] != nil {
		t.Errorf("%q was served, want c; the newcomer has %v", got, l.leases["later"])
	}
}

func TestQueue_WakesOnWhatChanges(t *testing.T) {
	wake := map[string]func(*line){
		"recovery": func(l *line) { l.router.SetHealth("w2", true, "") },
		"drain":    func(l *line) { l.router.SetDraining("w3", false) },
		"new worker": func(l *line) {
			l.router.SetWorkers(append(l.specs, WorkerSpec{ID: "w4", Models: []ModelSpec{{Name: "m"}}, MaxInflight: 1}))
		},
		"limit": func(l *line) {
			l.specs[0].MaxInflight = 2
			l.router.SetWorkers(l.specs)
		},
		"breaker": func(l *line) { l.router.SetBreaker("w3", Breaker{}) },
		"fallback": func(l *line) { // the only good one fails: the bad one must do
			l.router.SetBreaker("w3", Breaker{Level: 1})
			l.router.SetDraining("w3", false)
			l.router.SetHealth("w1", false, "timeout")
		},
		"end":   func(l *line) { l.leases["x"].Done(finished) },
		"error": func(l *line) { l.leases["x"].Done(Outcome{CachedTokens: -1, PromptTokens: -1, OutputTokens: -1}) },
	}
	for name, do := range wake {
		l := newLine(t, Config{}, 3, 1)
		l.router.SetHealth("w2", false, "timeout")
		l.router.SetDraining("w3", true)
		l.ask("x", 1, Request{})
		if name == "breaker" {
			l.router.SetBreaker("w3", Breaker{Level: 1})
			l.router.SetDraining("w3", false)
		}
		l.ask("a", 1, Request{})
		l.ask("b", 1, Request{})
		if got := l.serve(); got != "" {
			t.Errorf("%s: %q was called for nothing", name, got)
		}
		do(l)
		if got := l.serve(); got != "a" {
			t.Errorf("%s: %q was served, want a", name, got)
		}
	}
}

// Whoever is called and finds its worker gone waits on in its old place.
func TestQueue_ACallThatComesToNothing(t *testing.T) {
	l := newLine(t, Config{}, 2, 1)
	l.ask("x", 1, Request{PinWorker: "w1"})
	l.ask("y", 1, Request{PinWorker: "w2"})
	for _, name := range []string{"a", "b"} {
		l.ask(name, 1, Request{})
	}
	l.leases["x"].Done(finished)
	l.router.SetHealth("w1", false, "timeout")
	if got := l.serve(); got != "" {
		t.Errorf("%q was served by nobody", got)
	}
	if got := l.end("y"); got != "a" {
		t.Errorf("%q was served, want a", got)
	}
	l.router.SetHealth("w1", true, "")
	if got := l.serve(); got != "b" {
		t.Errorf("%q was served, want b", got)
	}
	l.end("a", "b")
	l.empty()
}

func TestQueue_PinnedOnesStandInNobodysWay(t *testing.T) {
	l := newLine(t, Config{}, 2, 1)
	l.ask("x", 1, Request{PinWorker: "w1"})
	l.ask("y", 1, Request{PinWorker: "w2"})
	l.ask("pinned", 1, Request{PinWorker: "w1"})
	l.ask("tried", 1, Request{Exclude: []string{"w2"}})
	l.ask("any", 1, Request{})
	if got := l.end("y"); got != "any" {
		t.Errorf("%q was served by w2, want any", got)
	}
	if got := l.drain("x"); got != "pinned tried" {
		t.Errorf("w1 served %q", got)
	}
	l.end("any")
	l.empty()
}

// Requests for adapters and for their base share workers but not a lane: lanes take turns.
func TestQueue_LanesTakeTurns(t *testing.T) {
	l := newLine(t, Config{}, 0, 0)
	l.fleet(1, WorkerSpec{MaxInflight: 1, Models: []ModelSpec{{Name: "m"}, {Name: "a", Parent: "m"}}})
	l.ask("x", 1, Request{})
	for i := range 3 {
		l.ask(fmt.Sprintf("m%d", i), 1, Request{})
	}
	for i := range 3 {
		l.ask(fmt.Sprintf("a%d", i), 1, Request{Model: "a"})
	}
	if got, want := l.drain("x"), "a0 m0 a1 m1 a2 m2"; got != want {
		t.Errorf("served %s, want %s", got, want)
	}
}

func TestQueue_WarmUpsNeverWait(t *testing.T) {
	l := newLine(t, Config{}, 1, 1)
	l.ask("x", 1, Request{})
	l.ask("a", 1, Request{})
	l.ask("warm", 1, Request{Speculative: true})
	if l.leases["warm"] == nil || l.leases["a"] != nil {
		t.Error("a warm-up waited, or a request did not")
	}
}

// bubble is a router on the clock of a synctest bubble.
func bubble(t *testing.T, cfg Config, specs ...WorkerSpec) *Router {
	cfg.Index, cfg.Workers, cfg.Seed = index.NewSet(index.Config{}), &kv.Workers{}, 1
	r := New(cfg)
	r.SetWorkers(specs)
	return r
}

func one(id string, limit int) WorkerSpec {
	return WorkerSpec{ID: id, Models: []ModelSpec{{Name: "m"}}, MaxInflight: limit, BlockSize: 100}
}

func plain(key string) *Request { return &Request{Model: "m", Key: key, PinRank: -1, Stream: true} }

func TestRoute_WaitsNoLongerThanMaxQueueDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		r := bubble(t, Config{MaxQueueDelay: 3 * time.Second, Registerer: reg}, one("w1", 1))
		l, err := r.Route(t.Context(), plain(""))
		if err != nil {
			t.Fatal(err)
		}
		from := time.Now()
		_, err = r.Route(t.Context(), plain(""))
		var full *SaturatedError
		if !errors.As(err, &full) || full.Limit != 1 || full.RetryAfter < time.Second {
			t.Errorf("error %v", err)
		}
		if waited := time.Since(from); waited != 3*time.Second {
			t.Errorf("waited %v", waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Route(ctx, plain("")); !errors.Is(err, context.DeadlineExceeded) || time.Since(from) != 4*time.Second {
			t.Errorf("error %v after %v", err, time.Since(from))
		}
		time.AfterFunc(2*time.Second, func() { l.Done(finished) })
		l, err = r.Route(t.Context(), plain(""))
		if err != nil || l.Decision().Waited != 2 {
			t.Fatalf("%v, waited %v", err, l.Decision().Waited)
		}
		if !strings.Contains(l.Decision().Explain(), ", waited 2.000 s\n") {
			t.Error(l.Decision().Explain())
		}
		l.Done(finished)
		for name, want := range map[string]float64{
			"warmroute_queue_rejected_total": 1, "warmroute_router_refusals_total": 1, "warmroute_queue_wait_seconds": 2, "warmroute_queue_depth": 0,
		} {
			if got := sum(t, reg, name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}

// sum adds up one metric, a histogram by its sum.
func sum(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
			}
			return sum
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Clients come, are served and leave at every moment while workers fail, recover, drain,
// come and go. Nobody may wait while a slot that it could have is free, and nothing is
// left behind.
func TestQueue_LosesNoWakeUp(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) { churn(t, seed) })
	}
}

func churn(t *testing.T, seed uint64) {
	const clients = 60
	specs := []WorkerSpec{one("w1", 2), one("w2", 1), one("w3", 3)}
	r := bubble(t, Config{MaxQueueDelay: time.Hour}, specs...)
	var wg sync.WaitGroup
	for i := range uint64(clients) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, i))
			for range 40 {
				ctx, cancel := context.WithCancel(t.Context())
				stop := func() bool { return true }
				if rnd.IntN(3) == 0 {
					stop = time.AfterFunc(time.Duration(rnd.IntN(400))*time.Millisecond, cancel).Stop
				}
				req := plain(fmt.Sprint(rnd.IntN(4)))
				req.Priority = rnd.IntN(3) - 1
				if rnd.IntN(8) == 0 {
					req.PinWorker = "w1"
				}
				l, err := r.Route(ctx, req)
				switch {
				case err == nil:
					time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
					l.Done(finished)
				case errors.Is(err, context.Canceled), errors.Is(err, ErrNoWorkers):
				default:
					t.Errorf("seed %d: %v", seed, err)
				}
				stop()
				cancel()
				time.Sleep(time.Duration(rnd.IntN(30)) * time.Millisecond)
			}
		})
	}
	over := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() {
		rnd := rand.New(rand.NewPCG(seed, 1<<32))
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(rnd.IntN(50)) * time.Millisecond):
			}
			switch id := specs[rnd.IntN(3)].ID; rnd.IntN(5) {
			case 3:
				r.SetBreaker(id, Breaker{Level: rnd.IntN(3), Trial: rnd.IntN(4) == 0})
			case 0:
				r.SetHealth(id, rnd.IntN(2) == 0, "chaos")
			case 1:
				r.SetDraining(id, rnd.IntN(2) == 0)
			case 2:
				r.SetWorkers(specs[:1+rnd.IntN(3)])
			default:
				r.SetWorkers(specs)
			}
			synctest.Wait()
			spare(t, r, seed)
		}
	})
	wg.Wait()
	close(over)
	chaos.Wait()
	(&line{world: &world{t: t, router: r}}).empty()
}

// spare reports a waiter beside a slot that it could have. Everybody else is blocked.
func spare(t *testing.T, r *Router, seed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.mu.queue.lanes["m"]
	for _, w := range r.mu.workers {
		if w.called != 0 {
			t.Errorf("seed %d: %s keeps %d places", seed, w.spec.ID, w.called)
		}
		if l != nil && w.healthy && !w.draining && w.inflight < w.spec.MaxInflight {
			to := r.fleet.Load().models["m"]
			if v := l.next(&offer{w: w, to: to, level: to.levelLocked(&anybody), room: true}); v != nil {
				t.Errorf("seed %d: %s has a slot free and somebody waits for it", seed, w.spec.ID)
			}
		}
	}
}

// BenchmarkQueue is one turn of a queue in which so many tenants wait.
func BenchmarkQueue(b *testing.B) {
	for _, tenants := range []int{1, 100, 4000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			l := newLine(b, Config{}, 1, 1)
			ask := func(i int) *Waiter {
				_, v, err := l.router.Enter(b.Context(), plain(fmt.Sprint(i%tenants)))
				if err != nil {
					b.Fatal(err)
				}
				return v
			}
			lease, _, _ := l.router.Enter(b.Context(), plain("x"))
			var waiters []*Waiter
			for i := range 4000 {
				waiters = append(waiters, ask(i))
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				lease.Done(finished)
				v := waiters[n%4000]
				if len(v.called) == 0 {
					b.Fatal("not its turn")
				}
				lease, _ = v.Claim(b.Context())
				waiters[n%4000] = ask(n)
			}
		})
	}
}
