package router

import (
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

// staleReports is the number of reports below the predicted overlap, in a row, that
// prove an index wrong.
const staleReports = 3

type phase uint8

const (
	phasePrefill phase = iota // booked: part of the backlog
	phaseDecode               // past its first token, or drained
	phaseDone
)

// Outcome is how a request ended, as far as its response told.
type Outcome struct {
	OK           bool // the response was complete
	CachedTokens int  // prompt tokens that the engine found cached; −1: not reported
	PromptTokens int  // −1: not reported
	OutputTokens int  // −1: not reported; then those of Progress count
}

// Lease is the load of one request on one worker. Its owner, whoever writes the
// response, calls FirstToken and Progress from one goroutine and Done at least once,
// from any.
type Lease struct {
	r        *Router
	rank     *rank
	base     *model
	decision *Decision
	scope    scope
	sendRank bool

	// What the index learns of the request, and what its conversation is known by.
	blockSize int
	chain     []kv.SequenceHash // in blocks of the rank; nil without tokens
	ids       []kv.SequenceHash // what predictions and held tokens go by: chain or text
	exact     int               // its blocks that events promised
	expected  int               // blocks of ids that others in flight were computing
	text      []kv.SequenceHash
	bounds    []int
	byText    bool // the conversation is known by its text
	talk      talk
	returning bool
	shared    float64 // tokens of its prompt that are not its own

	prompt   float64   // tokens
	uncached float64   // tokens booked as backlog
	drained  time.Time // when they should be computed, by the rate at booking
	unitSize float64   // tokens of a block of ids
	prefill  float64   // predicted seconds of our own prefill
	stream   bool
	warm     bool // a warm-up: nobody's request
	alone    bool // nothing else was in flight when it was booked
	booked   time.Time

	// Guarded by Router.mu.
	phase      phase
	prediction index.Prediction
	predicted  time.Time // when the prediction was last renewed; zero: none
	learned    bool
	seen       bool // FirstToken was called

	// kv is the tokens that count on the rank: prompt and output so far; −1 once
	// they are given back.
	kv     atomic.Int64
	output atomic.Int64
	gap    gap // Progress only

	told told // guarded by Router.mu
}

// gap is one window of tokens between which nothing was prefilled.
type gap struct {
	open   bool
	from   int64
	tokens int
	n, kv  float64
}

// Worker returns the worker and rank that the request goes to.
func (l *Lease) Worker() kv.WorkerRank { return l.rank.name }

// SendRank tells whether the worker has several ranks, so that the request must name
// its rank.
func (l *Lease) SendRank() bool { return l.sendRank }

// Decision returns why this worker was chosen. It must not be changed.
func (l *Lease) Decision() *Decision { return l.decision }

// FirstToken tells that the first token of the response was seen: the prefill is
// over and its blocks are resident. Of a warm-up its end tells that.
func (l *Lease) FirstToken() {
	if l.warm {
		return
	}
	r, k := l.r, l.rank
	now := r.cfg.Now()
	r.mu.Lock()
	if l.phase == phaseDone || !l.stream && l.phase != phasePrefill || l.seen {
		r.mu.Unlock()
		return
	}
	l.seen = true
	if l.phase == phasePrefill {
		r.leavePrefillLocked(l, now, true)
	}
	ttft := now.Sub(l.booked).Seconds()
	if l.stream && l.alone && k.inflight == 1 && l.uncached <= interceptTokens {
		k.worker.base.intercept.observe(ttft, l.prefill)
	}
	learn := !l.learned
	l.learned = true
	r.mu.Unlock()

	if learn {
		l.learn()
	}
	if l.stream {
		r.metrics.firstToken(l.decision.PredictedTTFT, ttft)
	}
}

// learn tells the approximate index that the worker holds the prompt.
func (l *Lease) learn() {
	if len(l.text) > 0 {
		l.r.cfg.Index.Approximate().Learn(l.rank.num, l.text, l.bounds)
	}
}

// Progress tells that the output grew by tokens. It costs no lock but once in 16
// tokens.
func (l *Lease) Progress(tokens int) {
	if tokens <= 0 {
		return
	}
	k := l.rank
	for {
		v := l.kv.Load()
		if v < 0 {
			return // given back
		}
		if l.kv.CompareAndSwap(v, v+int64(tokens)) {
			k.kvTokens.Add(int64(tokens))
			break
		}
	}
	l.output.Add(int64(tokens))

	g := &l.gap
	now := l.r.nanos(l.r.cfg.Now())
	n, kv := float64(k.sequences.Load()), float64(k.kvTokens.Load())
	if !g.open || k.calmSince.Load() > g.from {
		*g = gap{open: true, from: now, n: n, kv: kv}
		return
	}
	if g.tokens += tokens; g.tokens < itlWindow {
		return
	}
	l.base.itl.observe(float64(now-g.from)/1e9/float64(g.tokens), (g.n+n)/2, (g.kv+kv)/2)
	*g = gap{open: true, from: now, n: n, kv: kv}
}

// Done gives the booking back. Only the first call counts.
func (l *Lease) Done(o Outcome) {
	r, k := l.r, l.rank
	now := r.cfg.Now()
	r.mu.Lock()
	if l.phase == phaseDone {
		r.mu.Unlock()
		return
	}
	if l.warm {
		r.cooledLocked(l, now, o.OK)
	} else {
		if l.phase == phasePrefill {
			r.leavePrefillLocked(l, now, false)
		}
		if !o.OK && !l.seen && !l.predicted.IsZero() {
			r.cfg.Index.Predicted().Retract(l.prediction)
		}
		k.discountLocked(l)
	}
	l.phase = phaseDone
	r.untellLocked(l)
	stale := l.staleLocked(o)
	learn := o.OK && !l.learned
	l.learned = l.learned || learn
	r.mu.Unlock()
	defer r.release(k)

	if learn {
		l.learn()
	}
	if o.OK || l.seen {
		if len(l.chain) > 0 {
			r.cfg.Index.Exact(l.blockSize).Touch(k.num, l.chain)
		}
	}
	output := o.OutputTokens
	if output < 0 {
		output = int(l.output.Load())
	}
	if o.OK && !l.warm {
		r.expect.observeOutput(l.scope, output)
		r.talks.ended(l, output, now, r.expect)
	}
	if !l.warm {
		r.metrics.done(l, o)
	}
	if stale {
		r.metrics.staleHit()
		if r.cfg.OnStaleHits != nil {
			r.cfg.OnStaleHits(k.name)
		}
	}
}

// release ends the hold of a lease on its rank.
func (r *Router) release(k *rank) {
	r.mu.Lock()
	r.releaseLocked(k)
	r.settleLocked(k.worker)
	last := k.holds == 0
	r.mu.Unlock()
	if last {
		r.sweep()
	}
}

// staleLocked counts reports of fewer cached tokens than events promised and tells
// when the index of the rank is proved wrong. One block of slack: engines recompute
// the last block of a prompt that is cached whole.
func (l *Lease) staleLocked(o Outcome) bool {
	k := l.rank
	if o.CachedTokens < 0 || l.exact == 0 || !k.exact() {
		return false
	}
	if o.CachedTokens >= (l.exact-1)*l.blockSize {
		k.stale = 0
		return false
	}
	if k.stale++; k.stale < staleReports {
		return false
	}
	k.stale = 0
	return true
}

// Leaves tells whether the lease's worker takes no more requests: it was removed, drains or
// is not healthy.
func (l *Lease) Leaves() bool {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	w := l.rank.worker
	return l.rank.gone || w.draining || !w.healthy
}
