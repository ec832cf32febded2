package prefill

import "github.com/warmroute/warmroute/router/kv"

// settle counts what the next turn tells of the warm-up before it.
func (p *Prefiller) settle(c *conversation, e *End) {
	block := max(c.warm.blockSize, 1)
	used := 0
	if e.OK && e.Usage.CachedTokens >= 0 {
		used = max(min(e.Usage.CachedTokens-c.warm.live, c.warm.gain), 0)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.OK && e.TTFT > 0 && c.group != groupNone {
		p.mu.learn.measured(c, e.TTFT)
		switch {
		case c.group == groupWarmed && !c.probe:
			p.metrics.ttft.WithLabelValues("warmed").Observe(e.TTFT.Seconds())
		case c.group == groupHoldout:
			p.metrics.ttft.WithLabelValues("holdout").Observe(e.TTFT.Seconds())
		}
	}
	if c.warm.gain == 0 {
		return
	}
	known := e.OK && e.Usage.CachedTokens >= 0
	switch {
	case !known:
		p.closeTokensLocked(&c.warm, 0, tokenUnknown)
	case c.warm.cancelled:
		p.closeTokensLocked(&c.warm, used, tokenCancelled)
		return
	case used >= min(block, c.warm.gain):
		p.metrics.seen(c.scope.trigger, eventResident)
		p.closeTokensLocked(&c.warm, used, tokenWasted)
	default:
		p.closeTokensLocked(&c.warm, 0, tokenWasted)
	}
	switch {
	case !c.open: // failed, or settled before
	case !e.OK:
		p.closeLocked(c, outcomeUnmeasured, blindFailed)
	case e.Usage.CachedTokens < 0:
		p.closeLocked(c, outcomeUnmeasured, blindUsage)
	case used >= min(block, c.warm.gain):
		p.closeLocked(c, outcomeUsed, "")
	case e.Worker != c.warm.worker:
		p.closeLocked(c, outcomeWasted, wasteMoved)
	case c.warm.partial:
		p.closeLocked(c, outcomeWasted, wasteCut)
	case c.warm.blocks > 0 && e.Prompt != nil && !starts(e.Prompt, &c.warm):
		p.closeLocked(c, outcomeWasted, wasteMismatch)
	default:
		p.closeLocked(c, outcomeWasted, wasteEvicted)
	}
}

// starts tells whether a prompt starts with what was warmed.
func starts(prompt *kv.Prompt, w *warmth) bool {
	chain := prompt.Chain(w.blockSize)
	return len(chain) >= w.blocks && chain[w.blocks-1] == w.tail
}
