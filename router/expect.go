package router

import (
	"container/list"
	"sync"
)

const (
	startOutput = 256 // L, tokens, before the first answer
	maxOutput   = 1 << 17
	startTurns  = 8 // F before the first conversation has ended
	maxTurns    = 12
	// expectTrust is the number of samples from which a (key, model) pair stands
	// alone; below it the model's value over all keys fills in.
	expectTrust  = 8
	expectWeight = 0.1 // of a new sample in the moving average

	maxExpectations = 8192
)

// scope is what L and F are learned for: one tenant's use of one model.
type scope struct{ key, model string }

// mean is a moving average whose first samples count alike.
type mean struct {
	value   float64
	samples int
}

func (m *mean) observe(x float64) {
	m.samples++
	m.value += max(expectWeight, 1/float64(m.samples)) * (x - m.value)
}

// over mixes m with a fallback until it has samples enough.
func (m *mean) over(fallback float64) float64 {
	k := float64(min(m.samples, expectTrust)) / expectTrust
	return k*m.value + (1-k)*fallback
}

type expectation struct {
	of            scope
	pool          bool // over all keys of the model
	output, turns mean
}

// expectations learn output tokens per turn (L) and turns per conversation (F) per
// (key, model). Both maps together hold at most limit entries; the least recently
// used one is forgotten.
type expectations struct {
	limit int
	mu    struct {
		sync.Mutex
		byScope   map[scope]*list.Element
		byModel   map[string]*list.Element
		recent    *list.List // front: used last
		forgotten uint64
	}
}

func newExpectations(limit int) *expectations {
	e := &expectations{limit: limit}
	e.mu.byScope = map[scope]*list.Element{}
	e.mu.byModel = map[string]*list.Element{}
	e.mu.recent = list.New()
	return e
}

// get returns L and F for a request: its own hint first, then what was learned, never
// more output than max_tokens allows.
func (e *expectations) get(req *Request) (output, turns float64) {
	e.mu.Lock()
	own, pool := e.entriesLocked(scope{req.Key, req.Model}, false)
	output, turns = startOutput, startTurns
	for _, x := range []*expectation{pool, own} {
		if x != nil {
			output, turns = x.output.over(output), x.turns.over(turns)
		}
	}
	e.mu.Unlock()
	if req.OutputTokensHint > 0 {
		output = float64(min(req.OutputTokensHint, maxOutput))
	}
	if req.MaxTokens > 0 {
		output = min(output, float64(req.MaxTokens))
	}
	return output, min(max(turns, 1), maxTurns)
}

// entriesLocked returns the entries of a scope and of its model; nil where there is
// none and make is false.
func (e *expectations) entriesLocked(s scope, create bool) (own, pool *expectation) {
	o, p := e.mu.byScope[s], e.mu.byModel[s.model]
	if create {
		if p == nil {
			p = e.mu.recent.PushFront(&expectation{of: scope{"", s.model}, pool: true})
			e.mu.byModel[s.model] = p
		}
		if o == nil {
			o = e.mu.recent.PushFront(&expectation{of: s})
			e.mu.byScope[s] = o
		}
	}
	if p != nil {
		e.mu.recent.MoveToFront(p)
		pool = p.Value.(*expectation)
	}
	if o != nil {
		e.mu.recent.MoveToFront(o)
		own = o.Value.(*expectation)
	}
	for e.mu.recent.Len() > e.limit {
		last := e.mu.recent.Remove(e.mu.recent.Back()).(*expectation)
		if last.pool {
			delete(e.mu.byModel, last.of.model)
		} else {
			delete(e.mu.byScope, last.of)
		}
		e.mu.forgotten++
	}
	return own, pool
}

func (e *expectations) observeOutput(s scope, tokens int) {
	if tokens <= 0 {
		return // the response did not tell
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	own, pool := e.entriesLocked(s, true)
	x := float64(min(tokens, maxOutput))
	own.output.observe(x)
	pool.output.observe(x)
}

func (e *expectations) observeTurns(s scope, turns int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	own, pool := e.entriesLocked(s, true)
	own.turns.observe(float64(turns))
	pool.turns.observe(float64(turns))
}

func (e *expectations) stats() (entries int, forgotten uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.recent.Len(), e.mu.forgotten
}
