package router

import (
	"math"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	rentSlots  = 2048            // shared heads that are accounted at once
	rentMemory = 5 * time.Minute // e-folding time of rent
)

// rents decides when a shared head, such as a system prompt, is worth computing on one
// more worker. The cost of one request cannot tell: computing the head elsewhere helps
// all later requests that start with it, so by cost alone a hot head with short
// answers stays on the first worker that held it while the others idle.
//
// It is the ski-rental rule. Each request that goes to a crowded worker because of the
// head pays rent: what it would have saved had the best other worker held the head.
// Once the rent paid for a head exceeds what one request loses by computing it there,
// that request does, so at most as much is spent on copies as was lost without them.
type rents struct {
	slots [rentSlots]rent
}

type rent struct {
	head kv.SequenceHash
	paid float64 // seconds, since a request computed the head elsewhere
	owed float64 // seconds lost for want of a copy that nothing has been copied for
	at   time.Time
}

// spreadLocked returns the row that should take the request instead of best, which won
// by cost, and accounts the rent.
func (r *Router) spreadLocked(q *query, best int) (int, bool) {
	s := q.overlaps
	b := &s.rows[best]
	head, ok := s.head(b)
	if !ok || q.returning || q.req.Speculative {
		return best, false
	}
	to, low := s.cheapestCopy(b, func(*row) bool { return true })
	if to < 0 || low >= b.total {
		return best, false
	}
	e := r.mu.rents.of(head, q.now)
	e.paid += b.total - low
	price := s.rows[to].total - b.total
	if e.paid < price {
		return best, false
	}
	e.paid = 0
	if r.cfg.Copies {
		e.owed -= price // the request pays for this copy itself
	}
	return to, true
}

// cheapestCopy returns the row among those that may take the request and hold less of it
// than b for which it would be cheapest if it held as much, −1 for none, and that cost.
func (s *scratch) cheapestCopy(b *row, may func(*row) bool) (to int, low float64) {
	to, low = -1, math.Inf(1)
	for i := range s.rows {
		w := &s.rows[i]
		if w.skip != "" || w.tokens >= b.tokens || !may(w) {
			continue
		}
		in := w.in
		in.overlap, in.evict = b.in.overlap, b.in.evict
		if t := in.cost().total(); t < low {
			to, low = i, t
		}
	}
	return to, low
}

// Copy is a hot head that rent would pay to have on an idle worker: the first Tokens
// tokens of the decision's prompt. Whoever copies it calls Copied.
type Copy struct {
	Worker  kv.WorkerRank `json:"worker"`
	Tokens  int           `json:"tokens"`
	Seconds float64       `json:"seconds"` // price: its prefill and the eviction

	head kv.SequenceHash
}

// copyLocked accounts what the request on the row chosen loses for want of a copy of its
// head on the best other worker, and returns the copy that such losses pay for, to an idle
// worker.
func (r *Router) copyLocked(q *query, chosen int) *Copy {
	s := q.overlaps
	if !r.cfg.Copies || q.returning || q.req.Speculative || s.rows[chosen].skip != "" {
		return nil
	}
	holder := -1
	for i := range s.rows {
		if _, ok := s.head(&s.rows[i]); ok && (holder < 0 || s.rows[i].tokens > s.rows[holder].tokens) {
			holder = i
		}
	}
	if holder < 0 {
		return nil
	}
	h := &s.rows[holder]
	head, _ := s.head(h)
	e := r.mu.rents.of(head, q.now)
	_, low := s.cheapestCopy(h, func(*row) bool { return true })
	e.owed += max(s.rows[chosen].total-low, 0)
	to, _ := s.cheapestCopy(h, func(w *row) bool {
		return w != &s.rows[chosen] && w.rank.inflight == 0 && len(w.rank.warm) == 0
	})
	if to < 0 {
		return nil
	}
	w := &s.rows[to]
	c := &Copy{Worker: w.rank.name, Tokens: int(h.tokens), Seconds: (h.tokens-w.tokens)/w.in.rate + w.terms.evict, head: head}
	if e.owed < c.Seconds {
		return nil
	}
	return c
}

// Copied settles the account of a head whose copy was sent.
func (r *Router) Copied(c *Copy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.mu.rents.of(c.head, r.cfg.Now())
	e.owed = max(e.owed-c.Seconds, 0)
	e.paid = min(e.paid, e.owed)
}

// head returns the hash of the blocks that the worker of w holds of the prompt. Blocks
// that are being computed at this moment do not count: a burst waits for them.
func (s *scratch) head(w *row) (kv.SequenceHash, bool) {
	switch {
	case w.from == fromExact:
		return w.chained.chain[w.blocks-1], true
	case w.from == fromApproximate && w.blocks <= len(s.text):
		return s.text[w.blocks-1], true
	}
	return 0, false
}

// of returns the account of a head. A head that meets another one in its slot starts
// the slot again: hot heads come back sooner than others push them out.
func (t *rents) of(head kv.SequenceHash, now time.Time) *rent {
	e := &t.slots[head%rentSlots]
	if !e.at.IsZero() {
		kept := math.Exp(-max(now.Sub(e.at).Seconds(), 0) / rentMemory.Seconds())
		e.paid *= kept
		e.owed *= kept
	}
	e.at = now
	if e.head != head {
		*e = rent{head: head, at: now}
	}
	return e
}
