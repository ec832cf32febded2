package router

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// query is one Route in progress.
type query struct {
	req       *Request
	to        *served
	overlaps  *scratch
	now       time.Time
	tau       float64 // age scale of eviction, seconds
	output    float64 // L
	turns     float64 // F, 1 unless this is a first turn
	level     int     // of the breakers of its candidates
	spare     bool    // a candidate that is not being warmed can take it
	first     bool
	talk      talk // the conversation that the request continues
	returning bool // talk is known
}

// row is one candidate.
type row struct {
	rank  *rank
	skip  string // why it is no candidate; "" otherwise
	full  bool   // skip is the limit of requests in flight
	in    costInput
	terms costTerms
	total float64
	credit
	youngest float64 // Outlook.YoungestEvicted; only of warm-ups
	use      float64 // share of the KV cache in use, in whole percent
}

const (
	tieSeconds = 0.005 // costs so near are equal …
	tieShare   = 0.02  // … or within this share of the lowest
)

// chooseLocked scores every rank that serves the model and chooses one.
func (r *Router) chooseLocked(q *query) (*Decision, *rank, error) {
	s := q.overlaps
	usable, full := r.scoreAllLocked(q)
	if usable == 0 {
		if full > 0 {
			return nil, nil, r.saturatedLocked(q)
		}
		return nil, nil, noWorkers(q)
	}
	best, reason := r.pickLocked(q, usable)
	r.mu.nextID++
	d := q.decide(r, best, reason)
	d.Copy = r.copyLocked(q, best)
	r.mu.recent[r.mu.nextID%maxDecisions] = d
	return d, s.rows[best].rank, nil
}

// scoreAllLocked makes a row of every rank that serves the model and counts those that
// may take the request and those that are at their limit.
func (r *Router) scoreAllLocked(q *query) (usable, full int) {
	s := q.overlaps
	for _, k := range q.to.ranks {
		r.refreshLocked(k, q.now)
	}
	q.level = q.to.levelLocked(q.req)
	q.spare = r.spareLocked(q)
	s.predict(r)
	s.rows = s.rows[:0]
	for _, k := range q.to.ranks {
		s.rows = append(s.rows, row{rank: k})
		w := &s.rows[len(s.rows)-1]
		w.skip, w.full = r.skipLocked(k, q)
		switch {
		case w.full:
			full++
		case w.skip == "":
			usable++
		}
		r.scoreLocked(q, w)
	}
	return usable, full
}

// skipLocked tells why rank k may not take the request.
func (r *Router) skipLocked(k *rank, q *query) (reason string, full bool) {
	w, req := k.worker, q.req
	limit := w.maxInflight(r.cfg.MaxInflight)
	switch {
	case k.gone:
		return "removed", false
	case !req.pinned(k):
		return "not pinned", false
	case !w.healthy:
		return "unhealthy", false
	case w.draining:
		return "draining", false
	case slices.Contains(req.Exclude, w.spec.ID):
		return "tried", false
	case w.breaker.level(req) > q.level:
		return "ejected", false
	case w.inflight+w.called >= limit && !req.Speculative:
		return "full", true
	case q.spare && w.warming:
		return "warming", false
	}
	return "", false
}

// spareLocked tells whether workers whose cache is being filled can be left out: not where
// that would leave less than half of those that can take the request, for these would have
// to carry the load of all.
func (r *Router) spareLocked(q *query) bool {
	warming := func(k *rank) bool { return k.worker.warming }
	if q.req.Speculative || !slices.ContainsFunc(q.to.ranks, warming) {
		return false
	}
	q.spare = false
	serve, fill := 0, 0
	for _, k := range q.to.ranks {
		switch skip, _ := r.skipLocked(k, q); {
		case skip != "":
		case warming(k):
			fill++
		default:
			serve++
		}
	}
	return serve > 0 && serve >= fill
}

