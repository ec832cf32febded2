package router

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/router/index"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	// drainCap is the share of a streaming request's booking that time alone may
	// drain: only its first token proves the rest.
	drainCap = 0.95
	// extendEvery is how often a prediction is renewed while its prefill is in
	// flight; well below the life of a predicted entry.
	extendEvery = 500 * time.Millisecond
	// expireAfter is when a prediction that was not renewed counts as gone.
	expireAfter = 1500 * time.Millisecond
	// staleReports is the number of reports below the predicted overlap, in a row,
	// that prove an index wrong.
	staleReports = 3
)

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
	fit      *itlFit
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

	prompt   float64 // tokens
	uncached float64 // tokens booked as backlog
	unitSize float64 // tokens of a block of ids
	prefill  float64 // predicted seconds of our own prefill
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
}

// gap is one window of tokens between which nothing was prefilled.
type gap struct {
	open   bool
	from   int64
	tokens int
	n, kv  float64
}

// bookLocked makes the lease and counts it on rank k.
func (r *Router) bookLocked(q *query, d *Decision, k *rank) *Lease {
	s := q.overlaps
	w := &s.rows[d.chosen]
	l := &Lease{
		r: r, rank: k, fit: k.worker.base.itl, decision: d,
		scope:    scope{q.req.Key, q.req.Model},
		sendRank: len(k.worker.ranks) > 1,
		talk:     q.talk, returning: q.returning,
		blockSize: k.blockSize(), exact: w.exact,
		prompt: s.tokens, prefill: w.terms.prefill,
		stream: q.req.Stream, warm: q.req.Speculative, alone: k.inflight == 0, booked: q.now,
	}
	if w.chained != nil {
		l.chain = w.chained.chain
	}
	if w.from == fromPredicted {
		l.expected = w.blocks
	}
	if s.prompt != nil {
		l.text, l.bounds, l.byText = s.text, s.prompt.TextBoundaries, byText(s.prompt)
	}
	l.ids, l.unitSize = s.unit(k)
	k.holds++
	k.inflight++
	if l.warm {
		k.warming++
		k.warmed.set(true, r.nanos(q.now))
	} else {
		k.worker.inflight++
		k.waiting++
		k.busy.set(true, r.nanos(q.now))
	}
	k.held.add(l.ids, l.unitSize, l.prompt)
	k.prompts += int64(l.prompt)
	l.kv.Store(int64(l.prompt))
	k.kvTokens.Add(int64(l.prompt))
	k.sequences.Add(1)

	if len(k.prefill) == 0 {
		k.headFrom = q.now
		k.calmSince.Store(notCalm)
	}
	k.prefill = append(k.prefill, l)
	k.expectLocked(l, w.in.prompt-w.in.overlap, q.now)
	if len(l.ids) > 0 {
		l.prediction, l.predicted = r.cfg.Index.Predicted().Add(k.num, l.ids), q.now
		if next := q.now.Add(extendEvery); len(k.prefill) == 1 || next.Before(k.extendAt) {
			k.extendAt = next
		}
	}
	return l
}

// expectLocked adds tokens to what k must compute for l.
func (k *rank) expectLocked(l *Lease, tokens float64, now time.Time) {
	if tokens <= 0 {
		return
	}
	if l.uncached == 0 {
		k.window.start(now)
		if !l.stream {
			k.window.blind++
			k.window.reset(now)
		}
	}
	l.uncached += tokens
	k.booked += tokens
}

// backlog returns the tokens booked on k that wait for their first token. The oldest
// booking drains at the rank's rate since it became the oldest.
func (k *rank) backlog(now time.Time, rate float64) float64 {
	if len(k.prefill) == 0 {
		return 0
	}
	done := rate * now.Sub(k.headFrom).Seconds()
	return k.booked - min(max(done, 0), drainCap*k.prefill[0].uncached)
}

// heldTokens returns the KV tokens of the sequences in flight, shared prompt blocks
// counted once.
func (k *rank) heldTokens() float64 {
	return max(k.held.tokens+float64(k.kvTokens.Load()-k.prompts), 0)
}

