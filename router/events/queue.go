package events

import "sync"

// queueBytes bounds the deltas that wait for a feed. Past it all of them are dropped,
// because a hole makes those behind it useless, and the feed asks for the state.
const queueBytes = 8 << 20

// itemOverhead is what one waiting delta takes beside its bytes.
const itemOverhead = 96

// item is one thing for a feed to take note of; exactly one field group is set.
type item struct {
	delta  []byte
	answer []byte // chunk of the answer with this ticket
	ticket uint64
	absent bool // nobody serves the subject of the request with this ticket

	heard  *heard // an announcement of this rank
	link   *bool  // a NATS connection went up or down
	on     *link
	reason string // resync, for this reason
	end    bool   // the worker is no longer ours
}

// queue is a feed's inbox. NATS callbacks put and never wait; deltas are bounded by
// bytes, the rest by its nature.
type queue struct {
	wake chan struct{}
	mu   struct {
		sync.Mutex
		items   []item
		bytes   int
		dropped int  // deltas, since the last take
		closed  bool // the feed has ended
	}
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// put appends an item and tells whether the feed still reads.
func (q *queue) put(it item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return false
	}
	if it.delta != nil {
		size := len(it.delta) + itemOverhead
		if q.mu.dropped > 0 || q.mu.bytes+size > queueBytes {
			q.dropLocked()
			q.mu.dropped++
			notify(q.wake)
			return true
		}
		q.mu.bytes += size
	}
	q.mu.items = append(q.mu.items, it)
	notify(q.wake)
	return true
}

// dropLocked drops the waiting deltas.
func (q *queue) dropLocked() {
	kept := q.mu.items[:0]
	for _, it := range q.mu.items {
		if it.delta == nil {
			kept = append(kept, it)
		} else {
			q.mu.dropped++
		}
	}
	clear(q.mu.items[len(kept):])
	q.mu.items, q.mu.bytes = kept, 0
}

// take moves all items to dst and tells how many deltas were dropped before them.
func (q *queue) take(dst []item) (items []item, dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items = append(dst, q.mu.items...)
	clear(q.mu.items)
	q.mu.items, q.mu.bytes = q.mu.items[:0], 0
	dropped, q.mu.dropped = q.mu.dropped, 0
	return items, dropped
}

// close drops what waits and refuses what comes.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.items, q.mu.closed = nil, true
}