// scoreLocked computes overlap, load and cost of one candidate.
func (r *Router) scoreLocked(q *query, w *row) {
	k, s := w.rank, q.overlaps
	m := k.worker.base
	spec := &k.worker.spec
	w.credit = s.credit(k)
	in := &w.in
	in.prompt = s.tokens
	in.overlap = w.tokens
	in.rate = k.rate.of(&m.rate)
	in.backlog = k.backlog(q.now, in.rate)
	in.n = float64(k.inflight)
	in.kv = float64(k.kvTokens.Load())
	in.held = k.heldTokens()
	in.own = in.prompt
	in.cap = float64(spec.CapacityTokens)
	in.maxSeqs = float64(spec.MaxNumSeqs)
	in.itl, _ = m.itl.coefficients()
	in.output, in.turns = q.output, q.turns
	in.scaled(r.mu.exchange.scale)
	if in.cap > 0 && in.held > 0 && in.held+in.own > 0.95*in.cap {
		in.held = max(in.held-k.peers.held.both(&k.held), 0)
		chain, unit := s.unit(k)
		in.own -= k.held.shared(chain, unit)
	}
	cached := in.held
	if k.exact() {
		bs := float64(k.blockSize())
		x := r.cfg.Index.Exact(k.blockSize())
		stored := float64(x.Held(k.num)[kv.TierGPU]) * bs
		cached = max(cached, stored)
		if in.cap > 0 {
			// Booked tokens will be blocks soon but no event has told them yet; in.held
			// has them already.
			need := in.prompt - in.overlap + in.output + max(in.held, stored+in.backlog+k.warmTokens) - in.cap
			if must := int(math.Ceil(need / bs)); must > 0 {
				tau := time.Duration(q.tau * float64(time.Second))
				decayed := x.DecayedOldest(k.num, must, tau)
				in.must, in.evict = float64(must)*bs, decayed*bs
				if q.req.Speculative {
					w.youngest = decayed - x.DecayedOldest(k.num, must-1, tau)
				}
			}
		}
	}
	if in.cap > 0 {
		w.use = math.Round(100 * cached / in.cap)
	} else {
		w.use = math.Round(cached / distinctTokens)
	}
	w.terms = in.cost()
	w.total = w.terms.total()
}

// pickLocked chooses by the router's mode and returns the row and the reason.
func (r *Router) pickLocked(q *query, usable int) (best int, reason string) {
	rows := q.overlaps.rows
	reason = "mode"
	mode := r.cfg.Mode
	if q.req.Speculative {
		mode = ModeKV // a warm-up goes where blocks are and takes nobody's turn
	}
	switch mode {
	case ModeRoundRobin:
		best = nth(rows, int(q.to.turn.Add(1)-1)%usable)
	case ModeRandom:
		best = nth(rows, r.mu.rand.IntN(usable))
	case ModeLeastLoaded:
		best = r.pickTiedLocked(q, func(*row) bool { return true })
	default:
		best = r.cheapestLocked(q)
		if q.overlaps.tokens == 0 {
			reason = "blind"
			break
		}
		reason = why(rows, best)
		if to, ok := r.spreadLocked(q, best); ok {
			best, reason = to, "spread"
		}
	}
	switch {
	case len(q.req.Exclude) > 0:
		reason = "failover"
	case q.req.PinWorker != "" || q.req.PinRank >= 0:
		reason = "pinned"
	case q.level > 0:
		reason = "last_resort"
	case usable == 1:
		reason = "only"
	}
	return best, reason
}

// cheapestLocked chooses by cost, by load where nothing is known of the prompt.
func (r *Router) cheapestLocked(q *query) int {
	if q.overlaps.tokens == 0 {
		return r.pickTiedLocked(q, func(*row) bool { return true })
	}
	near := nearest(q.overlaps.rows)
	return r.pickTiedLocked(q, func(w *row) bool { return w.total <= near })
}

