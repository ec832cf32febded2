package router

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmroute/warmroute/router/kv"
)

// newPool makes two workers of 10,000 tokens of KV each, with a minute in which requests
// waited for their first token behind them, so that first turns need room. Of the contexts
// of turns that end, half come back.
func newPool(t *testing.T, cfg Config) *line {
	l := newLine(t, cfg, 0, 0)
	l.fleet(2, WorkerSpec{BlockSize: 100, CapacityTokens: 10_000})
	l.press()
	l.router.mu.models["m"].idle[0].back = startIdle
	return l
}

// press lets a request wait for its first token for a minute on each worker.
func (l *line) press() {
	for _, s := range l.specs {
		l.ask("press", 1, Request{PinWorker: s.ID, Stream: true})
		defer l.leases["press"].Done(unknown)
	}
	l.advance(time.Minute)
}

var unknown = Outcome{CachedTokens: -1, PromptTokens: -1, OutputTokens: -1}

// turn is one whole turn of a conversation named by its prompt.
func (l *line) turn(spec string, first bool) {
	l.t.Helper()
	lease := l.route(&Request{Prompt: prompt(spec, 100, false), FirstTurn: first, Stream: true, PinRank: -1})
	lease.FirstToken()
	lease.Done(Outcome{OK: true, CachedTokens: -1, PromptTokens: -1, OutputTokens: 100})
}

func (l *line) live() int {
	l.t.Helper()
	q := l.router.Queue()
	if len(q.Pools) != 1 {
		l.t.Fatalf("pools %+v", q.Pools)
	}
	return q.Pools[0].LiveTokens
}

func TestAdmission_FirstTurnsWaitForRoom(t *testing.T) {
	l := newPool(t, Config{})
	for i := range 9 {
		l.ask(fmt.Sprintf("live%d", i), 20, Request{FirstTurn: true, Stream: true})
	}
	if got := l.live(); got != 18_000 || len(l.waiting) != 0 {
		t.Fatalf("%d tokens live, %v wait", got, l.waiting)
	}
	l.ask("last", 1, Request{FirstTurn: true}) // 0.9 is not more than 0.9
	l.ask("new", 20, Request{FirstTurn: true})
	l.ask("newer", 1, Request{FirstTurn: true, Priority: -1})
	l.ask("later", 20, Request{})
	l.ask("retry", 20, Request{FirstTurn: true, Exclude: []string{"w1"}})
	if got := strings.Join(l.waiting, " "); got != "new newer" || l.leases["last"] == nil {
		t.Errorf("%q wait, want the first turns", got)
	}
	p, err := l.router.Preview(&Request{Model: "m", FirstTurn: true, PinRank: -1, Prompt: prompt("p/1", 100, false)})
	if err != nil || !strings.Contains(p.Explain(), "waits for room in the KV caches") {
		t.Errorf("%v: %v", err, p.Explain())
	}
	// What ends badly leaves no context: 22,100 − 4 × 2,000 tokens are live.
	for i := range 4 {
		l.leases[fmt.Sprintf("live%d", i)].Done(unknown)
	}
	if got := l.serve(); got != "new newer" {
		t.Errorf("%q were served, want both", got)
	}
	if got := l.live(); got != 16_200 {
		t.Errorf("%d tokens live", got)
	}
}

// Room is kept for whoever is called: one call must not let ten in.
func TestAdmission_KeepsRoomForWhoIsCalled(t *testing.T) {
	l := newPool(t, Config{})
	l.ask("big", 190, Request{FirstTurn: true})
	for i := range 10 {
		l.ask(fmt.Sprintf("new%d", i), 60, Request{FirstTurn: true})
	}
	if len(l.waiting) != 10 {
		t.Fatalf("%v wait", l.waiting)
	}
	// Half of the 19,200 tokens of its context are expected back.
	if got := l.end("big"); got != "new0 new1" {
		t.Errorf("%q were let in, want two", got)
	}
	if live := l.live(); live != 9_600+12_000 {
		t.Errorf("%d tokens live", live)
	}
}

// A prompt larger than all there is goes in where nothing else is live.
func TestAdmission_LetsAGiantInAlone(t *testing.T) {
	l := newPool(t, Config{})
	l.ask("giant", 500, Request{FirstTurn: true})
	if l.leases["giant"] == nil {
		t.Error("it waits")
	}
}

func TestAdmission_IsOffWhere(t *testing.T) {
	for name, x := range map[string]struct {
		cfg Config
		do  func(*line)
	}{
		"a capacity is not known": {do: func(l *line) {
			l.specs[1].CapacityTokens = 0
			l.router.SetWorkers(l.specs)
		}},
		"the engines have time": {do: func(l *line) { l.advance(time.Minute) }},
		"nothing comes back":    {do: func(l *line) { l.router.mu.models["m"].idle = newIdle() }},
		"nobody may wait":       {cfg: Config{MaxQueue: -1}},
	} {
		l := newPool(t, x.cfg)
		l.ask("big", 190, Request{Stream: true})
		l.leases["big"].FirstToken()
		if x.do != nil {
			x.do(l)
		}
		l.ask("new", 1, Request{FirstTurn: true})
		if l.leases["new"] == nil {
			t.Errorf("%s: a first turn waits", name)
		}
	}
	// An unusable worker neither adds room nor hides what is not known.
	l := newPool(t, Config{})
	l.specs[1].CapacityTokens = 0
	l.router.SetWorkers(l.specs)
	l.router.SetHealth("w2", false, "timeout")
	l.ask("big", 95, Request{PinWorker: "w1"})
	l.ask("new", 1, Request{FirstTurn: true})
	if len(l.waiting) != 1 {
		t.Error("a first turn does not wait for room on the worker that is left")
	}
}

