package index

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// soak returns n, many times over where WARMROUTE_SOAK is set.
func soak(n, times int) int {
	if os.Getenv("WARMROUTE_SOAK") != "" {
		return n * times
	}
	return n
}

// firstSeed is where the seeds of random tests start; WARMROUTE_SEED repeats one that
// failed.
func firstSeed(t *testing.T) uint64 {
	if v := os.Getenv("WARMROUTE_SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("WARMROUTE_SEED=%s is not a number", v)
		}
		return seed
	}
	return 1
}

// frozen is a clock that stands still until it is moved.
type frozen struct{ at time.Time }

func newFrozen() *frozen { return &frozen{time.Unix(1_700_000_000, 0)} }

func (f *frozen) now() time.Time          { return f.at }
func (f *frozen) advance(d time.Duration) { f.at = f.at.Add(d) }

// chainOf returns a chain of n blocks: block i has content names[i], the last name
// repeating with its position. Chains with equal leading names share those blocks.
func chainOf(n int, names ...uint64) []kv.SequenceHash {
	chain := make([]kv.SequenceHash, n)
	for i := range chain {
		name := uint64(i)
		if i < len(names) {
			name = names[i]
		} else if len(names) > 0 {
			name += names[len(names)-1] << 32
		}
		b := kv.BlockHash(name*0x9e3779b97f4a7c15 + 1)
		if i == 0 {
			chain[i] = kv.First(b)
		} else {
			chain[i] = chain[i-1].Next(b)
		}
	}
	return chain
}

// forest returns chains of up to maxLen blocks that branch off one another.
func forest(rng *rand.Rand, chains, maxLen int) [][]kv.SequenceHash {
	all := make([][]kv.SequenceHash, 0, chains)
	for i := range chains {
		var chain []kv.SequenceHash
		if i > 0 && rng.IntN(4) > 0 {
			from := all[rng.IntN(i)]
			chain = append(chain, from[:rng.IntN(len(from)+1)]...)
		}
		for n := 1 + rng.IntN(maxLen); len(chain) < n; {
			b := kv.BlockHash(rng.Uint64())
			if len(chain) == 0 {
				chain = append(chain, kv.First(b))
			} else {
				chain = append(chain, chain[len(chain)-1].Next(b))
			}
		}
		all = append(all, chain)
	}
	return all
}

// stored returns the event that stores blocks from..to−1 of chain.
func stored(tier kv.Tier, chain []kv.SequenceHash, from, to int) kv.Event {
	e := kv.Event{Kind: kv.EventStored, Tier: tier, Hashes: chain[from:to]}
	if from > 0 {
		e.HasParent, e.Parent = true, chain[from-1]
	}
	return e
}

func removed(tier kv.Tier, hashes ...kv.SequenceHash) kv.Event {
	return kv.Event{Kind: kv.EventRemoved, Tier: tier, Hashes: hashes}
}

// model is the naive index: a set of blocks per worker and tier. It counts how often
// each is held, for Predicted, whose entries overlap.
type model [][kv.Tiers]map[kv.SequenceHash]int

func newModel(workers int) model {
	m := make(model, workers)
	for w := range m {
		m.drop(kv.Worker(w))
	}
	return m
}

func (m model) drop(w kv.Worker) {
	for t := range m[w] {
		m[w][t] = map[kv.SequenceHash]int{}
	}
}

func (m model) apply(w kv.Worker, e kv.Event) {
	switch e.Kind {
	case kv.EventStored:
		for _, h := range e.Hashes {
			m[w][e.Tier][h] = 1
		}
	case kv.EventRemoved:
		for _, h := range e.Hashes {
			delete(m[w][e.Tier], h)
		}
	case kv.EventCleared:
		m.drop(w)
	}
}

func (m model) overlap(w kv.Worker, chain []kv.SequenceHash) kv.Overlap {
	at := 0
	count := func(t kv.Tier) (n uint32) {
		for ; at < len(chain) && m[w][t][chain[at]] > 0; at++ {
			n++
		}
		return n
	}
	return kv.Overlap{GPU: count(kv.TierGPU), CPU: count(kv.TierCPU), Disk: count(kv.TierDisk)}
}

func (m model) held(w kv.Worker) (n [kv.Tiers]int) {
	for t := range m[w] {
		n[t] = len(m[w][t])
	}
	return n
}

// check reports the first way in which the slab breaks its invariants.
func (s *slab) check() error {
	open := map[uint32]bool{}
	for _, k := range s.open {
		if open[k] || !s.meta[k].opened {
			return fmt.Errorf("chunk %d of runs is open twice or not at all", k)
		}
		open[k] = true
	}
	for k, c := range s.chunks {
		if c == nil {
			continue
		}
		m := s.meta[k]
		free := 0
		for i := m.free; i != 0; i = uint16(c[i-1].hashes) {
			if c[i-1].n != 0 {
				return fmt.Errorf("chunk %d: free run %d has %d hashes", k, i-1, c[i-1].n)
			}
			free++
		}
		live := 0
		for i := range c {
			if c[i].n > 0 {
				live++
			}
		}
		if k == 0 {
			live++ // number 0
		}
		if live != int(m.used) || live+free != int(m.bump) || live < chunkRuns && !open[uint32(k)] {
			return fmt.Errorf("chunk %d: %d runs live, %d free, counts %+v", k, live, free, m)
		}
	}
	return nil
}

