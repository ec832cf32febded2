package index

import "math/bits"

// A slot of the table is one word: 26 bits of the mixed hash, 28 bits of the run's
// number, 10 bits of the offset in it. The full hash is in the run, so the table costs
// 8 bytes a slot; a tag that matches is verified there. 0 is an empty slot (runs are
// numbered from 1).
const (
	tagBits   = 26
	placeBits = 64 - tagBits
	offBits   = 10
	maxRuns   = 1 << (placeBits - offBits)

	// shardSlack are the slots behind the last home, for clusters that reach over the
	// end; the last one stays empty as a sentinel. At load 0.8 one cluster in 10^5
	// ends more than 27 slots from home.
	shardSlack = 32
	minShard   = 24
)

// place is where a hash sits: the run's number and the offset in it.
type place uint64

func placeOf(run uint32, off int) place { return place(run)<<offBits | place(off) }

func (p place) run() uint32 { return uint32(p >> offBits) }
func (p place) off() int    { return int(p & (1<<offBits - 1)) }

// shard is an open-addressing table that is also sorted: homes ascend with the tag,
// and clusters are kept in tag order. A miss therefore ends as soon as a hit, and
// growth is one sequential copy. Capacity is not a power of two: growth is by 1.3, so
// that load stays within 0.62 and 0.8.
type shard struct {
	slots []uint64
	homes uint32 // slots that are somebody's home; the rest is slack
	limit uint32 // live slots at which the shard grows
	n     uint32
}

// table maps hashes to places. The shards' limits are staggered, because hashes are
// uniform and all shards would otherwise grow within the same second.
type table struct {
	budget *budget
	mult   uint64 // odd: mixes hashes, so that nobody who picks tokens picks slots
	shift  uint   // 64 − log2(shards)
	shards []shard
}

func (t *table) init(b *budget, mult uint64, shards int) {
	t.budget, t.mult = b, mult|1
	t.shift = uint(64 - bits.Len(uint(shards-1)))
	t.shards = make([]shard, shards)
	for i := range t.shards {
		homes := minShard + minShard*3*i/(10*shards)
		t.shards[i].resize(uint32(homes))
		b.take(t.shards[i].bytes(), true)
	}
}

func (s *shard) bytes() int64 { return int64(len(s.slots)) * 8 }

func (s *shard) home(tag uint64) uint32 { return uint32(tag * uint64(s.homes) >> tagBits) }

// locate returns the shard and the tag of h.
func (t *table) locate(h uint64) (s *shard, tag uint64) {
	m := h * t.mult
	return &t.shards[m>>t.shift], m << (64 - t.shift) >> placeBits
}

// touch loads the home slots of hashes. The loads do not depend on one another, so the
// cache misses overlap; the probes after it find their lines near.
func touch[H ~uint64](t *table, hashes []H) (sum uint64) {
	for _, h := range hashes {
		s, tag := t.locate(uint64(h))
		sum += s.slots[s.home(tag)]
	}
	return sum
}

// seek returns the first slot from tag's home on that is empty or has at least this
// tag: the place to find it or to put it.
func (s *shard) seek(tag uint64) int {
	slots := s.slots
	i := int(s.home(tag))
	for i < len(slots) && slots[i] != 0 && slots[i]>>placeBits < tag {
		i++
	}
	return i
}

// insert puts a place at slot i, which seek returned for the tag. It fails where the
// shard may not grow.
func (t *table) insert(s *shard, i int, tag uint64, p place) bool {
	if s.n >= s.limit {
		if !t.grow(s) {
			return false
		}
		i = s.seek(tag)
	}
	for {
		end := i
		for s.slots[end] != 0 {
			end++
		}
		if end < len(s.slots)-1 {
			copy(s.slots[i+1:end+1], s.slots[i:end])
			s.slots[i] = tag<<placeBits | uint64(p)
			s.n++
			return true
		}
		// The last cluster has used up the slack. Growth spreads it, unless the
		// table is nearly empty: then the hashes are not uniform, and refusing
		// them is all that keeps the table bounded.
		if s.n < s.homes/4 || !t.grow(s) {
			return false
		}
		i = s.seek(tag)
	}
}

// remove takes the hash with this tag and place out.
func (t *table) remove(h uint64, p place) {
	s, tag := t.locate(uint64(h))
	word := tag<<placeBits | uint64(p)
	i := s.seek(tag)
	for s.slots[i] != word {
		if s.slots[i]>>placeBits != tag {
			panic("BUG: hash of a run is not in the table")
		}
		i++
	}
	end := i + 1
	for s.slots[end] != 0 && int(s.home(s.slots[end]>>placeBits)) < end {
		end++
	}
	copy(s.slots[i:end-1], s.slots[i+1:end])
	s.slots[end-1] = 0
	s.n--
	if s.homes > 2*minShard && s.n < s.homes/5 {
		t.rebuild(s, s.n+s.n/2+minShard, true)
	}
}

func (t *table) grow(s *shard) bool {
	if s.homes >= 1<<tagBits {
		return false
	}
	return t.rebuild(s, s.homes+s.homes*3/10+1, false)
}

// rebuild moves the slots to a shard of another capacity.
func (t *table) rebuild(s *shard, homes uint32, shrink bool) bool {
	for {
		var next shard
		extra := (int64(homes) + shardSlack - int64(len(s.slots))) * 8
		if !t.budget.take(extra, shrink) {
			return false
		}
		next.resize(homes)
		if next.fill(s.slots) {
			*s = next
			return true
		}
		t.budget.give(extra)
		if shrink {
			return false
		}
		homes += homes/4 + 1
		if s.n < homes/8 {
			return false
		}
	}
}

func (s *shard) resize(homes uint32) {
	s.slots = make([]uint64, homes+shardSlack)
	s.homes = homes
	s.limit = homes / 5 * 4
}

// fill copies sorted slots into the empty s; it fails where they do not fit.
func (s *shard) fill(from []uint64) bool {
	at := 0
	for _, v := range from {
		if v == 0 {
			continue
		}
		at = max(at, int(s.home(v>>placeBits)))
		if at >= len(s.slots)-1 {
			return false
		}
		s.slots[at] = v
		at++
		s.n++
	}
	return true
}
