package prefill

// What becomes of the tokens that warm-ups were sent to compute. tokenSent is the sum of
// the others and of those whose next turn is still to come.
const (
	tokenSent      = "sent"
	tokenUsed      = "used"           // the next turn found them cached
	tokenLeft      = "cancelled_used" // the same, of a warm-up that it cancelled
	tokenCancelled = "cancelled"      // not computed in time, or not found
	tokenWasted    = "wasted"
	tokenFailed    = "failed"
	tokenUnknown   = "unknown" // nobody can tell
)

// sendsLocked counts the tokens of a warm-up that is sent, for the first time or again.
// before is what it was to leave until now.
func (p *Prefiller) sendsLocked(before, w *warmth) {
	open := w.gain
	if before.worker == w.worker {
		w.gain = max(w.gain, before.gain) // the same tokens count once
		open = w.gain - before.gain
	} else if before.gain > 0 {
		p.tokensLocked(tokenWasted, before.gain) // on a worker that it has left
		p.mu.tokensOpen -= before.gain
	}
	p.mu.tokensOpen += open
	p.tokensLocked(tokenSent, open)
}

// closeTokensLocked counts what became of the tokens of a warm-up, once: so many were
// found by the next turn, the rest is of the given kind.
func (p *Prefiller) closeTokensLocked(w *warmth, found int, rest string) {
	if w.gain == 0 || w.counted {
		return
	}
	w.counted = true
	as := tokenUsed
	if rest == tokenCancelled {
		as = tokenLeft
	}
	p.mu.tokensOpen -= w.gain
	p.tokensLocked(as, found)
	p.tokensLocked(rest, w.gain-found)
}

// forgetTokensLocked counts the tokens of a warm-up after which no next turn came.
func (p *Prefiller) forgetTokensLocked(w *warmth) {
	if w.cancelled {
		p.closeTokensLocked(w, 0, tokenCancelled)
		return
	}
	p.closeTokensLocked(w, 0, tokenWasted)
}

func (p *Prefiller) tokensLocked(kind string, n int) {
	if n > 0 {
		p.mu.tokens[kind] += n
		p.metrics.tokens.WithLabelValues(kind).Add(float64(n))
	}
}
