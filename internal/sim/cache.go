package sim

import (
	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// none is the block number that means "no block".
const none = int32(-1)

// block is one physical block of the pool.
//
// A block is held (refs > 0) or free (refs == 0 and linked into the free list). A
// hashed block is in the prefix cache, held or free; a free hashed block is evicted
// when it is taken for other content.
type block struct {
	refs       int32
	prev, next int32 // free list links; meaningful while refs == 0

	hashed bool
	root   bool              // block 0 of a prompt
	hash   kvwire.EngineHash // the engine's own id
	seq    kv.SequenceHash   // the same prefix in the project's hashes
	parent kv.SequenceHash   // prefix without this block; meaningless for a root
	run    uint32            // stored by the same insertion: SGLang evicts runs
	dup    int32             // next physical copy of the same hash, none at the end
}

// cache is the paged KV cache: a pool of blocks, a free list in the order of eviction
// and the hash table of the prefix cache.
//
// Sequences give their blocks back tail first, and whoever holds a block holds the
// blocks before it, so a cached block is evicted after the cached blocks that continue
// it (further copies of one prefix aside): plain LRU order is leaf-first order.
type cache struct {
	blocks     []block
	head, tail int32 // free list; taken at head, given back at tail
	free       int
	byHash     map[kvwire.EngineHash]int32 // first copy; further ones by block.dup
	hashed     int                         // blocks in the prefix cache
	evicted    uint64
	runs       uint32

	// evictRuns makes eviction remove the whole run of the block that is taken
	// (SGLang's radix leaf), not one block (vLLM).
	evictRuns bool
	// removed is told of each eviction; hashes are valid during the call.
	removed func(hashes []kvwire.EngineHash)
	scratch []kvwire.EngineHash
}

func newCache(blocks int, evictRuns bool, removed func([]kvwire.EngineHash)) *cache {
	c := &cache{
		blocks: make([]block, blocks), head: none, tail: none,
		byHash: make(map[kvwire.EngineHash]int32, blocks), evictRuns: evictRuns, removed: removed,
	}
	for i := range c.blocks {
		c.pushBack(int32(i))
	}
	return c
}

func (c *cache) pushBack(b int32) {
	c.blocks[b].prev, c.blocks[b].next = c.tail, none
	if c.tail == none {
		c.head = b
	} else {
		c.blocks[c.tail].next = b
	}
	c.tail = b
	c.free++
}

func (c *cache) pushFront(b int32) {
	c.blocks[b].prev, c.blocks[b].next = none, c.head
	if c.head == none {
		c.tail = b
	} else {
		c.blocks[c.head].prev = b
	}
	c.head = b
	c.free++
}

func (c *cache) unlink(b int32) {
	p, n := c.blocks[b].prev, c.blocks[b].next
	if p == none {
		c.head = n
	} else {
		c.blocks[p].next = n
	}
	if n == none {
		c.tail = p
	} else {
		c.blocks[n].prev = p
	}
	c.free--
}

// lookup returns a block that holds the prefix h, or none.
func (c *cache) lookup(h kvwire.EngineHash) int32 {
	if b, ok := c.byHash[h]; ok {
		return b
	}
	return none
}

// hold counts one holder of b and takes it off the free list if it is there.
func (c *cache) hold(b int32) {
	if c.blocks[b].refs == 0 {
		c.unlink(b)
	}
	c.blocks[b].refs++
}

// release gives back one hold. A free block without a hash is of no use to anyone and
// is taken next; a hashed one is taken last.
func (c *cache) release(b int32) {
	k := &c.blocks[b]
	if k.refs--; k.refs > 0 {
		return
	}
	if k.refs < 0 {
		panic("BUG: block is released more often than held")
	}
	if k.hashed {
		c.pushBack(b)
	} else {
		c.pushFront(b)
	}
}

// take returns a held block without content, evicting what it held. The caller has
// checked that one is free.
func (c *cache) take() int32 {
	b := c.head
	if b == none {
		panic("BUG: no free block")
	}
	if c.blocks[b].hashed {
		c.evict(b)
	}
	c.unlink(b)
	c.blocks[b].refs = 1
	return b
}

// evict removes the free block b from the prefix cache, and with evictRuns also the
// free blocks before it that the same insertion stored: they follow it in the list.
func (c *cache) evict(b int32) {
	c.scratch = append(c.scratch[:0], c.blocks[b].hash)
	run, parent, root := c.blocks[b].run, c.blocks[b].parent, c.blocks[b].root
	c.forget(b)
	for n := c.blocks[b].next; c.evictRuns && !root && n != none; n = c.blocks[n].next {
		k := &c.blocks[n]
		if !k.hashed || k.run != run || k.seq != parent {
			break
		}
		c.scratch = append(c.scratch, k.hash)
		parent, root = k.parent, k.root
		c.forget(n)
	}
	c.evicted += uint64(len(c.scratch))
	c.removed(c.scratch)
}

// store puts the held block b into the prefix cache.
func (c *cache) store(b int32, h kvwire.EngineHash, seq, parent kv.SequenceHash, root bool, run uint32) {
	k := &c.blocks[b]
	k.hashed, k.hash, k.seq, k.parent, k.root, k.run, k.dup = true, h, seq, parent, root, run, none
	if first, ok := c.byHash[h]; ok {
		k.dup = c.blocks[first].dup
		c.blocks[first].dup = b
	} else {
		c.byHash[h] = b
	}
	c.hashed++
}

// forget takes block b out of the hash table.
func (c *cache) forget(b int32) {
	k := &c.blocks[b]
	first := c.byHash[k.hash]
	switch {
	case first != b:
		p := first
		for c.blocks[p].dup != b {
			p = c.blocks[p].dup
		}
		c.blocks[p].dup = k.dup
	case k.dup != none:
		c.byHash[k.hash] = k.dup
	default:
		delete(c.byHash, k.hash)
	}
	k.hashed = false
	c.hashed--
}

// clear empties the prefix cache. It fails while any block is held.
func (c *cache) clear() bool {
	if c.free != len(c.blocks) {
		return false
	}
	for b := range c.blocks {
		c.blocks[b].hashed = false
	}
	clear(c.byHash)
	c.hashed = 0
	return true
}
