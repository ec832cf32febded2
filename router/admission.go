package router

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Waiter is a request in the queue. Its owner waits for Called, then calls Claim, and
// again until that gives a lease or an error; or it ends the wait with Expire or Leave.
type Waiter struct {
	r      *Router
	req    *Request
	since  time.Time
	called chan struct{} // capacity 1

	class  class
	kind   int
	order  uint64
	tokens float64 // of its prompt: the KV that it will hold
	output float64 // L

	// Guarded by Router.mu. It is in the queue where elem is set, called where slot is.
	lane *lane
	flow *flow
	elem *list.Element
	slot *worker // keeps a place for it
	pool *model  // keeps KV room for it
	err  error   // refused for room in the queue
}

// Enter is Route for callers that must not block, such as a simulation in virtual time:
// where Route would wait it returns the request's place in the queue. req must not change
// until the wait is over. The router does not end it: that is Expire, after MaxQueueDelay.
func (r *Router) Enter(ctx context.Context, req *Request) (*Lease, *Waiter, error) {
	l, v, err := r.place(ctx, req, nil)
	r.refused(req, err)
	return l, v, err
}

// Called gets a value when it is the request's turn.
func (v *Waiter) Called() <-chan struct{} { return v.called }

// Claim books the request if it has been called. Without a lease and an error the wait
// goes on.
func (v *Waiter) Claim(ctx context.Context) (*Lease, error) {
	r := v.r
	r.mu.Lock()
	err, called := v.err, v.slot != nil
	r.mu.Unlock()
	if err == nil && !called {
		return nil, nil
	}
	var l *Lease
	if err == nil {
		if l, _, err = r.place(ctx, v.req, v); err != nil {
			v.Leave()
		}
	}
	r.refused(v.req, err)
	return l, err
}

// Expire ends the wait of a request that has waited long enough. It returns nil where
// the request has just been called: then it is Claim's.
func (v *Waiter) Expire() error {
	r := v.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.err == nil && v.slot != nil {
		return nil
	}
	err := v.err
	if v.elem != nil {
		r.mu.queue.remove(v)
		err = r.lateLocked(v)
	}
	r.refused(v.req, err)
	return err
}

// Leave ends the wait for a client that is gone.
func (v *Waiter) Leave() {
	r := v.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.elem != nil {
		r.mu.queue.remove(v)
	}
	if v.slot != nil {
		r.uncallLocked(v)
		v.refund()
	}
	r.settleLocked(nil)
}

// wait blocks until v is booked, refused, or ctx ends.
func (v *Waiter) wait(ctx context.Context) (*Lease, error) {
	r := v.r
	if v.kind == firstTurn {
		r.sleep(1)
		defer r.sleep(-1)
	}
	t := time.NewTimer(r.cfg.MaxQueueDelay)
	defer t.Stop()
	for {
		select {
		case <-v.called:
		case <-t.C:
			if err := v.Expire(); err != nil {
				return nil, err
			}
		case <-ctx.Done():
			v.Leave()
			return nil, ctx.Err()
		}
		if l, err := v.Claim(ctx); l != nil || err != nil {
			return l, err
		}
	}
}

// admitLocked lets a request pass, or makes it wait, or refuses it. v is its place in
// the queue where it has one and was called.
func (r *Router) admitLocked(q *query, v *Waiter) (*Waiter, error) {
	switch {
	case v != nil:
		r.uncallLocked(v)
		return nil, nil
	case q.req.Speculative || r.cfg.MaxQueue < 0:
		return nil, nil
	case r.mu.queue.waiting > 0 && r.mu.queue.lanes[q.req.Model] != nil:
		return r.joinLocked(q)
	case q.needsRoom() && r.crowdedLocked(q.to, q.now):
		v := r.newWaiterLocked(q)
		r.mu.queue.add(v)
		return r.boundLocked(v)
	}
	return nil, nil
}

// needsRoom tells whether the request begins a conversation. One that has been sent to
// a worker before, which failed, was let in then.
func (q *query) needsRoom() bool { return q.first && len(q.req.Exclude) == 0 }

