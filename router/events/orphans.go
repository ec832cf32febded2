package events

import (
	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// orphanage keeps the blocks whose parent is unknown: their prefix cannot be hashed,
// so they earn no credit, but the engine will not announce them again.
type orphanage struct {
	byHash map[kvwire.EngineHash]*orphan
	kids   map[kvwire.EngineHash][]kvwire.EngineHash // by the parent they wait for
	order  []kvwire.EngineHash                       // oldest first; may name blocks that have left
	tokens int                                       // of all orphans
}

type orphan struct {
	n      node // without seq and seed
	tokens []uint32
	mm     []uint64
}

func (o *orphanage) init() {
	*o = orphanage{
		byHash: make(map[kvwire.EngineHash]*orphan),
		kids:   make(map[kvwire.EngineHash][]kvwire.EngineHash),
	}
}

func (o *orphanage) awaited(parent kvwire.EngineHash) bool { return len(o.kids[parent]) > 0 }

func (o *orphanage) put(h kvwire.EngineHash, b *orphan) {
	o.byHash[h] = b
	o.kids[b.n.parent] = append(o.kids[b.n.parent], h)
	o.tokens += len(b.tokens)
	o.order = append(o.order, h)
	if len(o.order) > 2*len(o.byHash)+1024 {
		live := o.order[:0]
		seen := make(map[kvwire.EngineHash]struct{}, len(o.byHash))
		for _, h := range o.order {
			_, twice := seen[h]
			if o.byHash[h] != nil && !twice {
				seen[h] = struct{}{}
				live = append(live, h)
			}
		}
		o.order = live
	}
}

// take removes and returns the orphan h, nil when there is none.
func (o *orphanage) take(h kvwire.EngineHash) *orphan {
	b := o.byHash[h]
	if b == nil {
		return nil
	}
	delete(o.byHash, h)
	o.tokens -= len(b.tokens)
	kids := o.kids[b.n.parent]
	for i, k := range kids {
		if k == h {
			kids[i] = kids[len(kids)-1]
			kids = kids[:len(kids)-1]
			break
		}
	}
	if len(kids) == 0 {
		delete(o.kids, b.n.parent)
	} else {
		o.kids[b.n.parent] = kids
	}
	return b
}

// dropOldest removes the orphan that has waited longest.
func (o *orphanage) dropOldest() {
	for len(o.order) > 0 {
		h := o.order[0]
		o.order = o.order[1:]
		if o.take(h) != nil {
			return
		}
	}
}

// removed takes one copy of h from a tier and tells whether h is an orphan.
func (o *orphanage) removed(h kvwire.EngineHash, tier kv.Tier) bool {
	b := o.byHash[h]
	if b == nil || b.n.refs[tier] == 0 {
		return b != nil
	}
	b.n.refs[tier]--
	if !b.n.refs.any() {
		o.take(h)
	}
	return true
}

func (o *orphanage) dropAdapter(key uint32) {
	for h, b := range o.byHash {
		if b.n.adapter == key {
			o.take(h)
		}
	}
}

// orphaned keeps the blocks of a stored event whose parent is unknown. n holds what
// the blocks have in common.
func (t *Translator) orphaned(e *kvwire.Event, n node) {
	tokens := append([]uint32(nil), e.Tokens...)
	n.hasParent, n.parent = true, e.Parent
	for i, h := range e.Hashes {
		if known, ok := t.nodes[h]; ok {
			// A second copy of a known block, told with a parent that has left.
			known.refs = refs{}
			known.refs[e.Tier] = 1
			t.add(h, known)
		} else if o := t.orphans.byHash[h]; o != nil {
			o.n.refs.add(refsOf(e.Tier))
		} else {
			n.refs = refsOf(e.Tier)
			o := &orphan{n: n, tokens: tokens[i*t.blockSize : (i+1)*t.blockSize]}
			if i < len(e.MM) {
				o.mm = append(o.mm, e.MM[i]...)
			}
			t.orphans.put(h, o)
		}
		n.parent = h
	}
	for len(t.orphans.byHash) > t.cfg.MaxOrphans || t.orphans.tokens > t.cfg.MaxOrphanTokens {
		t.orphans.dropOldest()
		t.stats.OrphansDropped++
		t.stats.orphansLost = true
	}
	// A known block in the middle of the event is the parent of those after it.
	for i, h := range e.Hashes[:len(e.Hashes)-1] {
		if _, ok := t.nodes[h]; ok && t.orphans.byHash[e.Hashes[i+1]] != nil {
			t.adopt = append(t.adopt, h)
		}
	}
	t.adoptAll()
}

func refsOf(tier kv.Tier) (r refs) {
	r[tier] = 1
	return r
}

// adoptAll gives the orphans that wait for the blocks in t.adopt their prefix, and in
// turn those that wait for them. It does not recurse: a chain may be long.
func (t *Translator) adoptAll() {
	for len(t.adopt) > 0 {
		parent := t.adopt[len(t.adopt)-1]
		t.adopt = t.adopt[:len(t.adopt)-1]
		p, ok := t.nodes[parent]
		if !ok {
			continue
		}
		for t.orphans.awaited(parent) {
			kids := t.orphans.kids[parent]
			h := kids[len(kids)-1]
			o := t.orphans.take(h)
			n := o.n
			n.seed, n.silent = p.seed, n.silent || p.silent
			n.parentSeq = p.seq
			n.seq = p.seq.Next(t.hashBlock(o.tokens, o.mm, n.seed))
			if n.refs[kv.TierGPU] > 0 {
				t.prove(parent)
			}
			t.add(h, n)
		}
	}
}
