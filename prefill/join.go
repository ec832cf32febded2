package prefill

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	joinLife    = 10 * time.Second // from healthy to ready, whatever is done by then
	joinWait    = 2 * time.Second  // for the router to see the worker
	joinCache   = 0.5              // share of its cache that heads may fill
	joinHurry   = 0.9              // share of the time left that a head is expected to take at most
	clearedFrom = 64               // blocks: a rank that held as many …
	clearedTo   = 8                // … and a second later less than this part has lost its cache
)

// Join tells that a worker is about to take requests, maybe with an empty cache. Where
// there are hot heads, the router leaves it out until they are warm there, at most for
// joinLife and only while at least half of those that can take the requests are left. It
// never waits.
func (p *Prefiller) Join(worker string) {
	if p == nil || !p.cfg.Join {
		return
	}
	began := time.Now()
	p.mu.Lock()
	idle := p.mu.closed || len(p.mu.heads.hottest(began)) == 0
	if _, twice := p.mu.joining[worker]; twice || idle {
		p.mu.Unlock()
		return
	}
	p.mu.joining[worker] = began
	p.mu.Unlock()
	p.cfg.Router.SetWarming(worker, true)
	if !p.start(func(ctx context.Context) { p.join(ctx, worker, began) }) {
		p.joined(worker, began)
	}
}

// joined makes a worker ready.
func (p *Prefiller) joined(worker string, began time.Time) {
	p.cfg.Router.SetWarming(worker, false)
	p.mu.Lock()
	delete(p.mu.joining, worker)
	p.mu.Unlock()
	p.metrics.joins.Observe(time.Since(began).Seconds())
}

func (p *Prefiller) join(ctx context.Context, worker string, began time.Time) {
	defer p.joined(worker, began)
	ctx, cancel := context.WithDeadline(ctx, began.Add(joinLife))
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, s := range p.usable(ctx, worker, began.Add(joinWait)) {
		wg.Go(func() { p.fill(ctx, &s) })
	}
}

// usable waits until the router would send something to a worker and returns its ranks,
// none where it does not come to that.
func (p *Prefiller) usable(ctx context.Context, worker string, until time.Time) []router.WorkerStatus {
	for {
		ranks := slices.DeleteFunc(p.cfg.Router.Status(), func(s router.WorkerStatus) bool { return s.Worker != worker })
		if len(ranks) > 0 && ranks[0].Healthy && !ranks[0].Draining && len(ranks[0].Models) > 0 {
			return ranks
		}
		if time.Now().After(until) || !sleep(ctx, copyRetry) {
			return nil
		}
	}
}

// fill warms the hottest heads on one rank, one after the other, until one of the bounds
// is reached or a client's request comes.
func (p *Prefiller) fill(ctx context.Context, s *router.WorkerStatus) {
	to := kv.WorkerRank{ID: s.Worker, Rank: s.Rank}
	room := math.Inf(1)
	if s.CapacityTokens > 0 {
		room = joinCache * float64(s.CapacityTokens)
	}
	p.mu.Lock()
	list := p.mu.heads.hottest(time.Now())
	p.mu.Unlock()
	for _, h := range list {
		if !slices.Contains(s.Models, h.key.model) {
			continue
		}
		c := &copying{prefix: prefix{h.key.model, h.ns, h.tokens}, trigger: TriggerJoin, to: to}
		if !p.shorten(ctx, c, room) {
			continue
		}
		outcome, reason, _ := p.copy(ctx, c, nil)
		switch {
		case outcome == copyWarmed:
			room -= float64(c.gain)
		case outcome == copySkipped && (reason == skipGain || reason == skipBudget):
		default:
			return // clients are there already, or it does not work
		}
	}
}

// shorten cuts a head to what the time, the budget and the cache have room for.
func (p *Prefiller) shorten(ctx context.Context, c *copying, room float64) bool {
	ask := router.Request{Model: c.model, Prompt: c.prompt(), PinWorker: c.to.ID, PinRank: c.to.Rank, Speculative: true}
	o, err := p.cfg.Router.Outlook(&ask)
	if err != nil {
		return true // book says so
	}
	deadline, _ := ctx.Deadline()
	p.mu.Lock()
	seconds := min(p.mu.budget.room(c.trigger), joinHurry*time.Until(deadline).Seconds())
	p.mu.Unlock()
	n := o.OverlapTokens + int(min(seconds*o.Rate, room))
	if n < len(c.tokens) {
		c.tokens = c.tokens[:max(n, 0)/headBlock*headBlock]
	}
	return len(c.tokens) >= minHead
}

// watchCaches calls Join for workers that have just lost their cache: it was cleared, or
// the engine restarted faster than a health check could see. Where events are incomplete it
// may be the index that has lost them. held is what it saw last.
func (p *Prefiller) watchCaches(held map[kv.WorkerRank]int) {
	seen := map[kv.WorkerRank]int{}
	for _, s := range p.cfg.Router.Status() {
		k, n := kv.WorkerRank{ID: s.Worker, Rank: s.Rank}, s.HeldBlocks.GPU
		seen[k] = n
		if was := held[k]; s.Healthy && !s.Draining && s.Coverage == router.FeedComplete && was >= clearedFrom && n < was/clearedTo {
			p.Join(s.Worker)
		}
	}
	clear(held)
	for k, n := range seen {
		held[k] = n
	}
}
