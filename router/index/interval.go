package index

import "github.com/warmroute/warmroute/router/kv"

// interval says that a worker holds the offsets from..last of a run in one tier, last
// stored or matched at tick stamp. The fields are ordered so that words sort by worker
// and offset.
type interval uint64

const (
	stampBits   = 24
	lastShift   = stampBits
	fromShift   = lastShift + offBits
	workerShift = fromShift + offBits
	maxWorkers  = 1 << (64 - workerShift)
	maxHolders  = 1 << 13 // intervals of one tier of one run: the largest extent
	offMask     = 1<<offBits - 1
)

func newInterval(w kv.Worker, from, last int, stamp uint32) interval {
	return interval(w)<<workerShift | interval(from)<<fromShift | interval(last)<<lastShift | interval(stamp)
}

func (v interval) worker() kv.Worker { return kv.Worker(v >> workerShift) }
func (v interval) from() int         { return int(v >> fromShift & offMask) }
func (v interval) last() int         { return int(v >> lastShift & offMask) }
func (v interval) len() int          { return v.last() - v.from() + 1 }
func (v interval) stamp() uint32     { return uint32(v & maxTick) }

// list returns the intervals of a tier; it is valid until the next splice.
func (x *Exact) list(r *run, t kv.Tier) []uint64 {
	switch n := int(r.held[t]); n {
	case 0:
		return nil
	case 1:
		return r.lists[t : t+1]
	default:
		return x.arena.words(uint32(r.lists[t]), n)
	}
}

// lowerBound returns the first interval that is not before the offset of the worker.
func lowerBound(list []uint64, w kv.Worker, off int) int {
	key := uint64(newInterval(w, off, 0, 0))
	lo, hi := 0, len(list)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if list[mid] < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// freeList gives back the extent of a tier's intervals, if they have one.
func (x *Exact) freeList(r *run, t kv.Tier) {
	if r.held[t] >= 2 {
		x.arena.release(uint32(r.lists[t]))
	}
}

// splice replaces the intervals i..j−1 of a tier by the first n of repl. It fails only
// where the list gets longer and memory is refused; with force, only where it would
// pass maxHolders.
func (x *Exact) splice(r *run, t kv.Tier, i, j int, repl [2]interval, n int, force bool) bool {
	old := x.list(r, t)
	size := len(old) - (j - i) + n
	if size <= 1 {
		var word uint64
		switch {
		case size == 0:
		case n == 1:
			word = uint64(repl[0])
		case i > 0:
			word = old[0]
		default:
			word = old[j]
		}
		x.freeList(r, t)
		r.lists[t], r.held[t] = word, uint16(size)
		return true
	}
	class, ok := classFor(size)
	if !ok {
		return false
	}
	fill := func(to []uint64) {
		copy(to[i+n:size], old[j:])
		for k := range n {
			to[i+k] = uint64(repl[k])
		}
	}
	had := uint8(r.lists[t] >> 32)
	fits := len(old) >= 2 && class <= had
	if !fits || class+3 <= had {
		if addr, class, ok := x.arena.allocUp(class, force && !fits); ok {
			to := x.arena.words(addr, size)
			copy(to, old[:i])
			fill(to)
			x.freeList(r, t)
			r.lists[t], r.held[t] = uint64(addr)|uint64(class)<<32, uint16(size)
			return true
		}
		if !fits {
			return false
		}
	}
	fill(x.arena.words(uint32(r.lists[t]), classWords[had]))
	r.held[t] = uint16(size)
	return true
}

// cover records that w holds the offsets from..to−1 of a run in tier t, as of tick now;
// with keep set, what was held before keeps its last touch. It fails, changing nothing,
// where memory is refused.
func (x *Exact) cover(r *run, t kv.Tier, w kv.Worker, from, to int, now uint32, keep bool) bool {
	list := x.list(r, t)
	i := lowerBound(list, w, from)
	if i > 0 {
		if v := interval(list[i-1]); v.worker() == w && v.last()+1 >= from {
			i--
		}
	}
	first, end, newest, j := from, to, uint32(0), i
	for ; j < len(list); j++ {
		v := interval(list[j])
		if v.worker() != w || v.from() > to {
			break
		}
		first, end, newest = min(first, v.from()), max(end, v.last()+1), max(newest, v.stamp())
	}
	if keep && j > i {
		now = newest
	}
	merged := newInterval(w, first, end-1, now)
	if j == i {
		if !x.splice(r, t, i, i, [2]interval{merged}, 1, false) {
			return false
		}
		x.account(t, merged, 1)
		return true
	}
	for k := i; k < j; k++ {
		x.account(t, interval(list[k]), -1)
	}
	x.account(t, merged, 1)
	if j == i+1 {
		list[i] = uint64(merged)
		return true
	}
	return x.splice(r, t, i, j, [2]interval{merged}, 1, false) // shorter: never refused
}

// uncover records that w no longer holds the offsets from..to−1 of a run in tier t.
// The run's tail is not trimmed.
func (x *Exact) uncover(r *run, t kv.Tier, w kv.Worker, from, to int) {
	for {
		list := x.list(r, t)
		i := lowerBound(list, w, from)
		if i > 0 {
			if v := interval(list[i-1]); v.worker() == w && v.last() >= from {
				i--
			}
		}
		if i == len(list) {
			return
		}
		v := interval(list[i])
		if v.worker() != w || v.from() >= to {
			return
		}
		var rest [2]interval
		n := 0
		if v.from() < from {
			rest[n] = newInterval(w, v.from(), from-1, v.stamp())
			n++
		}
		if v.last() >= to {
			rest[n] = newInterval(w, to, v.last(), v.stamp())
			n++
		}
		if n == 1 {
			list[i] = uint64(rest[0])
		} else if !x.splice(r, t, i, i+1, rest, n, true) {
			// More than maxHolders holes in one run: what is behind the hole goes
			// too, for a credit that is too low is safe and one too high is not.
			n = 1
			list[i] = uint64(rest[0])
			x.refused += rest[1].len()
			x.budget.refused.Add(int64(rest[1].len()))
		}
		x.account(t, v, -1)
		for k := range n {
			x.account(t, rest[k], 1)
		}
		if v.last() >= to {
			return
		}
	}
}

// account adds (sign 1) or takes off (−1) an interval in its worker's counts.
func (x *Exact) account(t kv.Tier, v interval, sign int) {
	ws := x.workers[v.worker()]
	n := sign * v.len()
	ws.held[t] += n
	x.memberships += n
	if t == kv.TierGPU {
		ws.ages.add(v.stamp(), n)
	}
}

// coveredEnd returns one more than the last offset of a run that any worker holds in
// any tier.
func (x *Exact) coveredEnd(r *run) int {
	end := 0
	for t := range kv.Tier(kv.Tiers) {
		for _, v := range x.list(r, t) {
			end = max(end, interval(v).last()+1)
		}
	}
	return end
}

// trim takes the tail that nobody holds off a run, and the run itself when nothing is
// left. It reports whether the run still exists.
func (x *Exact) trim(id uint32, r *run) bool {
	end := x.coveredEnd(r)
	if end == int(r.n) && end > 0 {
		return true
	}
	hashes := x.hashesOf(r)
	x.sink += touch(&x.table, hashes[end:])
	for i := int(r.n) - 1; i >= end; i-- {
		x.table.remove(hashes[i], placeOf(id, i))
	}
	x.blocks -= int(r.n) - end
	r.n = uint16(end)
	if end == 0 {
		x.arena.release(r.hashes)
		x.runs.release(id)
		return false
	}
	x.shrink(r)
	return true
}
