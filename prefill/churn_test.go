package prefill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// unsure is a Sender of which some answers are late, wrong, hostile or never come, and that
// knows when nothing may be sent any more.
type unsure struct {
	*rig
	over, late atomic.Bool // late: something was sent after over

	mu   sync.Mutex
	rand *rand.Rand
}

func (s *unsure) Prefill(ctx context.Context, w *Warmup) (Answer, error) {
	if s.over.Load() {
		s.late.Store(true)
	}
	s.mu.Lock()
	dice := s.rand.IntN(20)
	s.mu.Unlock()
	switch dice {
	case 0:
		<-ctx.Done()
		return Answer{}, ctx.Err()
	case 1:
		return Answer{Status: 200, Usage: openai.Usage{PromptTokens: 1 << 62, CachedTokens: -1 << 62, CompletionTokens: 1 << 62}}, nil
	case 2:
		return Answer{Status: 503, RetryAfter: 3 * time.Second}, nil
	case 3:
		return Answer{Status: 404}, nil
	case 4:
		return Answer{}, errRefused
	}
	return s.rig.Prefill(ctx, w)
}

// fate is what happens to the workers until stop: they leave, drain, fall ill, lose their
// caches and come back; the first one stays.
func (g *rig) fate(stop <-chan struct{}, r *rand.Rand) {
	for {
		select {
		case <-stop:
			g.router.SetWorkers(g.specs)
			return
		case <-time.After(time.Duration(r.IntN(4000)) * time.Millisecond):
		}
		id := fmt.Sprintf("w%d", 2+r.IntN(3))
		switch r.IntN(5) {
		case 0:
			g.router.SetWorkers(slices.DeleteFunc(slices.Clone(g.specs), func(s router.WorkerSpec) bool { return s.ID == id }))
			time.Sleep(time.Second)
			g.router.SetWorkers(g.specs)
			g.router.SetFeed(kv.WorkerRank{ID: id}, router.Feed{State: router.FeedComplete, BlockSize: 16})
			g.prefill.Join(id)
		case 1:
			g.router.SetDraining(id, true)
			time.Sleep(time.Second)
			g.router.SetDraining(id, false)
		case 2:
			for range 5 { // it flaps
				g.router.SetHealth(id, false, "ill")
				time.Sleep(300 * time.Millisecond)
				g.prefill.Join(id)
				g.router.SetHealth(id, true, "")
				time.Sleep(300 * time.Millisecond)
			}
		case 3:
			g.engine(id).clear()
		case 4:
			g.prefill.Pause(id, time.Second)
		}
	}
}

// talks plays one user of several conversations at either proxy.
func (g *rig) talks(u int, all []*Prefiller, seed uint64) {
	r := rand.New(rand.NewPCG(seed, uint64(u)))
	for n := range 4 {
		c := &chat{rig: g, name: fmt.Sprintf("u%dn%d", u, n), key: fmt.Sprint("tenant", u%3)}
		head := someText(fmt.Sprint("head", u%3), 2000)
		for i := range 1 + r.IntN(5) {
			c.via = all[r.IntN(len(all))]
			s := say{User: someText(c.name+fmt.Sprint(i), 50+r.IntN(300)), Reply: someText(c.name+fmt.Sprint("r", i), 20+r.IntN(3000)), Output: 20, Failed: r.IntN(15) == 0}
			if i == 0 {
				s.User = head + s.User
			}
			if r.IntN(2) == 0 {
				s.Reasoning = someText(c.name+"t", 40)
			}
			if r.IntN(4) == 0 {
				s.Call, s.Reply = `{"a":1}`, ""
			}
			before := len(c.messages)
			c.turn(s)
			if r.IntN(10) == 0 { // sent once more, or edited
				c.messages = c.messages[:before]
			}
			time.Sleep(time.Duration(r.ExpFloat64() * 3 * float64(time.Second)))
		}
	}
}

// TestChurn_EverythingTogether: arrivals, hostile answers, workers that come and go, peers
// of which one lies, and a proxy that stops midway: tokens add up, nothing stays booked or
// held once every conversation is over, and nothing is sent after Run's end.
func TestChurn_EverythingTogether(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		synctest.Test(t, func(t *testing.T) { churn(t, seed) })
	}
}

