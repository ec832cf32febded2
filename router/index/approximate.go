package index

import (
	"encoding/binary"
	"sync"
	"time"
	"unsafe"

	"github.com/armon/go-radix"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	// cutEvery puts a key at every 64th block (16 KiB of text), so that long messages
	// match in part.
	cutEvery = 64
	// cutRatio thins boundaries out: one is skipped that is less than 1/64 of the way
	// behind the last cut. A prompt of n blocks so has at most 64 + 64·ln(n/64) of
	// them, and a match is at most 1.6 % short.
	cutRatio = 64
	// maxCutBlocks caps what is learned of a prompt (2 MiB of text), and with it keys,
	// at about 4 KiB.
	maxCutBlocks = 8192
	maxCuts      = maxCutBlocks/cutEvery + cutRatio*6

	// Bytes that an entry costs beside its key and holders: the entry, go-radix's
	// leaf, node and edge, the backing of its key. Measured; the test of memory
	// accounting holds them to the heap.
	entryBytes  = 240
	holderBytes = 12
)

// Approximate guesses which worker holds a prefix of text blocks from the prompts that
// were routed there, for workers without KV events. It is safe for concurrent use.
//
// A key is the concatenation of the sequence hashes at a prompt's cuts: its message
// boundaries, the system prompt's included, and every 64th block. A sequence hash
// commits to all before it, so the hashes between cuts add nothing, and the keys of
// the next turn start with those of this one. WalkPath visits all of them in one
// descent.
//
// go-radix v1.0.0 leaks nodes in DeletePrefix, so entries leave one by one with
// Delete, deepest first: learning a prompt moves its entries to the young end of the
// queue deepest first, so the old end always has a leaf.
type Approximate struct {
	maxBytes int64
	ttl      int64 // seconds
	clock    func() time.Time
	start    time.Time
	dropping sync.Mutex // one Drop at a time; taken before mu

	mu      sync.RWMutex // guards everything below
	tree    *radix.Tree
	old     *entry // ends of the queue of entries by time of learning
	young   *entry
	sweep   *entry // next entry that a Drop looks at
	entries int
	bytes   int64
	evicted int64
	expired int64

	// generations tell the holders learned before a worker's last Drop from those
	// after it.
	generations []uint32
}

// entry is one key of the tree: a prefix of blocks text blocks.
type entry struct {
	key     string
	backing *backing
	blocks  uint32
	learned uint32 // second of the last Learn
	first   holder
	more    []holder

	older, younger *entry
}

// backing is the memory that the keys of one Learn share; it is paid until the last
// of them is gone.
type backing struct {
	bytes, keys int32
}

type holder struct {
	worker     kv.Worker
	generation uint32
	learned    uint32 // second; 0 is an empty holder
}

func newApproximate(maxBytes int64, ttl time.Duration, clock func() time.Time) *Approximate {
	return &Approximate{
		maxBytes: maxBytes,
		ttl:      int64(ttl / time.Second),
		clock:    clock,
		start:    clock(),
		tree:     radix.New(),
	}
}

// second returns the time in whole seconds, from 1 on.
func (a *Approximate) second() uint32 {
	return uint32(max(a.clock().Sub(a.start)/time.Second, 0)) + 1
}

// cutter walks the cuts of a prompt. Whether there is a cut at a block depends on
// nothing behind it, so two prompts have the same cuts as far as they agree.
type cutter struct {
	n, last    int
	boundaries []int
}

// next returns the number of blocks at the next cut, 0 at the end.
func (c *cutter) next() int {
	even := c.last/cutEvery*cutEvery + cutEvery
	for len(c.boundaries) > 0 {
		b := c.boundaries[0]
		if b > even || b > c.n {
			break
		}
		c.boundaries = c.boundaries[1:]
		if b > c.last && (b-c.last)*cutRatio >= b {
			c.last = b
			return b
		}
	}
	if even > c.n {
		return 0
	}
	c.last = even
	return even
}

// pathBuf holds the key of a whole prompt on the stack.
type pathBuf [8 * maxCuts]byte