// check reports the first way in which the index breaks its invariants.
func (x *Exact) check() error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	places := map[place]uint64{} // tag and shard of each place in the table
	live := 0
	for i := range x.table.shards {
		s := &x.table.shards[i]
		n := uint32(0)
		prev := uint64(0)
		for j, v := range s.slots {
			if v == 0 {
				prev = 0
				continue
			}
			n++
			tag := v >> placeBits
			if home := int(s.home(tag)); home > j || home < j && s.slots[j-1] == 0 || tag < prev {
				return fmt.Errorf("shard %d slot %d: tag %d of home %d is not where seek looks", i, j, tag, home)
			}
			prev = tag
			places[place(v&(1<<placeBits-1))] = uint64(i)<<tagBits | tag
		}
		if n != s.n || s.slots[len(s.slots)-1] != 0 {
			return fmt.Errorf("shard %d: counts %d of %d slots, sentinel %d", i, s.n, n, s.slots[len(s.slots)-1])
		}
		live += int(n)
	}
	if err := x.runs.check(); err != nil {
		return err
	}
	extents := map[uint32]bool{}
	held := make([][kv.Tiers]int, len(x.workers))
	ages := make([]map[uint32]int, len(x.workers))
	for w := range ages {
		ages[w] = map[uint32]int{}
	}
	for id := x.runs.skip(1); id < x.runs.end(); id = x.runs.skip(id + 1) {
		r := x.runs.get(id)
		if r.n == 0 {
			continue
		}
		extents[r.hashes] = true
		if classWords[r.class] < int(r.n) {
			return fmt.Errorf("run %d: %d hashes in an extent of %d", id, r.n, classWords[r.class])
		}
		for off, h := range x.hashesOf(r) {
			_, tag := x.table.locate(h)
			want := (h*x.table.mult)>>x.table.shift<<tagBits | tag
			if got, ok := places[placeOf(id, off)]; !ok || got != want {
				return fmt.Errorf("run %d offset %d: in the table %v", id, off, ok)
			}
			delete(places, placeOf(id, off))
		}
		if end := x.coveredEnd(r); end != int(r.n) {
			return fmt.Errorf("run %d: %d hashes, covered up to %d", id, r.n, end)
		}
		for t := range kv.Tier(kv.Tiers) {
			list := x.list(r, t)
			if len(list) >= 2 {
				extents[uint32(r.lists[t])] = true
			}
			for i, word := range list {
				v := interval(word)
				if v.from() > v.last() || v.last() >= int(r.n) {
					return fmt.Errorf("run %d: interval %d..%d of %d hashes", id, v.from(), v.last(), r.n)
				}
				if i > 0 {
					u := interval(list[i-1])
					if u.worker() > v.worker() || u.worker() == v.worker() && u.last()+1 >= v.from() {
						return fmt.Errorf("run %d %v: intervals %d and %d out of order or adjacent", id, t, i-1, i)
					}
				}
				held[v.worker()][t] += v.len()
				if t == kv.TierGPU {
					ages[v.worker()][v.stamp()] += v.len()
				}
			}
		}
	}
	if len(places) > 0 || live != x.blocks {
		return fmt.Errorf("table: %d slots without a run, %d blocks counted of %d", len(places), x.blocks, live)
	}
	total := 0
	for w, ws := range x.workers {
		if ws == nil {
			continue
		}
		if ws.held != held[w] {
			return fmt.Errorf("worker %d: counts %v, holds %v", w, ws.held, held[w])
		}
		older := 0
		for stamp, n := range ages[w] {
			if stamp < ws.ages.first {
				older += n
			} else if got := int(ws.ages.ring[stamp%ageTicks]); got != n {
				return fmt.Errorf("worker %d tick %d: counts %d, holds %d", w, stamp, got, n)
			}
		}
		if ws.ages.older != older {
			return fmt.Errorf("worker %d: counts %d old, holds %d", w, ws.ages.older, older)
		}
		for _, n := range held[w] {
			total += n
		}
	}
	if total != x.memberships {
		return fmt.Errorf("counts %d memberships of %d", x.memberships, total)
	}
	used := 0
	for c, m := range x.arena.meta {
		if x.arena.chunks[c] == nil || int32(c) == x.arena.spare {
			continue
		}
		used += int(m.used)
		if room := m.free != 0 || (int(m.bump)+1)*classWords[m.class] <= chunkWords; room != m.listed {
			return fmt.Errorf("arena chunk %d: room %v, listed %v", c, room, m.listed)
		}
	}
	if used != len(extents) {
		return fmt.Errorf("arena: %d extents handed out, %d in use", used, len(extents))
	}
	return nil
}