// joinLocked lets a request that comes while others wait take its turn among them. It
// may be called at once: those before it may wait for what it does not need.
func (r *Router) joinLocked(q *query) (*Waiter, error) {
	v := r.newWaiterLocked(q)
	r.mu.queue.add(v)
	r.settleLaneLocked(v.lane)
	if v.slot != nil {
		r.uncallLocked(v)
		return nil, nil
	}
	return r.boundLocked(v)
}

// fullLocked makes a request wait for a slot, again where it has waited before.
func (r *Router) fullLocked(q *query, v *Waiter, full *SaturatedError) (*Waiter, error) {
	switch {
	case q.req.Speculative || r.cfg.MaxQueue < 0:
		return nil, full
	case v == nil:
		v = r.newWaiterLocked(q)
	case q.now.Sub(v.since) >= r.cfg.MaxQueueDelay:
		return nil, r.lateLocked(v)
	default:
		v.refund()
		r.mu.queue.add(v)
		r.settleLocked(nil) // what was kept for it is free
		return v, nil
	}
	r.mu.queue.add(v)
	return r.boundLocked(v)
}

func (r *Router) newWaiterLocked(q *query) *Waiter {
	r.mu.queue.order++
	v := &Waiter{
		r: r, req: q.req, since: q.now, called: make(chan struct{}, 1),
		class: classOf(q.req.Priority), order: r.mu.queue.order, tokens: q.overlaps.tokens, output: q.output,
	}
	if q.needsRoom() {
		v.kind = firstTurn
	}
	return v
}

// boundLocked keeps the queue within its length: whoever came with v goes, or v.
func (r *Router) boundLocked(v *Waiter) (*Waiter, error) {
	if r.mu.queue.waiting <= r.cfg.MaxQueue {
		return v, nil
	}
	out := r.mu.queue.newest()
	r.mu.queue.remove(out)
	out.err = &SaturatedError{
		RetryAfter: r.retryLocked(out),
		why:        fmt.Sprintf("the queue is full (max_queue %d)", r.cfg.MaxQueue),
	}
	r.metrics.rejected.WithLabelValues("full").Inc()
	if out == v {
		return nil, v.err
	}
	out.signal()
	return v, nil
}

func (v *Waiter) signal() {
	select {
	case v.called <- struct{}{}:
	default:
	}
}

// lateLocked is the refusal of a request that has waited for MaxQueueDelay.
func (r *Router) lateLocked(v *Waiter) error {
	e := &SaturatedError{RetryAfter: r.retryLocked(v)}
	to := r.fleet.Load().models[v.req.Model]
	if to != nil && v.kind == firstTurn && r.crowdedLocked(to, r.cfg.Now()) {
		r.metrics.rejected.WithLabelValues("kv").Inc()
		e.why = fmt.Sprintf("the KV caches are full of live conversations and no room for a new one came within %v (max_queue_delay)", r.cfg.MaxQueueDelay)
		e.RetryAfter = max(e.RetryAfter, r.cfg.MaxQueueDelay.Truncate(time.Second))
		return e
	}
	r.metrics.rejected.WithLabelValues("slots").Inc()
	e.Limit = r.cfg.MaxInflight
	if to != nil {
		e.Limit = r.limitLocked(to)
	}
	e.why = fmt.Sprintf("every worker stayed at its limit of requests in flight (max_inflight %d) for %v (max_queue_delay)", e.Limit, r.cfg.MaxQueueDelay)
	return e
}

func (r *Router) limitLocked(to *served) int {
	limit := math.MaxInt
	for _, k := range to.ranks {
		limit = min(limit, k.worker.maxInflight(r.cfg.MaxInflight))
	}
	return limit
}

// retryLocked estimates when one more request of v's model will have ended.
func (r *Router) retryLocked(v *Waiter) time.Duration {
	soon := math.Inf(1)
	if to := r.fleet.Load().models[v.req.Model]; to != nil {
		for _, k := range to.ranks {
			soon = min(soon, k.turnover(v.output))
		}
	}
	return retryAfter(soon)
}

// turnover is the time in seconds in which one of the sequences on k ends, each of
// output tokens.
func (k *rank) turnover(output float64) float64 {
	n := float64(k.inflight)
	itl, _ := k.worker.base.itl.coefficients()
	return output * (itl.a + itl.b*n + itl.c*float64(k.kvTokens.Load())) / max(n, 1)
}