// path writes the key of chain's whole cut path into buf and the block count of each
// cut into cuts. It returns how many cuts there are.
func path(chain []kv.SequenceHash, boundaries []int, buf *pathBuf, cuts *[maxCuts]uint32) int {
	c := cutter{n: min(len(chain), maxCutBlocks), boundaries: boundaries}
	for k := range maxCuts {
		b := c.next()
		if b == 0 {
			return k
		}
		binary.LittleEndian.PutUint64(buf[8*k:], uint64(chain[b-1]))
		cuts[k] = uint32(b)
	}
	return maxCuts
}

// Learn records that chain was routed to w. boundaries are the ascending counts of
// blocks at which a message ends.
func (a *Approximate) Learn(w kv.Worker, chain []kv.SequenceHash, boundaries []int) {
	var buf pathBuf
	var cuts [maxCuts]uint32
	n := path(chain, boundaries, &buf, &cuts)
	if n == 0 {
		return
	}
	now := a.second()
	a.mu.Lock()
	defer a.mu.Unlock()
	for int(w) >= len(a.generations) {
		a.generations = append(a.generations, 0)
	}
	// What the tree has of the path already, shallowest first.
	var known [maxCuts]*entry
	have := 0
	a.tree.WalkPath(view(buf[:8*n]), func(_ string, v any) bool {
		known[have] = v.(*entry)
		have++
		return false
	})
	// Entries leave deepest first, so the known ones are the first cuts of the path.
	if have < n {
		key := string(buf[:8*n])
		shared := &backing{bytes: int32(len(key))}
		a.bytes += int64(len(key))
		for k := have; k < n; k++ {
			e := &entry{key: key[:8*(k+1)], backing: shared, blocks: cuts[k]}
			shared.keys++
			a.tree.Insert(e.key, e)
			a.entries++
			a.bytes += entryBytes
			known[k] = e
		}
	}
	for k := n - 1; k >= 0; k-- {
		a.hold(known[k], w, now)
		a.toYoung(known[k])
		known[k].learned = now
	}
	a.evict(now)
}

// hold makes w a holder of e as of now, and forgets holders that no longer count.
func (a *Approximate) hold(e *entry, w kv.Worker, now uint32) {
	fresh := holder{w, a.generations[w], now}
	if e.first.worker == w || !a.counts(e.first, now) {
		e.first = fresh
		return
	}
	at := -1
	kept := e.more[:0]
	for _, h := range e.more {
		switch {
		case h.worker == w:
			at = len(kept)
			kept = append(kept, fresh)
		case a.counts(h, now):
			kept = append(kept, h)
		}
	}
	before := cap(e.more)
	e.more = kept
	if at < 0 {
		e.more = append(e.more, fresh)
	}
	a.bytes += int64(cap(e.more)-before) * holderBytes
}

// counts tells whether a holder is neither expired nor dropped.
func (a *Approximate) counts(h holder, now uint32) bool {
	return h.learned != 0 && int64(now)-int64(h.learned) < a.ttl && h.generation == a.generations[h.worker]
}

// Overlap clears dst and sets dst[w].GPU to the text blocks of chain, from block 0,
// that w is thought to hold: a count at which a key of chain ends. boundaries are as
// in Learn. Workers that dst has no room for are left out. It allocates nothing.
func (a *Approximate) Overlap(chain []kv.SequenceHash, boundaries []int, dst []kv.Overlap) {
	clear(dst)
	var buf pathBuf
	var cuts [maxCuts]uint32
	n := path(chain, boundaries, &buf, &cuts)
	if n == 0 {
		return
	}
	now := a.second()
	a.mu.RLock()
	defer a.mu.RUnlock()
	a.tree.WalkPath(view(buf[:8*n]), func(_ string, v any) bool {
		e := v.(*entry)
		a.credit(e, e.first, now, dst)
		for _, h := range e.more {
			a.credit(e, h, now, dst)
		}
		return false
	})
}

func (a *Approximate) credit(e *entry, h holder, now uint32, dst []kv.Overlap) {
	if int(h.worker) < len(dst) && a.counts(h, now) {
		o := &dst[h.worker]
		o.GPU = max(o.GPU, e.blocks)
	}
}

// view returns b as a string without a copy, for look-ups that keep nothing of it.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
