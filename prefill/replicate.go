package prefill

import (
	"context"
	"slices"
	"time"

	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	copyLife      = 10 * time.Second // from the decision to the end of a copy
	maxReplicates = 16               // on their way at once
)

// replicate queues a copy on an idle worker where the rent of the prompt's head pays for
// it. It keeps nothing of prompt but a copy of the head.
func (t *Turn) replicate(l *router.Lease, prompt *kv.Prompt) {
	if t.mode == "" || !t.p.cfg.Replicate {
		return
	}
	p, offer := t.p, l.Decision().Copy
	if offer == nil || offer.Tokens < minHead {
		return
	}
	skip := func(reason string) {
		p.metrics.copies.WithLabelValues(string(TriggerReplicate), copySkipped, reason).Inc()
	}
	if !prompt.Exact() || offer.Tokens > len(prompt.Tokens) {
		skip(skipTokens)
		return
	}
	x := prefix{t.id.model, t.id.ns, prompt.Tokens[:offer.Tokens]}
	size := x.size()
	p.mu.Lock()
	full := p.mu.replicating[offer.Worker] || len(p.mu.replicating) >= maxReplicates
	if !full {
		p.mu.replicating[offer.Worker] = true
	}
	p.mu.Unlock()
	if full {
		return // the next decision offers it again
	}
	end := func() {
		p.held.Add(-size)
		p.mu.Lock()
		delete(p.mu.replicating, offer.Worker)
		p.mu.Unlock()
	}
	if p.held.Add(size) > p.cfg.HeldBytes {
		end()
		skip(skipBytes)
		return
	}
	x.tokens = slices.Clone(x.tokens)
	c := &copying{prefix: x, trigger: TriggerReplicate, to: offer.Worker}
	if !p.start(func(ctx context.Context) {
		defer end()
		p.replicate(ctx, c, offer)
	}) {
		end()
	}
}

// replicate sends a copy, and sends it again after it gave way.
func (p *Prefiller) replicate(ctx context.Context, c *copying, offer *router.Copy) {
	ctx, cancel := context.WithTimeout(ctx, copyLife)
	defer cancel()
	paid := false
	for wait := firstWait; ; wait = min(2*wait, longWait) {
		outcome, _, again := p.copy(ctx, c, spareTime)
		if !paid && outcome != copySkipped {
			paid = true
			p.cfg.Router.Copied(offer)
		}
		if !again || !paid || !sleep(ctx, wait) {
			return
		}
		c = &copying{prefix: c.prefix, trigger: c.trigger, to: c.to}
	}
}
