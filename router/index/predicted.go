package index

import (
	"slices"
	"sync"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	// maxPredictions and maxPredictedBlocks bound the prompts in flight and the
	// hashes they keep alive (64 MiB). Beyond either, Add records nothing.
	maxPredictions     = 16384
	maxPredictedBlocks = 8 << 20
	// predictionsPerHold bounds how many entries leave in one hold of the lock.
	predictionsPerHold = 256
)

// Predicted holds the prompts that workers are computing right now, so that a burst of
// siblings follows the first one instead of scattering. It is local to this process
// and safe for concurrent use.
//
// It is a radix tree like Exact, but its edges split: an edge is a stretch of one
// prompt's chain, found by its first hash, and every prediction that passes through an
// edge covers all of it. Adding a prompt of any length costs one or two edges.
type Predicted struct {
	ttl   time.Duration
	clock func() time.Time

	mu      sync.Mutex // guards everything below
	edges   map[kv.SequenceHash]*edge
	slots   []prediction // slot 0 is never used
	free    uint32       // head of the list of free slots
	head    uint32       // oldest expiry; the queue is in order of expiry
	tail    uint32
	live    int
	blocks  int
	refused int64
}

// edge is a stretch of consecutive hashes. The blocks of an edge stay alive with it.
type edge struct {
	hashes  []kv.SequenceHash
	holders []holders
}

// holders counts the predictions of one worker that pass through an edge.
type holders struct {
	worker kv.Worker
	n      int
}

type prediction struct {
	chain      []kv.SequenceHash // nil if the slot is free
	worker     kv.Worker
	generation uint32
	expires    time.Time
	prev, next uint32
}

// Prediction names one entry of Predicted. The zero value names none.
type Prediction struct {
	slot, generation uint32
}

func newPredicted(ttl time.Duration, clock func() time.Time) *Predicted {
	return &Predicted{
		ttl:   ttl,
		clock: clock,
		edges: make(map[kv.SequenceHash]*edge),
		slots: make([]prediction, 1),
	}
}

// Add counts the blocks of chain as being computed on w, until the entry is retracted
// or has not been extended for the TTL. chain is kept until then and must not change.
func (p *Predicted) Add(w kv.Worker, chain []kv.SequenceHash) Prediction {
	if len(chain) == 0 {
		return Prediction{}
	}
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expireLocked(now)
	if p.live == maxPredictions || p.blocks+len(chain) > maxPredictedBlocks {
		p.refused++
		return Prediction{}
	}
	slot := p.free
	if slot != 0 {
		p.free = p.slots[slot].next
	} else {
		slot = uint32(len(p.slots))
		p.slots = append(p.slots, prediction{})
	}
	s := &p.slots[slot]
	s.chain, s.worker, s.expires = chain, w, now.Add(p.ttl)
	s.generation++
	p.live++
	p.blocks += len(chain)
	p.pushLocked(slot)
	for at := 0; at < len(chain); {
		e := p.edges[chain[at]]
		if e == nil {
			e = &edge{hashes: chain[at:]}
			p.edges[chain[at]] = e
		}
		if n := shared(e.hashes, chain[at:]); n < len(e.hashes) {
			p.splitLocked(e, n)
		}
		e.hold(w, 1)
		at += len(e.hashes)
	}
	return Prediction{slot, s.generation}
}

