package prefill

import (
	"context"
	"time"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// Yield makes the warm-ups on a rank give way: a client's request was routed there. What
// they have computed stays in the engine's cache, and they go on where they stopped once
// the rank is free again. It costs one load where there are none.
func (p *Prefiller) Yield(to kv.WorkerRank) {
	if p == nil || p.sending.Load() == 0 {
		return
	}
	var leases []*router.Lease
	p.mu.Lock()
	for _, j := range p.mu.jobs {
		if j.lease != nil && j.lease.Worker() == to {
			leases = append(leases, j.lease)
			p.recallLocked(j)
			p.metrics.yields.Inc()
		}
	}
	copies := p.recallCopiesLocked(cutYield, func(c *copying) bool { return c.to == to })
	p.mu.Unlock()
	p.metrics.yields.Add(float64(len(copies)))
	leases = append(leases, copies...)
	for _, l := range leases {
		l.Done(noOutcome)
	}
}

// yieldLate makes a warm-up that was just booked give way to a request that came between the
// last look at its rank and the booking: Yield could not find it then.
func (p *Prefiller) yieldLate(to kv.WorkerRank, model string) {
	o, err := p.cfg.Router.Outlook(&router.Request{Model: model, PinWorker: to.ID, PinRank: to.Rank, Speculative: true})
	if err == nil && o.Waiting > 0 {
		p.Yield(to)
	}
}

// dispatch sends a warm-up, unless it was cancelled before.
func (p *Prefiller) dispatch(ctx context.Context, w *Warmup) (Answer, error) {
	if err := ctx.Err(); err != nil {
		return Answer{}, err
	}
	return p.cfg.Sender.Prefill(ctx, w)
}

// evacuate cancels the warm-ups on workers that take no more requests: the next turn goes
// elsewhere, and so will they.
func (p *Prefiller) evacuate() {
	if p.sending.Load() == 0 {
		return
	}
	p.evacuateCopies()
	under := map[*job]*router.Lease{}
	p.mu.Lock()
	for _, j := range p.mu.jobs {
		if j.lease != nil {
			under[j] = j.lease
		}
	}
	p.mu.Unlock()
	for j, l := range under {
		if !l.Leaves() {
			continue
		}
		p.mu.Lock()
		still := j.lease == l
		if still {
			p.recallLocked(j)
		}
		p.mu.Unlock()
		if still {
			l.Done(noOutcome)
		}
	}
}

// recallLocked cancels the request of a warm-up that is under way.
func (p *Prefiller) recallLocked(j *job) {
	j.cut()
	j.lease = nil
	p.sending.Add(-1)
	p.mu.learn.spent(j.c, time.Since(j.sent))
}