// refreshLocked brings the bookings of k up to now: a request that does not stream
// leaves the backlog when its tokens have drained, and predictions of what is still
// prefilled stay alive.
func (r *Router) refreshLocked(k *rank, now time.Time) {
	for len(k.prefill) > 0 && !k.prefill[0].stream {
		l := k.prefill[0]
		end := k.headFrom.Add(seconds(l.uncached / k.rate.of(k.worker.base.rate.pooled())))
		if now.Before(end) {
			break
		}
		r.leavePrefillLocked(l, end, false)
	}
	if len(k.prefill) == 0 || now.Before(k.extendAt) {
		return
	}
	k.extendAt = now.Add(extendEvery)
	p := r.cfg.Index.Predicted()
	for _, l := range k.prefill {
		switch age := now.Sub(l.predicted); {
		case l.predicted.IsZero() || age < extendEvery/2:
			continue
		case age < expireAfter:
			p.Extend(l.prediction)
		default:
			p.Retract(l.prediction)
			l.prediction = p.Add(k.num, l.ids)
		}
		l.predicted = now
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// leavePrefillLocked takes l out of the backlog at the time at. passed tells that its
// first token was seen.
func (r *Router) leavePrefillLocked(l *Lease, at time.Time, passed bool) {
	k := l.rank
	i := slices.Index(k.prefill, l)
	k.prefill = slices.Delete(k.prefill, i, i+1)
	k.booked -= l.uncached
	l.phase = phaseDecode
	if !l.warm {
		k.waiting--
		k.busy.set(k.waiting > 0, r.nanos(at))
	}
	if !passed && l.stream {
		k.inheritLocked(l, i, at)
	}
	if i == 0 {
		k.headFrom = at
	}
	if l.uncached > 0 {
		if !l.stream {
			k.window.blind--
		}
		if passed && l.stream {
			if tokens, secs, ok := k.window.passed(l.uncached, at); ok {
				k.sampleLocked(tokens, secs)
			}
		} else {
			k.window.reset(at)
		}
	}
	if len(k.prefill) == 0 {
		k.booked = 0 // what is left is rounding
		k.calmSince.Store(r.nanos(at))
	}
	if k.booked <= 0 {
		k.window.stop(at)
	}
}

// inheritLocked gives the work that an aborted prefill leaves undone to the next
// booking that counted on its blocks. l was at position i of the queue.
func (k *rank) inheritLocked(l *Lease, i int, at time.Time) {
	undone := l.uncached
	if i == 0 {
		undone -= min(k.rate.of(k.worker.base.rate.pooled())*max(at.Sub(k.headFrom).Seconds(), 0), undone)
	}
	for _, m := range k.prefill[i:] {
		n := m.expected
		if n == 0 || n > len(l.ids) || n > len(m.ids) || l.ids[n-1] != m.ids[n-1] {
			continue
		}
		k.expectLocked(m, min(undone, float64(n)*m.unitSize), at)
		return
	}
}

// sampleLocked takes one sample of the rank's prefill rate.
func (k *rank) sampleLocked(tokens, secs float64) {
	m := k.worker.base
	expected := tokens / m.rate.pooled()
	secs = min(max(secs, expected/rateOutlier), expected*rateOutlier)
	k.rate.add(tokens, secs)
	m.rate.add(tokens, secs)
}

// Worker returns the worker and rank that the request goes to.
func (l *Lease) Worker() kv.WorkerRank { return l.rank.name }

// SendRank tells whether the worker has several ranks, so that the request must name
// its rank.
func (l *Lease) SendRank() bool { return l.sendRank }

// Decision returns why this worker was chosen. It must not be changed.
func (l *Lease) Decision() *Decision { return l.decision }

// FirstToken tells that the first token of the response was seen: the prefill is
// over and its blocks are resident.
func (l *Lease) FirstToken() {
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
	if l.stream && !l.warm {
		r.metrics.firstToken(l.decision.PredictedTTFT, ttft)
	}
}

// computedLocked returns the blocks of a warm-up that is cut short which the rank holds
// by now: those it held before and those that its rate allows for since the warm-up
// became the head of the queue. An engine keeps what it has computed.
func (l *Lease) computedLocked(now time.Time) int {
	k := l.rank
	tokens := l.prompt - l.uncached
	switch {
	case l.phase != phasePrefill:
		tokens += drainCap * l.uncached // it has drained, but no answer proves it
	case k.prefill[0] == l:
		done := k.rate.of(k.worker.base.rate.pooled()) * now.Sub(k.headFrom).Seconds()
		tokens += min(max(done, 0), drainCap*l.uncached)
	}
	return min(int(tokens/l.unitSize), len(l.ids))
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
	l.fit.observe(float64(now-g.from)/1e9/float64(g.tokens), (g.n+n)/2, (g.kv+kv)/2)
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
	early := l.phase == phasePrefill
	computed := 0
	if l.warm && !o.OK {
		computed = l.computedLocked(now)
	}
	if early {
		r.leavePrefillLocked(l, now, false)
	}
	l.phase = phaseDone
	if !o.OK && !l.seen && !l.predicted.IsZero() {
		r.cfg.Index.Predicted().Retract(l.prediction)
		if computed > 0 {
			r.cfg.Index.Predicted().Add(k.num, l.ids[:computed])
		}
	}
	if was := l.kv.Swap(-1); was >= 0 {
		k.kvTokens.Add(-was)
	}
	k.prompts -= int64(l.prompt)
	k.held.remove(l.ids, l.unitSize, l.prompt)
	k.sequences.Add(-1)
	k.inflight--
	if l.warm {
		k.warming--
		k.warmed.set(k.warming > 0, r.nanos(now))
	} else {
		k.worker.inflight--
	}
	if k.inflight < 0 || k.worker.inflight < 0 {
		panic("BUG: a worker has fewer than no requests in flight")
	}
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
		r.talks.ended(l, now, r.expect)
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