// nearest returns the highest cost that equals the lowest one.
func nearest(rows []row) float64 {
	low := math.Inf(1)
	for i := range rows {
		if w := &rows[i]; w.skip == "" {
			low = min(low, w.total)
		}
	}
	return low + max(tieSeconds, tieShare*low)
}

// nth returns the n-th candidate of rows.
func nth(rows []row, n int) int {
	for i := range rows {
		if rows[i].skip == "" {
			if n == 0 {
				return i
			}
			n--
		}
	}
	panic("BUG: fewer candidates than counted")
}

// pickTiedLocked chooses among the candidates that in keeps: fewest sequences in
// flight, then lowest KV use, then random.
func (r *Router) pickTiedLocked(q *query, in func(*row) bool) int {
	rows := q.overlaps.rows
	tied := q.overlaps.tied[:0]
	for i := range rows {
		w := &rows[i]
		if w.skip != "" || !in(w) {
			continue
		}
		if len(tied) > 0 {
			b := &rows[tied[0]]
			if w.in.n > b.in.n || w.in.n == b.in.n && w.use > b.use {
				continue
			}
			if w.in.n < b.in.n || w.use < b.use {
				tied = tied[:0]
			}
		}
		tied = append(tied, i)
	}
	q.overlaps.tied = tied
	if len(tied) == 1 {
		return tied[0]
	}
	if q.req.Speculative {
		return tied[r.mu.aside.IntN(len(tied))]
	}
	return tied[r.mu.rand.IntN(len(tied))]
}

// why names the reason of a choice by cost: "evict" where another candidate would
// have won but for the blocks that it must evict, "cold" where nobody holds a block
// of the prompt, "overlap" where nobody holds more than the chosen, or only candidates
// of equal cost do and by no more than a block (the indexes count in different blocks),
// else "load".
func why(rows []row, best int) string {
	b := &rows[best]
	near := nearest(rows)
	cold, more, evict := true, false, false
	for i := range rows {
		w := &rows[i]
		if w.skip != "" {
			continue
		}
		cold = cold && w.tokens == 0
		if w.tokens > b.tokens {
			block := float64(max(w.rank.blockSize(), b.rank.blockSize()))
			more = more || b.tokens == 0 || w.total > near || w.tokens-b.tokens > block
		}
		evict = evict || w.total-w.terms.evict+tieSeconds < b.total-b.terms.evict
	}
	switch {
	case evict:
		return "evict"
	case cold:
		return "cold"
	case !more:
		return "overlap"
	}
	return "load"
}

// saturatedLocked estimates when one request of the full workers will have ended.
func (r *Router) saturatedLocked(q *query) error {
	e := &SaturatedError{Limit: math.MaxInt}
	soon := math.Inf(1)
	for i := range q.overlaps.rows {
		w := &q.overlaps.rows[i]
		if !w.full {
			continue
		}
		e.Limit = min(e.Limit, w.rank.worker.maxInflight(r.cfg.MaxInflight))
		soon = min(soon, w.rank.turnover(w.in.output))
	}
	e.RetryAfter = retryAfter(soon)
	return e
}

// why returns what the fleet said of a candidate that it took out.
func (w *row) why() string {
	switch w.skip {
	case "unhealthy":
		return w.rank.worker.reason
	case "ejected":
		return w.rank.worker.breaker.Reason
	}
	return ""
}

// noWorkers names what is wrong with each worker of the model.
func noWorkers(q *query) error {
	var b strings.Builder
	for i := range q.overlaps.rows {
		if i == 4 {
			b.WriteString(", and " + strconv.Itoa(len(q.overlaps.rows)-i) + " more")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		w := &q.overlaps.rows[i]
		b.WriteString(w.rank.label + " " + w.skip)
		if why := w.why(); why != "" {
			b.WriteString(" (" + why + ")")
		}
	}
	return fmt.Errorf("%w for model %q: %s", ErrNoWorkers, q.req.Model, b.String())
}
