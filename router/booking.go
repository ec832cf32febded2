package router

import (
	"slices"
	"time"
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
)

// bookLocked makes the lease and counts it on rank k.
func (r *Router) bookLocked(q *query, d *Decision, k *rank) *Lease {
	s := q.overlaps
	w := &s.rows[d.chosen]
	trial := false
	l := &Lease{
		r: r, rank: k, base: k.worker.base, decision: d,
		scope:    scope{q.req.Key, q.req.Model},
		sendRank: len(k.worker.ranks) > 1,
		talk:     q.talk, returning: q.returning, shared: q.shared(w.tokens),
		blockSize: k.blockSize(), exact: w.exact,
		prompt: s.tokens, prefill: w.terms.prefill,
		stream: q.req.Stream, warm: q.req.Speculative, alone: k.inflight+len(k.warm) == 0, booked: q.now,
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
	k.calmSince.Store(notCalm)
	if l.warm {
		k.warmLocked(l, w.in.prompt-w.in.overlap, q.now)
	} else {
		trial = k.worker.breaker.Trial
		k.worker.breaker.Trial = false // it is taken
		k.countLocked(l)
		r.queueLocked(l, max(w.in.prompt-w.in.overlap, 0), w.in.rate, q.now)
	}
	r.tellLocked(l)
	if len(l.ids) > 0 {
		l.prediction, l.predicted = r.cfg.Index.Predicted().Add(k.num, l.ids), q.now
		if next := q.now.Add(extendEvery); len(k.prefill)+len(k.warm) == 1 || next.Before(k.extendAt) {
			k.extendAt = next
		}
	}
	if trial {
		r.settleLocked(k.worker) // the others' level is the lowest again
	}
	return l
}

// queueLocked puts l behind what waits for its first token on its rank.
func (r *Router) queueLocked(l *Lease, uncached, rate float64, now time.Time) {
	k := l.rank
	k.settleBusyLocked(r, now)
	k.busy.set(true, r.nanos(now))
	if k.drainAt.Before(now) {
		k.drainAt = now
	}
	k.drainAt = k.drainAt.Add(seconds(uncached / rate))
	l.drained = k.drainAt
	if len(k.prefill) == 0 {
		k.headFrom = now
	}
	k.prefill = append(k.prefill, l)
	k.expectLocked(l, uncached, now)
}

// countLocked counts l among the sequences in flight on k.
func (k *rank) countLocked(l *Lease) {
	k.inflight++
	k.worker.inflight++
	k.held.add(l.ids, l.unitSize, l.prompt)
	k.prompts += int64(l.prompt)
	l.kv.Store(int64(l.prompt))
	k.kvTokens.Add(int64(l.prompt))
	k.sequences.Add(1)
}

// discountLocked undoes countLocked.
func (k *rank) discountLocked(l *Lease) {
	if was := l.kv.Swap(-1); was >= 0 {
		k.kvTokens.Add(-was)
	}
	k.prompts -= int64(l.prompt)
	k.held.remove(l.ids, l.unitSize, l.prompt)
	k.sequences.Add(-1)
	k.inflight--
	k.worker.inflight--
	if k.inflight < 0 || k.worker.inflight < 0 {
		panic("BUG: a worker has fewer than no requests in flight")
	}
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
// counted once among our own and once among those of peers.
func (k *rank) heldTokens() float64 {
	return max(k.held.tokens+float64(k.kvTokens.Load()-k.prompts)+k.peers.held.tokens, 0)
}

// refreshLocked brings the bookings of k up to now: a request that does not stream
// leaves the backlog when its tokens have drained, and predictions of what is still
// prefilled stay alive.
func (r *Router) refreshLocked(k *rank, now time.Time) {
	for len(k.prefill) > 0 && !k.prefill[0].stream {
		l := k.prefill[0]
		end := k.headFrom.Add(seconds(l.uncached / k.rate.of(&k.worker.base.rate)))
		if now.Before(end) {
			break
		}
		r.leavePrefillLocked(l, end, false)
	}
	if len(k.prefill)+len(k.warm) == 0 || now.Before(k.extendAt) {
		return
	}
	k.extendAt = now.Add(extendEvery)
	r.extendLocked(k, k.prefill, now)
	r.extendLocked(k, k.warm, now)
}

// extendLocked renews the predictions of what is still prefilled on k.
func (r *Router) extendLocked(k *rank, leases []*Lease, now time.Time) {
	p := r.cfg.Index.Predicted()
	for _, l := range leases {
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
	k.settleBusyLocked(r, at)
	i := slices.Index(k.prefill, l)
	k.prefill = slices.Delete(k.prefill, i, i+1)
	k.booked -= l.uncached
	l.phase = phaseDecode
	r.movedLocked(l)
	waiting, _ := k.waitingLocked(at)
	k.busy.set(waiting > 0, r.nanos(at))
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
		r.calmLocked(k, at)
	}
	if k.booked <= 0 {
		k.window.stop(at)
	}
}

// calmLocked notes that nothing is prefilled on k, if so.
func (r *Router) calmLocked(k *rank, at time.Time) {
	if len(k.prefill)+len(k.warm) == 0 {
		k.calmSince.Store(r.nanos(at))
	}
}

// inheritLocked gives the work that an aborted prefill leaves undone to the next
// booking that counted on its blocks. l was at position i of the queue.
func (k *rank) inheritLocked(l *Lease, i int, at time.Time) {
	undone := l.uncached
	if i == 0 {
		undone -= min(k.rate.of(&k.worker.base.rate)*max(at.Sub(k.headFrom).Seconds(), 0), undone)
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
