package index

import (
	"github.com/warmroute/warmroute/router/kv"
)

const (
	// maxRun caps a run, so that one late holder of its tail does not pin a long head
	// that nobody holds any more.
	maxRun = 1 << offBits

	runChunkShift = 10
	runChunk      = 1 << runChunkShift
	runBytes      = 48
	noRun         = 0
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

// run returns the run of a number.
func (x *Exact) run(id uint32) *run {
	return &x.runs[id>>runChunkShift][id&(runChunk-1)]
}

func (x *Exact) newRun() (uint32, *run) {
	if id := x.freeRun; id != noRun {
		r := x.run(id)
		x.freeRun = r.hashes
		*r = run{}
		return id, r
	}
	if x.lastRun+1 >= uint32(len(x.runs))<<runChunkShift {
		if x.lastRun+1 >= maxRuns || !x.budget.take(runChunk*runBytes, false) {
			return noRun, nil
		}
		x.runs = append(x.runs, new([runChunk]run))
	}
	x.lastRun++
	return x.lastRun, x.run(x.lastRun)
}

func (x *Exact) releaseRun(id uint32, r *run) {
	*r = run{hashes: x.freeRun}
	x.freeRun = id
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
	class := classOf[n]
	if r.n > 0 && classWords[r.class] >= n {
		return true
	}
	addr, ok := x.arena.alloc(class, false)
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
