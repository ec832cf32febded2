package events

import (
	"cmp"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// Lost withdraws all credit because events were lost for good: blocks may have been
// removed. What the blocks are stays known, so that their children can still be hashed,
// and a child that is stored on the GPU proves that its ancestors are there: the
// request that computed it holds them. Blocks of an earlier loss that nothing proved
// are forgotten, which bounds what is kept to twice the engine's blocks; so are blocks
// whose parent is unknown, since their removal may be among what was lost.
func (t *Translator) Lost() []kv.Event {
	t.begin()
	t.stats.Lost++
	for h, n := range t.nodes {
		if n.suspect {
			delete(t.nodes, h)
			continue
		}
		n.suspect, n.proved, n.refs = true, false, refs{}
		t.nodes[h] = n
	}
	t.orphans.init()
	clear(t.held)
	t.stats.Held = [kv.Tiers]int{}
	t.emit(kv.EventCleared, 0, false, 0)
	return t.finish()
}

// Restarted is Lost for another process of the engine, or one that may be: its block
// size and cache groups are learned anew.
func (t *Translator) Restarted() []kv.Event {
	last := cmp.Or(t.blockSize, t.lastSize)
	t.relearn()
	t.lastSize = last
	t.stats.orphansLost = false
	return t.Lost()
}

func (t *Translator) relearn() {
	t.blockSize, t.lastSize, t.group = 0, 0, -1
	t.stats.pageSizeOne = false
}

// learn sets the block size. Blocks of another size that an earlier process left are
// no ancestors of this one's.
func (t *Translator) learn(blockSize int) {
	t.blockSize = blockSize
	if t.lastSize != 0 && t.lastSize != blockSize {
		clear(t.nodes)
	}
	t.expect(t.cfg.BlockSize)
}

// expect gives the block size that the engine is registered with, 0 for unknown.
func (t *Translator) expect(blockSize int) {
	t.cfg.BlockSize = blockSize
	if blockSize > 0 && t.blockSize > 0 && blockSize != t.blockSize {
		t.stats.SizeMismatch++
		t.stats.otherSize = blockSize
	}
}

// prove gives block h and its ancestors back the credit that Lost took.
func (t *Translator) prove(h kvwire.EngineHash) {
	t.climb = t.climb[:0]
	for {
		n, ok := t.nodes[h]
		if !ok || !n.suspect {
			break
		}
		n.suspect, n.proved = false, true
		n.refs = refsOf(kv.TierGPU)
		t.nodes[h] = n
		t.climb = append(t.climb, h)
		if !n.hasParent {
			break
		}
		h = n.parent
	}
	for i := len(t.climb) - 1; i >= 0; i-- {
		if n := t.nodes[t.climb[i]]; !n.silent {
			t.hold(n, kv.TierGPU)
		}
	}
}

// Snapshot returns stored events that rebuild what is resident, tier by tier, parents
// before children. The result is the caller's.
func (t *Translator) Snapshot() []kv.Event {
	var out []kv.Event
	for tier := range kv.Tier(kv.Tiers) {
		if t.stats.Held[tier] > 0 {
			out = t.snapshotTier(out, tier)
		}
	}
	return out
}

// snapshotTier writes the runs of the resident blocks: it walks down from each block
// whose parent is not resident, along the first child; other children start runs.
func (t *Translator) snapshotTier(out []kv.Event, tier kv.Tier) []kv.Event {
	type block struct {
		seq, parent   kv.SequenceHash
		hasParent     bool
		child, sister int32 // indexes; 0 is none
	}
	n := t.stats.Held[tier]
	blocks := make([]block, 1, n+1)
	index := make(map[kv.SequenceHash]int32, n)
	for _, b := range t.nodes {
		if b.refs[tier] == 0 || b.silent || b.suspect {
			continue
		}
		if _, ok := index[b.seq]; !ok {
			index[b.seq] = int32(len(blocks))
			blocks = append(blocks, block{seq: b.seq, parent: b.parentSeq, hasParent: b.hasParent})
		}
	}
	var heads []int32
	for i := range blocks[1:] {
		i := int32(i + 1)
		b := &blocks[i]
		p := int32(0)
		if b.hasParent {
			p = index[b.parent]
		}
		if p == 0 {
			heads = append(heads, i)
		} else {
			b.sister, blocks[p].child = blocks[p].child, i
		}
	}
	hashes := make([]kv.SequenceHash, 0, n)
	for len(heads) > 0 {
		i := heads[len(heads)-1]
		heads = heads[:len(heads)-1]
		head, from := &blocks[i], len(hashes)
		for ; i != 0; i = blocks[i].child {
			hashes = append(hashes, blocks[i].seq)
			if s := blocks[i].sister; s != 0 {
				heads = append(heads, s)
			}
		}
		out = append(out, kv.Event{
			Kind: kv.EventStored, Tier: tier, HasParent: head.hasParent, Parent: head.parent,
			Hashes: hashes[from:len(hashes):len(hashes)],
		})
	}
	return out
}
