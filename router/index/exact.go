package index

import (
	"fmt"
	"sync"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	// holdBlocks bounds the blocks of an event that are applied in one hold of the
	// index lock: about 25 µs.
	holdBlocks = 256
	// holdWork bounds a slice of a Drop, Replace or Dump: one unit per run looked at,
	// workBlock per block changed. A slice takes about 0.2 ms.
	holdWork  = 16384
	workBlock = 8
	// touchBlocks are the first blocks of a stored event whose slots are loaded ahead
	// before it is known whether they are stored already.
	touchBlocks = 16
)

// Exact knows which worker holds which block of one block size, told by KV events. It
// is safe for concurrent use; changes of one worker are serialised, in the order of
// their calls only if one goroutine makes them.
type Exact struct {
	budget *budget
	clock  func() time.Time
	start  time.Time // tick 0

	mu sync.RWMutex // guards everything below

	table   table
	arena   arena
	runs    slab
	workers []*worker

	blocks      int // hashes in the table
	memberships int // (worker, tier, block) triples
	refused     int
	sink        uint64 // keeps the loads of touch
}

// newExact returns an empty index; mult mixes hashes and is random but in tests.
func newExact(b *budget, clock func() time.Time, mult uint64) *Exact {
	x := &Exact{budget: b, clock: clock, start: clock()}
	shards := 256
	for int64(shards) < b.max>>23 && shards < 4096 {
		shards *= 2 // keeps a shard near 64 k slots, so that growing one is short
	}
	x.table.init(b, mult, shards)
	x.arena.init(b)
	x.runs.budget = b
	return x
}

func (x *Exact) tick() uint32 {
	return uint32(min(max(x.clock().Sub(x.start)/time.Second/tickSeconds, 0), maxTick))
}

// worker returns the state of w, nil where it never held a block.
func (x *Exact) worker(w kv.Worker) *worker {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.workerLocked(w)
}

func (x *Exact) workerLocked(w kv.Worker) *worker {
	if int(w) >= len(x.workers) {
		return nil
	}
	return x.workers[w]
}

