package router

import (
	"container/list"
	"slices"
	"time"
)

// class is how urgent a request is among those that wait.
type class uint8

const (
	urgent     class = iota // priority < 0
	normal                  // priority 0
	background              // priority > 0
	classes
)

var classNames = [classes]string{"urgent", "normal", "background"}

func classOf(priority int) class {
	switch {
	case priority < 0:
		return urgent
	case priority > 0:
		return background
	}
	return normal
}

const (
	// maxPassed is how many requests of more urgent classes may go before one of a
	// class that waits: a less urgent class is slow, never starved.
	maxPassed = 8
	// minCharge is the least that a tenant is charged for a request, in tokens.
	minCharge = 64
	// maxDebtors bounds the tenants that are remembered while none of their requests
	// waits.
	maxDebtors = 4096
)

// The kinds of turns that wait. First turns need room in the KV caches beside a slot.
const (
	laterTurn = iota
	firstTurn
	kinds
)

// queue holds the requests that wait, in a lane for each served model name. Workers
// call them; see Router.settleLocked. Guarded by Router.mu.
type queue struct {
	lanes   map[string]*lane // only those with somebody in them
	waiting int
	depth   [classes]int
	order   uint64 // of the last arrival
	calls   uint64

	asleep int // first turns that block in Route
	timer  *time.Timer
}

// lane holds the requests that wait for one served model name. Whoever waits for other
// names of the same workers is in another lane; lanes take turns.
type lane struct {
	model   string
	called  uint64 // when one of it was called last
	queued  [kinds]int
	classes [classes]fair
}

// fair serves the tenants of one class by start-time fair queueing (Goyal et al. 1996)
// with prompt tokens as the work: the tenant that has been given least goes next, and
// one that comes back after a pause has saved nothing up.
type fair struct {
	flows  []*flow          // tenants with a request that waits
	byKey  map[string]*flow // these, and those that have had more than their share
	clock  float64          // share of the tenant that was served last
	queued int
	passed int // requests of more urgent classes called since one of this class was
}

// flow is one tenant. Its later turns go before its first ones: they give KV room back
// sooner than they take it. Each list is in order of arrival.
type flow struct {
	key     string
	share   float64 // tokens that it has been given
	at      int     // position in fair.flows; −1: nothing waits
	waiting [kinds]list.List
}

func (f *flow) len() int { return f.waiting[laterTurn].Len() + f.waiting[firstTurn].Len() }

// add puts v into the queue, behind those of its tenant that came before it.
func (q *queue) add(v *Waiter) {
	l := q.lanes[v.req.Model]
	if l == nil {
		l = &lane{model: v.req.Model}
		q.lanes[v.req.Model] = l
	}
	c := &l.classes[v.class]
	f := c.byKey[v.req.Key]
	if f == nil {
		f = &flow{key: v.req.Key, at: -1}
		if c.byKey == nil {
			c.byKey = map[string]*flow{}
		}
		c.byKey[f.key] = f
	}
	if f.at < 0 {
		f.share = max(f.share, c.clock)
		f.at = len(c.flows)
		c.flows = append(c.flows, f)
	}
	in := &f.waiting[v.kind]
	behind := in.Back()
	for behind != nil && behind.Value.(*Waiter).order > v.order {
		behind = behind.Prev()
	}
	if behind == nil {
		v.elem = in.PushFront(v)
	} else {
		v.elem = in.InsertAfter(v, behind)
	}
	v.lane, v.flow = l, f
	c.queued++
	l.queued[v.kind]++
	q.depth[v.class]++
	q.waiting++
}

// remove takes v out of the queue.
func (q *queue) remove(v *Waiter) {
	l, f := v.lane, v.flow
	c := &l.classes[v.class]
	f.waiting[v.kind].Remove(v.elem)
	v.elem = nil
	c.queued--
	l.queued[v.kind]--
	q.depth[v.class]--
	q.waiting--
	if f.len() == 0 {
		c.rest(f)
	}
	if l.queued[laterTurn]+l.queued[firstTurn] == 0 {
		delete(q.lanes, l.model)
	}
}