func churn(t *testing.T, seed uint64) {
	var a, b *Prefiller
	meet := func(to **Prefiller) Peers {
		return Peers{Changed: func() {}, Meet: func(m kv.Meeting) { time.AfterFunc(20*time.Millisecond, func() { (*to).Met(m) }) }}
	}
	g := newRig(t, rigConfig{Workers: 4, Thinking: true, Copies: true, MaxQueue: 1000, Prefill: Config{
		Default: ModeOn, Join: true, Replicate: true, Rewarm: true, Holdout: 0.1, Peers: meet(&b),
	}})
	g.quiet = true
	a = g.prefill
	sender := &unsure{rig: g, rand: rand.New(rand.NewPCG(seed, 9))}
	a.cfg.Sender = &unsure{rig: g, rand: rand.New(rand.NewPCG(seed, 8))}
	b = New(Config{Default: ModeOn, Join: true, Replicate: true, Rewarm: true, Router: g.router, Sender: sender, Identify: g.identify, Peers: meet(&a)})
	ctx, cancel := context.WithCancel(g.ctx)
	ended := make(chan struct{})
	go func() { // joined below
		_ = b.Run(ctx)
		sender.over.Store(true)
		close(ended)
	}()
	stop := make(chan struct{})
	var wg, users sync.WaitGroup
	wg.Go(func() { (&link{a: a, b: b, rand: rand.New(rand.NewPCG(seed, 1))}).run(stop) })
	wg.Go(func() { g.fate(stop, rand.New(rand.NewPCG(seed, 2))) })
	wg.Go(func() { lies(a, stop, rand.New(rand.NewPCG(seed, 3))) })
	for u := range 12 {
		users.Go(func() { g.talks(u, []*Prefiller{a, b}, seed) })
	}
	time.Sleep(20 * time.Second)
	cancel() // b takes turns as before, and warms nothing
	<-ended
	users.Wait()
	close(stop)
	wg.Wait()
	g.balanced("after the last turn")
	time.Sleep(2 * time.Hour)
	if kinds := g.balanced("at the end"); kinds[tokenSent] == 0 {
		t.Error("nothing was warmed")
	}
	for name, p := range map[string]*Prefiller{"a": a, "b": b} {
		if n := p.sending.Load(); n != 0 || p.held.Load() != 0 {
			t.Errorf("%s: %d under way, %d bytes held", name, n, p.held.Load())
		}
	}
	if _, open := g.tokenCounters(); open != 0 {
		t.Errorf("%v tokens are open", open)
	}
	for _, s := range g.router.Status() {
		if s.Warming || s.Inflight != 0 {
			t.Errorf("%s: warming %v, %d in flight", s.Worker, s.Warming, s.Inflight)
		}
	}
	if sender.late.Load() {
		t.Error("a warm-up was sent after the end of Run")
	}
	var kinds []string
	for name, n := range g.sums() {
		if n > 0 && (strings.HasPrefix(name, "copies") || strings.HasPrefix(name, "outcomes") || strings.HasPrefix(name, "meet")) {
			kinds = append(kinds, fmt.Sprintf("%s=%g", name, n))
		}
	}
	slices.Sort(kinds)
	t.Log(strings.Join(kinds, ", "))
	g.close()
}

// lies plays a peer that tells of warm-ups and meetings that there are not.
func lies(p *Prefiller, stop <-chan struct{}, r *rand.Rand) {
	for {
		select {
		case <-stop:
			p.Elsewhere("liar", nil)
			return
		case <-time.After(30 * time.Millisecond):
		}
		var all []kv.WarmUp
		for range r.IntN(kv.MaxWarmUps) {
			all = append(all, kv.WarmUp{ID: r.Uint64() | 1, BlockSize: 1 + r.IntN(1<<16), Blocks: 1 + r.IntN(9), Tail: kv.SequenceHash(r.Uint64() | 1)})
		}
		p.Elsewhere("liar", all)
		p.Met(kv.Meeting{ID: uint64(1 + r.IntN(300)), Ended: r.IntN(2) == 0, OK: r.IntN(2) == 0, Cached: r.IntN(1<<20) - 1, TTFT: time.Duration(r.IntN(1 << 40))})
	}
}