// retryAfter makes whole seconds of an estimate that may be infinite.
func retryAfter(soon float64) time.Duration {
	return time.Duration(min(max(math.Ceil(soon), 1), 30)) * time.Second
}

// refused counts the error that ends a request of a client.
func (r *Router) refused(req *Request, err error) {
	if err == nil || req.Speculative || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	r.metrics.refuse(refusal(err))
}

// callLocked keeps a place on w for v and tells it.
func (r *Router) callLocked(v *Waiter, w *worker) {
	q := &r.mu.queue
	l := v.lane
	l.charge(v)
	q.remove(v)
	q.calls++
	l.called = q.calls
	v.slot = w
	w.called++
	if v.kind == firstTurn {
		v.pool = w.base
		v.pool.promised += v.tokens
	}
	v.signal()
}

// uncallLocked gives back the place that is kept for v, if one is.
func (r *Router) uncallLocked(v *Waiter) {
	if v.slot == nil {
		return
	}
	v.slot.called--
	v.slot = nil
	if v.pool != nil {
		v.pool.promised -= v.tokens
		v.pool = nil
	}
}

// settleLocked calls those who can have what has become free on w and in its pool, or
// anywhere where w is nil. Every way in which a slot or KV room becomes free ends here, so
// whoever is in the queue waits for something that is not there, and a free slot calls one.
func (r *Router) settleLocked(w *worker) {
	q := &r.mu.queue
	if q.waiting == 0 {
		return
	}
	lanes := make([]*lane, 0, 8)
	for _, l := range q.lanes {
		if to := r.fleet.Load().models[l.model]; to != nil && (w == nil || slices.Contains(to.bases, w.base)) {
			lanes = append(lanes, l)
		}
	}
	slices.SortFunc(lanes, func(a, b *lane) int {
		return cmp.Or(cmp.Compare(a.called, b.called), cmp.Compare(a.model, b.model))
	})
	for _, l := range lanes {
		r.settleLaneLocked(l)
	}
}

// settleNewLocked settles where somebody has just begun to wait by a fleet that is not the
// newest: what has come since may be free.
func (r *Router) settleNewLocked(f *fleet) {
	if r.fleet.Load() != f {
		r.settleLocked(nil)
	}
}

// settleLaneLocked calls from one lane until nobody of it can go.
func (r *Router) settleLaneLocked(l *lane) {
	to := r.fleet.Load().models[l.model]
	if to == nil {
		return
	}
	now := r.cfg.Now()
	for called := true; called; {
		room := l.queued[firstTurn] > 0 && !r.crowdedLocked(to, now)
		if l.queued[laterTurn] == 0 && !room {
			return
		}
		called = r.callOneLocked(l, to, room)
	}
}

// anybody is a request without pins.
var anybody = Request{PinRank: -1}

// callOneLocked calls the next of the lane for the first worker that can take one.
func (r *Router) callOneLocked(l *lane, to *served, room bool) bool {
	o := offer{to: to, level: to.levelLocked(&anybody), room: room}
	for i, k := range to.ranks {
		w := k.worker
		if i > 0 && to.ranks[i-1].worker == w || !w.healthy || w.draining || w.inflight+w.called >= w.maxInflight(r.cfg.MaxInflight) {
			continue
		}
		o.w = w
		if v := l.next(&o); v != nil {
			r.callLocked(v, w)
			return true
		}
	}
	return false
}

// sleep counts the first turns that block in Route. While there are any, a timer looks
// every second for what no event tells: contexts that are not expected back any more,
// and the minute of busyLocked, which moves by seconds.
func (r *Router) sleep(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := &r.mu.queue
	q.asleep += n
	switch {
	case q.asleep == 0:
		q.timer.Stop()
	case q.timer == nil:
		q.timer = time.AfterFunc(time.Second, r.look)
	case q.asleep == n:
		q.timer.Reset(time.Second)
	}
}

func (r *Router) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settleLocked(nil)
	if r.mu.queue.asleep > 0 {
		r.mu.queue.timer.Reset(time.Second)
	}
}
