package sim

import (
	"fmt"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// Stats are an engine's gauges and counters, as its metrics show them.
type Stats struct {
	Running, Waiting  int
	TotalBlocks       int
	UsedBlocks        int // held by a sequence
	CachedBlocks      int // in the prefix cache, held or not
	KVTokens          int // computed tokens of running sequences
	Steps             uint64
	Preemptions       uint64
	Evicted           uint64 // blocks evicted from the prefix cache
	Finished, Aborted uint64
	PromptTokens      uint64
	GeneratedTokens   uint64
	PrefixQueries     uint64 // prompt tokens of admitted sequences
	PrefixHits        uint64 // of those, tokens found in the cache
}

// Stats returns the engine's numbers as they are.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Running, s.Waiting = len(e.running), len(e.waiting)
	s.TotalBlocks = len(e.cache.blocks)
	s.UsedBlocks = s.TotalBlocks - e.cache.free
	s.CachedBlocks = e.cache.hashed
	s.Evicted = e.cache.evicted
	for _, q := range e.running {
		s.KVTokens += q.computed
	}
	return s
}

// Held is one prefix in the prefix cache.
type Held struct {
	Engine   kvwire.EngineHash
	Sequence kv.SequenceHash // the same prefix in the project's hashes
	Root     bool            // block 0 of a prompt: no parent
	Parent   kv.SequenceHash
	Copies   int // physical blocks with this content
}

// Truth is the content of an engine's prefix cache by sequence hash. Tests compare the
// index with it.
type Truth map[kv.SequenceHash]Held

// Truth returns what the prefix cache holds, with the step under way included.
func (e *Engine) Truth() Truth {
	t := make(Truth, len(e.cache.byHash))
	for h, b := range e.cache.byHash {
		k := &e.cache.blocks[b]
		held := Held{Engine: h, Sequence: k.seq, Root: k.root, Parent: k.parent}
		for ; b != none; b = e.cache.blocks[b].dup {
			held.Copies++
		}
		t[held.Sequence] = held
	}
	return t
}

// Overlap returns how many blocks of chain the engine holds from block 0 on.
func (t Truth) Overlap(chain []kv.SequenceHash) int {
	for i, h := range chain {
		if _, ok := t[h]; !ok {
			return i
		}
	}
	return len(chain)
}

// Check verifies the engine's own invariants and names the first that is broken.
func (e *Engine) Check() error {
	c := e.cache
	refs := make([]int32, len(c.blocks))
	for _, s := range e.running {
		if blocksFor(s.computed, e.cfg.BlockSize) > len(s.table) {
			return fmt.Errorf("%d tokens in %d blocks", s.computed, len(s.table))
		}
		for _, b := range s.table {
			refs[b]++
		}
	}
	hashed, free := 0, 0
	for b := range c.blocks {
		if c.blocks[b].refs != refs[b] {
			return fmt.Errorf("block %d has %d refs, %d holders", b, c.blocks[b].refs, refs[b])
		}
		if refs[b] == 0 {
			free++
		}
		if c.blocks[b].hashed {
			hashed++
		}
	}
	listed := 0
	for b := c.head; b != none; b = c.blocks[b].next {
		if c.blocks[b].refs != 0 {
			return fmt.Errorf("held block %d is on the free list", b)
		}
		if listed++; listed > len(c.blocks) {
			return fmt.Errorf("free list is a cycle")
		}
	}
	copies := 0
	for h, b := range c.byHash {
		for ; b != none; b = c.blocks[b].dup {
			if !c.blocks[b].hashed || c.blocks[b].hash != h {
				return fmt.Errorf("hash %d leads to block %d, which holds another", h, b)
			}
			copies++
		}
	}
	if listed != c.free || free != c.free || hashed != c.hashed || copies != hashed {
		return fmt.Errorf("free: %d counted, %d listed, %d without holder; hashed: %d counted, %d flagged, %d reachable",
			c.free, listed, free, c.hashed, hashed, copies)
	}
	return nil
}