// A conversation's context counts while its turn runs, and between turns by the share that
// comes back; a head that the worker held already is not its own.
func TestLive_FollowsConversations(t *testing.T) {
	l := newPool(t, Config{})
	at := func(want int, when string) {
		t.Helper()
		if got := l.live(); got != want {
			t.Errorf("%s: %d tokens live, want %d", when, got, want)
		}
	}
	at(0, "start")
	l.turn("head/10+one/10", true)
	at((2000+100)/2, "one of two comes back")
	for _, s := range l.specs {
		l.stored(kv.WorkerRank{ID: s.ID}, "head/10", 100)
	}
	l.turn("head/10+two/10", true)
	at((2100+1100)/2, "the head is not counted twice")
	lease := l.route(&Request{Prompt: prompt("head/10+two/10+more/5", 100, false), Stream: true, PinRank: -1})
	x := &l.router.mu.models["m"].idle
	if x[0].tokens != 2100 {
		t.Errorf("%v tokens idle while the other's turn runs", x[0].tokens)
	}
	lease.Done(unknown)
	if x[0].tokens != 2100 {
		t.Errorf("%v tokens idle after the turn failed", x[0].tokens)
	}
	l.turn("head/10+two/10+more/5", false)
	if x[0].tokens != 2100+1600 {
		t.Errorf("%v tokens idle after two turns, want 3,700", x[0].tokens)
	}
	l.advance(startTau + time.Second)
	l.live()
	if x[0].tokens != 0 || x[1].tokens != 3700 {
		t.Errorf("%v tokens are idle for less than τ, %v for longer", x[0].tokens, x[1].tokens)
	}
	l.advance(talkEnded * startTau)
	at(0, "over")
	for i := range x {
		if x[i].tokens != 0 {
			t.Errorf("%v tokens left in list %d", x[i].tokens, i)
		}
	}
}

// Requests that are whole conversations are soon known to be.
func TestLive_SingleTurnsCountLittle(t *testing.T) {
	l := newPool(t, Config{MaxQueue: -1})
	for i := range 600 {
		l.turn(fmt.Sprintf("once%d/10", i), true)
		l.advance(time.Second)
		if _, share := l.router.talks.expected(&l.router.mu.models["m"].idle, l.now); i == 150 && share > 0.2 {
			t.Errorf("after %d requests that were all, %.2f are expected back", i, share)
		}
	}
	if live := l.live(); live > 2_000 {
		t.Errorf("%d tokens live of 60 s × 1,100", live)
	}
}

func TestLive_LearnsWhenConversationsReturn(t *testing.T) {
	l := newPool(t, Config{MaxQueue: -1})
	specs := make([]string, 10)
	for i := range specs {
		specs[i] = fmt.Sprintf("talk%d/10", i)
	}
	for round := range 20 {
		for i := range specs {
			l.turn(specs[i], round == 0)
			specs[i] += fmt.Sprintf("+r%d/1", round)
			l.advance(5 * time.Second)
		}
	}
	want := 0
	for i := range specs {
		want += prompt(specs[i], 100, false).TokenCount
	}
	if live := l.live(); live < want*8/10 || live > want*11/10 {
		t.Errorf("%d tokens live, the conversations have %d", live, want)
	}
}

// A first turn that waits learns by itself that nobody comes back, and its refusal says
// what stood in the way.
func TestRoute_FirstTurnsWaitForContextsToLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		spec := one("w1", 0)
		spec.CapacityTokens = 10_000
		r := bubble(t, Config{Registerer: reg}, spec)
		first := func(name string, blocks int) *Request {
			req := plain("")
			req.FirstTurn, req.Prompt = true, prompt(fmt.Sprintf("%s/%d", name, blocks), 100, false)
			return req
		}
		r.mu.models["m"].idle[0].back = startIdle
		l, err := r.Route(t.Context(), first("big", 190))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // without a first token: pressed
		_, err = r.Route(t.Context(), first("a", 1))
		var full *SaturatedError
		if !errors.As(err, &full) || !strings.Contains(err.Error(), "KV caches are full of live conversations") || full.RetryAfter != defaultMaxQueueDelay {
			t.Errorf("error %v", err)
		}
		if got := sum(t, reg, "warmroute_queue_rejected_total"); got != 1 {
			t.Errorf("%v rejected", got)
		}
		l.FirstToken()
		l.Done(Outcome{OK: true, CachedTokens: -1, PromptTokens: -1, OutputTokens: 0})
		// 19,000 tokens count half: more than 0.9 of 10,000. They lapse after τ, but the
		// minute of pressure is below 0.3 sooner, and then they are in nobody's way.
		from := time.Now()
		for {
			l, err := r.Route(t.Context(), first("b", 1))
			if err == nil {
				l.Done(unknown)
				break
			}
		}
		if waited := time.Since(from); waited < 40*time.Second || waited > 44*time.Second {
			t.Errorf("a first turn was let in after %v", waited)
		}
		synctest.Wait()
		(&line{world: &world{t: t, router: r}}).empty()
	})
}
