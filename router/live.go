package router

import (
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	// fullShare is the share of a pool's KV capacity that live contexts may take before
	// first turns wait: past it the cache evicts what its conversations come back for. Where
	// less than the rest of the capacity will be asked for again there is nothing to keep.
	fullShare = 0.9
	// pressedShare is the share of time with a request before its first token below which
	// the engines have the time to compute evicted contexts again, so that nobody waits: a
	// fleet whose users think for minutes overflows every cache and has nothing to shed.
	pressedShare = 0.3
)

// crowdedLocked tells whether first turns of a model wait: in every pool that serves it
// live contexts fill the KV caches, some of them will be asked for again, and the engines
// are short of time to compute what they have evicted.
func (r *Router) crowdedLocked(to *served, now time.Time) bool {
	for _, m := range to.bases {
		if !r.poolFullLocked(m, now) {
			return false
		}
	}
	return len(to.bases) > 0
}

func (r *Router) poolFullLocked(m *model, now time.Time) bool {
	p := r.poolLocked(m, now)
	return p.capacity > 0 && p.live > fullShare*p.capacity && p.back > (1-fullShare)*p.capacity &&
		r.busyLocked(m, now) >= pressedShare
}

// pool is what the KV caches of the workers of one base model hold, in tokens.
type pool struct {
	live     float64 // of requests in flight, those that are called, and idle contexts that come back
	back     float64 // of these, what will be asked for again
	share    float64 // of the contexts of turns that end: those that come back
	capacity float64 // of usable workers; 0: one does not tell
}

// poolLocked counts prefixes that requests in flight share once on each rank.
func (r *Router) poolLocked(m *model, now time.Time) pool {
	held := m.promised
	p := pool{}
	for _, k := range m.ranks {
		held += k.heldTokens()
		w := k.worker
		if !w.healthy || w.draining {
			continue
		}
		if w.spec.CapacityTokens <= 0 {
			return pool{}
		}
		p.capacity += float64(w.spec.CapacityTokens)
	}
	idle, share := r.talks.expected(&m.idle, now)
	p.live, p.back, p.share = held+idle, share*held+idle, share
	return p
}

// busyLocked returns the share of the last minute in which a request waited for its first
// token, as a mean over the pool's usable ranks.
func (r *Router) busyLocked(m *model, now time.Time) float64 {
	var busy, over time.Duration
	for _, k := range m.ranks {
		if k.worker.healthy && !k.worker.draining {
			k.settleBusyLocked(r, now)
			busy += k.busy.last(r.nanos(now))
			over += time.Duration(min(r.nanos(now)-k.joined, meterSpan*second))
		}
	}
	return busy.Seconds() / max(over.Seconds(), 1e-9)
}

const (
	// startIdle is the weight, in tokens, of the first guess that nothing comes back: that
	// of a few conversations.
	startIdle = 1 << 16
	// idleMemory is what one more context leaves of the weight of those before it.
	idleMemory = 0.98
)

// idle is what the conversations of one pool that wait for their next turn hold in its KV
// caches, by the list of their age. A list counts by the share of its tokens that have
// come back so far, so that requests which are whole conversations count little however
// many there are: a survival curve in five steps (Kaplan and Meier 1958). Guarded by
// conversations.mu.
type idle [listEnded]struct {
	tokens     float64 // of the contexts in the list, shared heads left out
	back, gone float64 // decayed sums of those that came back from it, and that left it otherwise
}

func newIdle() (x idle) {
	for i := range x {
		x[i].gone = startIdle
	}
	return x
}

// expected returns the tokens that will come back, and the share of fresh contexts that
// do.
func (x *idle) expected() (tokens, share float64) {
	for i := len(x) - 1; i >= 0; i-- {
		share = (x[i].back + x[i].gone*share) / (x[i].back + x[i].gone)
		tokens += x[i].tokens * share
	}
	return tokens, share
}

// settle notes that a context of a list came back, or left it otherwise.
func (x *idle) settle(list int32, own float64, back bool) {
	l := &x[list]
	l.back *= idleMemory
	l.gone *= idleMemory
	if back {
		l.back += own
	} else {
		l.gone += own
	}
}

// shared returns the tokens of a prompt that do not belong to its conversation alone: what
// the worker of its first turn held of that, a system prompt or tools.
func (q *query) shared(overlap float64) float64 {
	switch {
	case q.returning:
		return q.talk.shared
	case q.first:
		return overlap
	}
	return 0
}

// own returns the tokens of a conversation's context that count as its own.
func (t *talk) own() float64 { return max(t.prompt+t.output-t.shared, 0) }

// expected returns the tokens of idle contexts that will come back.
func (c *conversations) expected(x *idle, now time.Time) (tokens, share float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lapseLocked(now)
	return x.expected()
}

// returned notes that the next turn of the conversation known by end is in flight: its
// context counts as that turn's.
func (c *conversations) returned(end kv.SequenceHash) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i, ok := c.mu.byEnd[end]; ok {
		v := &c.mu.slab[i]
		if v.list < listEnded && !v.busy {
			v.idle.settle(v.list, v.own(), true)
			v.idle[v.list].tokens -= v.own()
		}
		v.busy = true
	}
}
