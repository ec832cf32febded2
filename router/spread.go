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
	paid float64 // seconds
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
	to, low := -1, math.Inf(1)
	for i := range s.rows {
		w := &s.rows[i]
		if w.skip != "" || w.tokens >= b.tokens {
			continue
		}
		in := w.in
		in.overlap, in.evict = b.in.overlap, b.in.evict
		if t := in.cost().total(); t < low {
			to, low = i, t
		}
	}
	if to < 0 || low >= b.total {
		return best, false
	}
	e := r.mu.rents.of(head, q.now)
	e.paid += b.total - low
	if e.paid < s.rows[to].total-b.total {
		return best, false
	}
	e.paid = 0
	return to, true
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
		e.paid *= math.Exp(-max(now.Sub(e.at).Seconds(), 0) / rentMemory.Seconds())
	}
	e.at = now
	if e.head != head {
		e.head, e.paid = head, 0
	}
	return e
}