func (x *Exact) makeWorker(w kv.Worker) *worker {
	if ws := x.worker(w); ws != nil {
		return ws
	}
	if w >= maxWorkers {
		panic(fmt.Sprintf("BUG: worker number %d, want less than %d", w, maxWorkers))
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for int(w) >= len(x.workers) {
		x.workers = append(x.workers, nil)
	}
	if x.workers[w] == nil {
		x.workers[w] = &worker{}
		x.budget.take(workerBytes, true)
	}
	return x.workers[w]
}

// Apply records one event of w. Unknown removals, repeated stores and events of a tier
// that does not exist change nothing.
// refused counts the blocks of a stored event that were not taken because of the bytes
// cap; the worker's coverage is then partial.
func (x *Exact) Apply(w kv.Worker, e kv.Event) (refused int) {
	if e.Kind != kv.EventCleared && (e.Tier >= kv.Tiers || len(e.Hashes) == 0) {
		return 0
	}
	switch e.Kind {
	case kv.EventStored:
		ws := x.makeWorker(w)
		ws.changing.Lock()
		defer ws.changing.Unlock()
		return x.store(ws, w, e, false)
	case kv.EventRemoved:
		ws := x.worker(w)
		if ws == nil {
			return 0
		}
		ws.changing.Lock()
		defer ws.changing.Unlock()
		for hashes := e.Hashes; len(hashes) > 0; {
			n := min(len(hashes), holdBlocks)
			x.mu.Lock()
			x.removeLocked(w, e.Tier, hashes[:n])
			x.mu.Unlock()
			hashes = hashes[n:]
		}
	case kv.EventCleared:
		x.Drop(w)
	}
	return 0
}

// store applies a stored event in slices; keep preserves the last touch of blocks that
// are held already.
func (x *Exact) store(ws *worker, w kv.Worker, e kv.Event, keep bool) (refused int) {
	now := x.tick()
	for len(e.Hashes) > 0 {
		n := min(len(e.Hashes), holdBlocks)
		x.mu.Lock()
		ws.ages.advance(now)
		refused += x.storeLocked(w, e, n, now, keep)
		x.mu.Unlock()
		e.HasParent, e.Parent, e.Hashes = true, e.Hashes[n-1], e.Hashes[n:]
	}
	return refused
}

// find returns the place of a hash.
func (x *Exact) find(h kv.SequenceHash) (place, bool) {
	s, tag := x.table.locate(uint64(h))
	_, p, ok := x.lookup(s, tag, uint64(h))
	return p, ok
}

// lookup seeks a hash in its shard: its place, or the slot where it belongs.
func (x *Exact) lookup(s *shard, tag, h uint64) (slot int, p place, ok bool) {
	i := s.seek(tag)
	for ; i < len(s.slots); i++ {
		v := s.slots[i]
		if v == 0 || v>>placeBits != tag {
			break
		}
		p = place(v & (1<<placeBits - 1))
		r := x.runs.get(p.run())
		if x.hashAt(r, p.off()) == h {
			return i, p, true
		}
	}
	return i, 0, false
}

// storeLocked records the first n blocks of a stored event.
func (x *Exact) storeLocked(w kv.Worker, e kv.Event, n int, now uint32, keep bool) (refused int) {
	hashes := e.Hashes[:n]
	x.sink += touch(&x.table, hashes[:min(n, touchBlocks)])
	var at place // of the block before hashes[i], if known
	known := false
	if e.HasParent {
		at, known = x.find(e.Parent)
	}
	for i := 0; i < n; {
		var m int
		taken, found := false, false
		var next place
		if known {
			next = at + 1
			r := x.runs.get(at.run())
			found = at.off()+1 < int(r.n) && x.hashAt(r, at.off()+1) == uint64(hashes[i])
		}
		if !found {
			next, found = x.find(hashes[i])
		}
		if found {
			m, taken = x.storeKnown(w, e.Tier, hashes[i:], next, now, keep)
			at, known = next+place(m-1), true
		} else {
			e.Hashes = hashes[i:]
			at, m, taken = x.storeUnknown(w, e, at, known, now, keep)
			known = taken
		}
		if !taken {
			refused += m
		}
		i += m
		e.HasParent, e.Parent = true, hashes[i-1]
	}
	if refused > 0 {
		x.refused += refused
		x.budget.refused.Add(int64(refused))
	}
	return refused
}

// storeKnown records the stretch of blocks that has its place in the run at p, up to
// where run and event part: m blocks, of which none is taken where memory is refused.
func (x *Exact) storeKnown(w kv.Worker, t kv.Tier, hashes []kv.SequenceHash, p place, now uint32, keep bool) (m int, taken bool) {
	r := x.runs.get(p.run())
	m = 1
	for _, h := range x.hashesOf(r)[p.off()+1:] {
		if m == len(hashes) || uint64(hashes[m]) != h {
			break
		}
		m++
	}
	return m, x.cover(r, t, w, p.off(), p.off()+m, now, keep)
}

// storeUnknown records blocks of e of which the first is in no run, up to the next one
// that is: behind e's parent if that is the tail of its run, else as a run of its own.
// It returns the place of the last one and how many; where memory is refused, m blocks
// are passed over and not taken.
func (x *Exact) storeUnknown(w kv.Worker, e kv.Event, parent place, known bool, now uint32, keep bool) (last place, m int, taken bool) {
	var id uint32
	var r *run
	if known {
		id = parent.run()
		if r = x.runs.get(id); parent.off() != int(r.n)-1 || r.n == maxRun {
			r = nil
		}
	}
	if r == nil {
		if id, r = x.runs.alloc(); r == nil {
			return 0, 1, false
		}
		r.parent, r.hasParent = e.Parent, e.HasParent
	}
	from := int(r.n)
	hashes := e.Hashes[:min(len(e.Hashes), maxRun-from)]
	if x.reserve(r, from+len(hashes)) {
		m = x.extend(id, r, hashes)
	} else if from == 0 {
		x.runs.release(id)
		return 0, 1, false
	}
	if m == 0 || !x.cover(r, e.Tier, w, from, from+m, now, keep) {
		x.trim(id, r)
		return 0, max(m, 1), false
	}
	x.shrink(r)
	return placeOf(id, from+m-1), m, true
}

// extend appends hashes to a run that has room for them, up to the first that is in
// the table or refused by it.
func (x *Exact) extend(id uint32, r *run, hashes []kv.SequenceHash) (m int) {
	x.sink += touch(&x.table, hashes)
	from := int(r.n)
	words := x.arena.words(r.hashes, from+len(hashes))
	for m < len(hashes) {
		h := uint64(hashes[m])
		s, tag := x.table.locate(h)
		slot, _, ok := x.lookup(s, tag, h)
		if ok {
			break
		}
		words[from+m] = h
		if !x.table.insert(s, slot, tag, placeOf(id, from+m)) {
			break
		}
		m++
	}
	r.n += uint16(m)
	x.blocks += m
	return m
}

// removeLocked takes blocks from w in tier t. Neighbours of one run that follow each
// other in the event, in either direction, go in one step: engines evict tails first.
func (x *Exact) removeLocked(w kv.Worker, t kv.Tier, hashes []kv.SequenceHash) {
	x.sink += touch(&x.table, hashes)
	for i := 0; i < len(hashes); {
		p, ok := x.find(hashes[i])
		if !ok {
			i++
			continue
		}
		id, off := p.run(), p.off()
		r := x.runs.get(id)
		words := x.hashesOf(r)
		from, to := off, off+1
		i++
		for ; i < len(hashes) && from > 0 && words[from-1] == uint64(hashes[i]); i++ {
			from--
		}
		for ; i < len(hashes) && from == off && to < len(words) && words[to] == uint64(hashes[i]); i++ {
			to++
		}
		x.uncover(r, t, w, from, to)
		if to == len(words) {
			x.trim(id, r)
		}
	}
}

// Drop takes every block from w, in slices.
func (x *Exact) Drop(w kv.Worker) {
	ws := x.worker(w)
	if ws == nil {
		return
	}
	ws.changing.Lock()
	defer ws.changing.Unlock()
	x.filter(ws, w, nil)
}

// Held returns how many blocks w holds in each tier.
func (x *Exact) Held(w kv.Worker) [kv.Tiers]int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if ws := x.workerLocked(w); ws != nil {
		return ws.held
	}
	return [kv.Tiers]int{}
}

// DecayedOldest returns Σ e^(−idle age/τ) over the blocks GPU blocks of w that were
// not stored or matched for longest: what evicting them would cost, in blocks. Ages
// are counted in steps of 8 s.
func (x *Exact) DecayedOldest(w kv.Worker, blocks int, tau time.Duration) float64 {
	now := x.tick()
	x.mu.RLock()
	defer x.mu.RUnlock()
	if ws := x.workerLocked(w); ws != nil {
		return ws.ages.decayedOldest(blocks, now, tau)
	}
	return 0
}
