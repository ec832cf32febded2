package index

import (
	"github.com/warmroute/warmroute/router/kv"
)

const (
	// maxRun caps a run, so that one late holder of its tail does not pin a long head
	// that nobody holds any more.
	maxRun = 1 << offBits

	chunkRunsShift = 10
	chunkRuns      = 1 << chunkRunsShift
	runBytes       = 48
	noRun          = 0
)

// run is a sequence of consecutive hashes of one path and who holds which part of it.
// A free run has n == 0 and the number of the next free one in hashes.
type run struct {
	parent kv.SequenceHash // of hash 0; meaningful with hasParent

	// lists are the intervals of each tier, ascending by worker and offset, disjoint
	// and never adjacent: none if held is 0, the interval itself if 1, else the
	// address of an extent and its class.
	lists [kv.Tiers]uint64
	held  [kv.Tiers]uint16

	n         uint16 // hashes
	hashes    uint32 // address of their extent
	class     uint8  // of that extent
	hasParent bool
}

// slab hands out runs from chunks without pointers. A chunk whose last run is freed
// goes back to the runtime, but for one.
type slab struct {
	budget *budget
	chunks []*[chunkRuns]run
	meta   []slabMeta
	open   []uint32 // chunks that may have a free run: a stack without repeats
	vacant []uint32 // chunks without memory
	spare  uint32   // empty chunk that keeps its memory, 0 if none
}

type slabMeta struct {
	used   uint16
	bump   uint16 // runs ever handed out
	free   uint16 // 1 + index of the first freed run, 0 if none
	opened bool   // it is in open
}

// get returns the run of a number. Numbers start at 1.
func (s *slab) get(id uint32) *run {
	return &s.chunks[id>>chunkRunsShift][id&(chunkRuns-1)]
}

// end returns one more than the largest number in use.
func (s *slab) end() uint32 { return uint32(len(s.chunks)) << chunkRunsShift }

// skip returns the first number from id on whose chunk has memory.
func (s *slab) skip(id uint32) uint32 {
	for id < s.end() && s.chunks[id>>chunkRunsShift] == nil {
		id = (id>>chunkRunsShift + 1) << chunkRunsShift
	}
	return id
}

// alloc returns a free run, zeroed, nil where memory is refused.
func (s *slab) alloc() (uint32, *run) {
	for {
		n := len(s.open)
		if n == 0 {
			if !s.grow() {
				return noRun, nil
			}
			continue
		}
		k := s.open[n-1]
		m := &s.meta[k]
		i := m.bump
		switch {
		case s.chunks[k] == nil: // emptied while it was open
			s.open, m.opened = s.open[:n-1], false
			s.vacant = append(s.vacant, k)
			continue
		case m.free != 0:
			i = m.free - 1
			m.free = uint16(s.chunks[k][i].hashes)
		case m.bump < chunkRuns:
			m.bump++
		default:
			s.open, m.opened = s.open[:n-1], false
			continue
		}
		m.used++
		if s.spare == k {
			s.spare = 0
		}
		r := &s.chunks[k][i]
		*r = run{}
		return k<<chunkRunsShift | uint32(i), r
	}
}

func (s *slab) grow() bool {
	if len(s.vacant) == 0 && s.end() >= maxRuns || !s.budget.take(chunkRuns*runBytes, false) {
		return false
	}
	k := uint32(len(s.chunks))
	if n := len(s.vacant); n > 0 {
		k, s.vacant = s.vacant[n-1], s.vacant[:n-1]
	} else {
		s.chunks, s.meta = append(s.chunks, nil), append(s.meta, slabMeta{})
	}
	s.chunks[k], s.meta[k] = new([chunkRuns]run), slabMeta{opened: true}
	if k == 0 {
		s.meta[k] = slabMeta{opened: true, bump: 1, used: 1} // number 0 is no run
	}
	s.open = append(s.open, k)
	return true
}

// release gives a run back.
func (s *slab) release(id uint32) {
	k, i := id>>chunkRunsShift, uint16(id&(chunkRuns-1))
	m := &s.meta[k]
	s.chunks[k][i] = run{hashes: uint32(m.free)}
	m.free = i + 1
	m.used--
	if m.used == 0 {
		if s.spare != 0 {
			s.budget.give(chunkRuns * runBytes)
			s.chunks[k] = nil
			if !m.opened {
				s.vacant = append(s.vacant, k)
			}
			return
		}
		s.spare = k
	}
	if !m.opened {
		m.opened = true
		s.open = append(s.open, k)
	}
}

// hashesOf returns the hashes of a run.
func (x *Exact) hashesOf(r *run) []uint64 { return x.arena.words(r.hashes, int(r.n)) }

// hashAt returns one hash of a run.
func (x *Exact) hashAt(r *run, off int) uint64 {
	at := r.hashes + uint32(off) // an extent lies within one chunk
	return x.arena.chunks[at>>chunkShift][at&(chunkWords-1)]
}

// reserve makes room for n hashes in a run.
func (x *Exact) reserve(r *run, n int) bool {
	if r.n > 0 && classWords[r.class] >= n {
		return true
	}
	addr, class, ok := x.arena.allocUp(classOf[n], false)
	if !ok {
		return false
	}
	x.moveHashes(r, addr, class)
	return true
}

// shrink moves a run that has become much shorter to a smaller extent.
func (x *Exact) shrink(r *run) {
	class := classOf[r.n]
	if class+3 > r.class {
		return
	}
	if addr, ok := x.arena.alloc(class, false); ok {
		x.moveHashes(r, addr, class)
	}
}

func (x *Exact) moveHashes(r *run, addr uint32, class uint8) {
	if r.n > 0 {
		copy(x.arena.words(addr, int(r.n)), x.hashesOf(r))
		x.arena.release(r.hashes)
	}
	r.hashes, r.class = addr, class
}
