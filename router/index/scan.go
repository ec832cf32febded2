package index

import (
	"slices"

	"github.com/warmroute/warmroute/router/kv"
)

// filter takes from w every block that keep does not name in its tier (a bit per
// tier); a nil keep names none. The index lock is let go between slices.
func (x *Exact) filter(ws *worker, w kv.Worker, keep map[kv.SequenceHash]uint8) {
	var gone []interval // ranges of one run to take; the words are used as (from, last)
	for id := uint32(1); ; {
		x.mu.Lock()
		if ws.held == [kv.Tiers]int{} {
			x.mu.Unlock()
			return
		}
		for work := 0; work < holdWork; id++ {
			if id = x.runs.skip(id); id >= x.runs.end() {
				x.mu.Unlock()
				return
			}
			work++
			r := x.runs.get(id)
			if r.n == 0 {
				continue
			}
			changed := false
			for t := range kv.Tier(kv.Tiers) {
				gone = gone[:0]
				list := x.list(r, t)
				for i := lowerBound(list, w, 0); i < len(list); i++ {
					v := interval(list[i])
					if v.worker() != w {
						break
					}
					work += workBlock * v.len()
					gone = x.appendGone(gone, r, v, t, keep)
				}
				for _, v := range gone {
					x.uncover(r, t, w, v.from(), v.last()+1)
					changed = true
				}
			}
			if changed {
				x.trim(id, r)
			}
		}
		x.mu.Unlock()
	}
}

// appendGone appends the parts of interval v that keep does not name.
func (x *Exact) appendGone(gone []interval, r *run, v interval, t kv.Tier, keep map[kv.SequenceHash]uint8) []interval {
	if keep == nil {
		return append(gone, v)
	}
	hashes := x.hashesOf(r)
	from := -1
	for off := v.from(); off <= v.last(); off++ {
		kept := keep[kv.SequenceHash(hashes[off])]&(1<<t) != 0
		switch {
		case !kept && from < 0:
			from = off
		case kept && from >= 0:
			gone = append(gone, newInterval(v.worker(), from, off-1, 0))
			from = -1
		}
	}
	if from >= 0 {
		gone = append(gone, newInterval(v.worker(), from, v.last(), 0))
	}
	return gone
}

// Replace makes w hold exactly the blocks of the stored events in state. Removals come
// first, so a reader meanwhile sees at most what the old or the new state credits.
// Blocks in both states keep their ages. refused is as in Apply.
func (x *Exact) Replace(w kv.Worker, state []kv.Event) (refused int) {
	ws := x.makeWorker(w)
	ws.changing.Lock()
	defer ws.changing.Unlock()
	n := 0
	for _, e := range state {
		n += len(e.Hashes)
	}
	keep := make(map[kv.SequenceHash]uint8, n)
	for _, e := range state {
		if e.Kind != kv.EventStored || e.Tier >= kv.Tiers {
			continue
		}
		for _, h := range e.Hashes {
			keep[h] |= 1 << e.Tier
		}
	}
	x.filter(ws, w, keep)
	for _, e := range state {
		if e.Kind == kv.EventStored && e.Tier < kv.Tiers {
			refused += x.store(ws, w, e, true)
		}
	}
	return refused
}

// Dump yields stored events that rebuild what w holds, in no order that a reader may
// rely on, until yield returns false. The feed of w should be at rest: blocks that
// change meanwhile may or may not be told.
func (x *Exact) Dump(w kv.Worker, yield func(kv.Event) bool) {
	var events []kv.Event
	for id, last := uint32(1), false; !last; {
		events = events[:0]
		x.mu.RLock()
		for work := 0; work < holdWork; id++ {
			id = x.runs.skip(id)
			if last = id >= x.runs.end(); last {
				break
			}
			work++
			r := x.runs.get(id)
			if r.n == 0 {
				continue
			}
			for t := range kv.Tier(kv.Tiers) {
				list := x.list(r, t)
				for i := lowerBound(list, w, 0); i < len(list) && interval(list[i]).worker() == w; i++ {
					v := interval(list[i])
					work += v.len()
					events = append(events, x.stored(r, t, v))
				}
			}
		}
		x.mu.RUnlock()
		for _, e := range events {
			if !yield(e) {
				return
			}
		}
	}
}

// stored returns the event that stores an interval.
func (x *Exact) stored(r *run, t kv.Tier, v interval) kv.Event {
	hashes := x.hashesOf(r)
	e := kv.Event{Kind: kv.EventStored, Tier: t, HasParent: r.hasParent, Parent: r.parent}
	if v.from() > 0 {
		e.HasParent, e.Parent = true, kv.SequenceHash(hashes[v.from()-1])
	}
	e.Hashes = slices.Grow(e.Hashes, v.len())
	for _, h := range hashes[v.from() : v.last()+1] {
		e.Hashes = append(e.Hashes, kv.SequenceHash(h))
	}
	return e
}