// rest takes a tenant of whom nothing waits off the list.
func (c *fair) rest(f *flow) {
	last := c.flows[len(c.flows)-1]
	c.flows[f.at], last.at = last, f.at
	c.flows = slices.Delete(c.flows, len(c.flows)-1, len(c.flows))
	f.at = -1
	if f.share <= c.clock {
		delete(c.byKey, f.key)
	}
	if len(c.byKey) > len(c.flows)+maxDebtors {
		for key, f := range c.byKey {
			if f.at < 0 {
				delete(c.byKey, key)
			}
		}
	}
}

// charge notes that v gets its turn.
func (l *lane) charge(v *Waiter) {
	c := &l.classes[v.class]
	c.clock = v.flow.share
	v.flow.share += max(v.tokens, minCharge)
	c.passed = 0
	for less := v.class + 1; less < classes; less++ {
		if l.classes[less].queued > 0 {
			l.classes[less].passed++
		}
	}
}

// refund undoes the charge of a call that came to nothing.
func (v *Waiter) refund() { v.flow.share -= max(v.tokens, minCharge) }

// offer is what a worker can take at the moment.
type offer struct {
	w     *worker
	to    *served // the lane's model
	level int     // of the breakers that requests without pins go to
	room  bool    // also first turns
}

// suits tells whether a request may go to the worker, which has a slot free.
func (o *offer) suits(req *Request) bool {
	level := o.level
	if req.PinWorker != "" || req.PinRank >= 0 {
		if req.PinWorker != "" && req.PinWorker != o.w.spec.ID || req.PinRank >= len(o.w.ranks) {
			return false
		}
		level = o.to.levelLocked(req)
	}
	return o.w.breaker.level(req) <= level && !slices.Contains(req.Exclude, o.w.spec.ID)
}

// next returns who of the lane goes next; nil: nobody can.
func (l *lane) next(o *offer) *Waiter {
	var heads [classes]*Waiter
	for i := range l.classes {
		heads[i] = l.classes[i].next(o)
	}
	for i := background; i > urgent; i-- {
		if heads[i] != nil && l.classes[i].passed >= maxPassed {
			return heads[i]
		}
	}
	for _, v := range heads {
		if v != nil {
			return v
		}
	}
	return nil
}

func (c *fair) next(o *offer) *Waiter {
	var best *Waiter
	for _, f := range c.flows {
		if best != nil && best.flow.share < f.share {
			continue
		}
		v := f.next(o)
		if v != nil && (best == nil || f.share < best.flow.share || v.order < best.order) {
			best = v
		}
	}
	return best
}

func (f *flow) next(o *offer) *Waiter {
	for kind := range f.waiting {
		if kind == firstTurn && !o.room {
			break
		}
		for e := f.waiting[kind].Front(); e != nil; e = e.Next() {
			if v := e.Value.(*Waiter); o.suits(v.req) {
				return v
			}
		}
	}
	return nil
}

// newest returns who goes where the queue is too long: the newest of the tenant that
// has most waiting in the least urgent class. A flood displaces itself.
func (q *queue) newest() *Waiter {
	for i := background; ; i-- {
		if q.depth[i] == 0 {
			continue // q.waiting > 0: some class has one
		}
		var longest *flow
		for _, l := range q.lanes {
			for _, f := range l.classes[i].flows {
				if longest == nil || f.len() > longest.len() || f.len() == longest.len() && f.newest().order > longest.newest().order {
					longest = f
				}
			}
		}
		return longest.newest()
	}
}

// newest returns the tenant's first turn that came last, else its later turn.
func (f *flow) newest() *Waiter {
	if e := f.waiting[firstTurn].Back(); e != nil {
		return e.Value.(*Waiter)
	}
	return f.waiting[laterTurn].Back().Value.(*Waiter)
}