// shared returns how many leading hashes of a and b agree, given that the first do.
func shared(a, b []kv.SequenceHash) int {
	n := min(len(a), len(b))
	if a[n-1] == b[n-1] {
		return n
	}
	lo, hi := 1, n-1 // the first lo agree, those at hi do not
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if a[mid] == b[mid] {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// splitLocked leaves the first n hashes in e and moves the others to an edge of their
// own, with the same holders.
func (p *Predicted) splitLocked(e *edge, n int) {
	rest := &edge{hashes: e.hashes[n:], holders: slices.Clone(e.holders)}
	p.edges[rest.hashes[0]] = rest
	e.hashes = e.hashes[:n]
}

func (e *edge) hold(w kv.Worker, n int) {
	for i := range e.holders {
		h := &e.holders[i]
		if h.worker != w {
			continue
		}
		if h.n += n; h.n == 0 {
			e.holders = slices.Delete(e.holders, i, i+1)
		}
		return
	}
	e.holders = append(e.holders, holders{w, n})
}

// Overlap raises dst[w].GPU to the blocks of chain, from block 0, that w is predicted
// to hold. Workers that dst has no room for are left out. It allocates nothing.
func (p *Predicted) Overlap(chain []kv.SequenceHash, dst []kv.Overlap) {
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expireLocked(now)
	for at := 0; at < len(chain); {
		e := p.edges[chain[at]]
		if e == nil {
			return
		}
		n := shared(e.hashes, chain[at:])
		for _, h := range e.holders {
			if int(h.worker) < len(dst) {
				o := &dst[h.worker]
				o.GPU = max(o.GPU, uint32(at+n))
			}
		}
		if n < len(e.hashes) {
			return
		}
		at += n
	}
}

// Extend lets an entry count for another TTL from now. An entry that is gone stays so.
func (p *Predicted) Extend(h Prediction) {
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expireLocked(now)
	if p.isLiveLocked(h) {
		p.slots[h.slot].expires = now.Add(p.ttl)
		p.popLocked(h.slot)
		p.pushLocked(h.slot)
	}
}

// Retract takes an entry out. Taking it out twice, or after it expired, does nothing.
func (p *Predicted) Retract(h Prediction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isLiveLocked(h) {
		p.retractLocked(h.slot)
	}
}

// Drop takes every entry of w out.
func (p *Predicted) Drop(w kv.Worker) {
	for slot, more := 1, true; more; {
		p.mu.Lock()
		end := min(slot+predictionsPerHold, len(p.slots))
		for ; slot < end; slot++ {
			if s := &p.slots[slot]; s.chain != nil && s.worker == w {
				p.retractLocked(uint32(slot))
			}
		}
		more = slot < len(p.slots)
		p.mu.Unlock()
	}
}

func (p *Predicted) isLiveLocked(h Prediction) bool {
	return h.slot != 0 && int(h.slot) < len(p.slots) &&
		p.slots[h.slot].generation == h.generation && p.slots[h.slot].chain != nil
}

func (p *Predicted) retractLocked(slot uint32) {
	s := &p.slots[slot]
	for at := 0; at < len(s.chain); {
		e := p.edges[s.chain[at]]
		first := e.hashes[0]
		at += len(e.hashes)
		if e.hold(s.worker, -1); len(e.holders) == 0 {
			delete(p.edges, first)
		}
	}
	p.popLocked(slot)
	p.live--
	p.blocks -= len(s.chain)
	s.chain = nil
	s.next, p.free = p.free, slot
}

func (p *Predicted) expireLocked(now time.Time) {
	for range predictionsPerHold {
		if p.head == 0 || p.slots[p.head].expires.After(now) {
			return
		}
		p.retractLocked(p.head)
	}
}

func (p *Predicted) pushLocked(slot uint32) {
	s := &p.slots[slot]
	s.prev, s.next = p.tail, 0
	if p.tail != 0 {
		p.slots[p.tail].next = slot
	} else {
		p.head = slot
	}
	p.tail = slot
}

func (p *Predicted) popLocked(slot uint32) {
	s := &p.slots[slot]
	if s.prev != 0 {
		p.slots[s.prev].next = s.next
	} else {
		p.head = s.next
	}
	if s.next != 0 {
		p.slots[s.next].prev = s.prev
	} else {
		p.tail = s.prev
	}
}

func (p *Predicted) stats(st *Stats) {
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expireLocked(now)
	st.PredictedEntries, st.PredictedRefused = p.live, p.refused
}
