package events

import (
	"fmt"
	"slices"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// TranslatorConfig bounds a Translator. The zero value is ready.
type TranslatorConfig struct {
	// BlockSize is the block size, in tokens, that the engine is registered with; 0
	// is unknown. The size in the engine's events wins, a difference is counted.
	BlockSize int
	// MaxOrphans is how many blocks with an unknown parent are kept until the parent
	// appears (10,000). The oldest goes first.
	MaxOrphans int
	// MaxOrphanTokens bounds the tokens kept for them (4 Mi, 16 MiB).
	MaxOrphanTokens int
}

// Translator turns the engine events of one worker rank into net kv.Events: engine
// hashes become sequence hashes, and only the first copy of a block stores it and
// only the last removes it. It is for one goroutine at a time.
//
//	stored  ─▶ parent known? ──yes─▶ hash the tokens ─▶ count the copy ─▶ 0 → 1: stored
//	               └──no─▶ orphan, kept until the parent appears
//	removed ─▶ count the copy ─▶ 1 → 0: removed
//
// An engine says nothing when it reuses a block, so a block that is known is never
// forgotten before the engine removes it, clears, or is another process.
type Translator struct {
	cfg       TranslatorConfig
	blockSize int
	lastSize  int // of the process before this one; 0 is none
	group     int // the KV cache group that is followed; -1 until known

	nodes map[kvwire.EngineHash]node
	// held counts, per tier, the engine hashes that stand for one sequence hash. It
	// is more than one where the engine tells apart what our hash does not.
	held map[kv.SequenceHash]refs

	adapters map[string]*adapter
	orphans  orphanage

	stats TranslatorStats

	out     []kv.Event
	starts  []int // out[i].Hashes begins at hashes[starts[i]]
	hashes  []kv.SequenceHash
	seen    map[kvwire.EngineHash]struct{}
	adopt   []kvwire.EngineHash
	climb   []kvwire.EngineHash
	mm      []uint64
	nextKey uint32
}

type refs [kv.Tiers]uint16

func (r refs) any() bool { return r != refs{} }

// node is one block of the engine.
type node struct {
	seq       kv.SequenceHash
	parentSeq kv.SequenceHash
	parent    kvwire.EngineHash
	seed      uint64 // of the namespace; children inherit it
	adapter   uint32 // key of the LoRA adapter, 0 for none
	refs      refs   // copies per tier
	hasParent bool
	silent    bool // tracked for its children, never published: its adapter has no name
	suspect   bool // known before events were lost; no credit until a child proves it
	proved    bool // its GPU copy is known by a child, not by an event of its own
}

// TranslatorStats counts what a Translator has seen. Blocks, Held and Orphans are
// levels; the others only grow.
type TranslatorStats struct {
	Blocks  int           // engine blocks known
	Held    [kv.Tiers]int // sequence hashes resident, by tier
	Orphans int           // blocks whose parent is unknown

	OrphansDropped uint64 // orphans over the bound
	SizeMismatch   uint64 // stored events of another block size than the rank's
	BadBlockSize   uint64 // stored events of block size 0 or 1
	Malformed      uint64 // stored events that repeat a hash or name themselves as parent
	Masked         uint64 // stored events whose tokens do not match their hashes
	Ignored        uint64 // events of other groups, kinds of attention, or remote caches
	UnknownRemoved uint64 // blocks removed that were not known
	UnknownStored  uint64 // blocks stored by hash alone that were not known
	Conflicts      uint64 // engine hashes stored again for another prefix
	AdapterReloads uint64 // LoRA names that came back with another id
	Lost           uint64 // times Lost was called

	otherSize   int // the block size that differed last
	pageSizeOne bool
	orphansLost bool // orphans were dropped since the last clear
}

// NewTranslator returns a Translator that knows no block.
func NewTranslator(cfg TranslatorConfig) *Translator {
	if cfg.MaxOrphans <= 0 {
		cfg.MaxOrphans = 10_000
	}
	if cfg.MaxOrphanTokens <= 0 {
		cfg.MaxOrphanTokens = 4 << 20
	}
	t := &Translator{
		cfg:      cfg,
		group:    -1,
		nodes:    make(map[kvwire.EngineHash]node),
		held:     make(map[kv.SequenceHash]refs),
		adapters: make(map[string]*adapter),
		seen:     make(map[kvwire.EngineHash]struct{}),
	}
	t.orphans.init()
	return t
}

// Apply takes the events of one batch and returns their net effect, in order. The
// result is valid until the next call of a method that returns events.
func (t *Translator) Apply(b *kvwire.Batch) []kv.Event {
	t.begin()
	for i := range b.Events {
		e := &b.Events[i]
		switch e.Kind {
		case kv.EventStored:
			t.stored(e)
		case kv.EventRemoved:
			t.removed(e)
		case kv.EventCleared:
			t.forgetAll()
			t.emit(kv.EventCleared, 0, false, 0)
		}
	}
	return t.finish()
}

// BlockSize returns the rank's block size in tokens; 0 until the first stored event.
func (t *Translator) BlockSize() int { return t.blockSize }

// Stats returns what the translator has seen so far.
func (t *Translator) Stats() TranslatorStats {
	s := t.stats
	s.Blocks = len(t.nodes)
	s.Orphans = len(t.orphans.byHash)
	return s
}

// Clear forgets everything but the counters, without events.
func (t *Translator) Clear() {
	t.forgetAll()
	t.relearn()
	clear(t.adapters)
}

// Partial says why the blocks known may be fewer than the engine's, and what mends
// it; "" when nothing is missing.
func (t *Translator) Partial() string {
	s := &t.stats
	switch {
	case s.pageSizeOne:
		return "the engine's block size is 1 token: start it with --page-size 16 (or 32, 64)"
	case t.blockSize == 0 && s.BadBlockSize > 0:
		return "stored events carry no block size: upgrade the engine"
	case len(t.orphans.byHash) > 0:
		return fmt.Sprintf("%d blocks have a parent that was stored before the events were followed: "+
			"set replay_endpoint in --kv-events-config", len(t.orphans.byHash))
	case s.orphansLost:
		return "blocks with an unknown parent were dropped: set replay_endpoint in --kv-events-config"
	}
	return ""
}

func (t *Translator) begin() {
	t.out, t.starts, t.hashes = t.out[:0], t.starts[:0], t.hashes[:0]
}

// finish gives the events their hashes; before, the slice may still move.
func (t *Translator) finish() []kv.Event {
	for i := range t.out {
		end := len(t.hashes)
		if i+1 < len(t.out) {
			end = t.starts[i+1]
		}
		t.out[i].Hashes = t.hashes[t.starts[i]:end:end]
	}
	return t.out
}

// emit adds one hash to the events, to the last one where it continues it.
func (t *Translator) emit(kind kv.EventKind, tier kv.Tier, hasParent bool, parent kv.SequenceHash, hash ...kv.SequenceHash) {
	if n := len(t.out); n > 0 && len(hash) > 0 {
		last := &t.out[n-1]
		same := last.Kind == kind && last.Tier == tier
		if same && (kind == kv.EventRemoved || hasParent && t.hashes[len(t.hashes)-1] == parent) {
			t.hashes = append(t.hashes, hash...)
			return
		}
	}
	t.out = append(t.out, kv.Event{Kind: kind, Tier: tier, HasParent: hasParent, Parent: parent})
	t.starts = append(t.starts, len(t.hashes))
	t.hashes = append(t.hashes, hash...)
}

// accepts tells whether the event is of the attention that is followed: full
// attention keeps every block of a prefix, the others only a window or a state, so
// their residency says nothing about the prefix. A removed event carries the group
// alone, so the group is learned from the stored ones.
func (t *Translator) accepts(e *kvwire.Event) bool {
	if e.Remote {
		return false
	}
	switch e.SpecKind {
	case "", "unknown":
		return e.Group == max(t.group, 0)
	case "full_attention", "mla_attention", "sink_full_attention":
		if t.group < 0 {
			t.group = e.Group
		}
		return e.Group == t.group
	}
	return false
}

func (t *Translator) stored(e *kvwire.Event) {
	if !t.accepts(e) {
		t.stats.Ignored++
		return
	}
	key, silent := t.adapterOf(e)
	if len(e.Tokens) == 0 {
		t.storedByHash(e)
		return
	}
	if !t.wellFormed(e) {
		return
	}
	n := node{adapter: key, silent: silent}
	if e.HasParent {
		p, ok := t.nodes[e.Parent]
		if !ok {
			t.orphaned(e, n)
			return
		}
		if e.Tier == kv.TierGPU {
			t.prove(e.Parent)
		}
		n.seed, n.silent = p.seed, silent || p.silent
		n.hasParent, n.parent, n.parentSeq = true, e.Parent, p.seq
	} else {
		n.seed = kv.Namespace{LoRA: e.LoRAName, Salt: e.Salt}.Seed()
	}
	for i, h := range e.Hashes {
		var mm []uint64
		if i < len(e.MM) {
			mm = e.MM[i]
		}
		b := t.hashBlock(e.Tokens[i*t.blockSize:(i+1)*t.blockSize], mm, n.seed)
		if n.hasParent {
			n.seq = n.parentSeq.Next(b)
		} else {
			n.seq = kv.First(b)
		}
		n.refs = refs{}
		n.refs[e.Tier] = 1
		t.add(h, n)
		n.hasParent, n.parent, n.parentSeq = true, h, n.seq
	}
	t.adoptAll()
}

func (t *Translator) hashBlock(tokens []uint32, mm []uint64, seed uint64) kv.BlockHash {
	if len(mm) > 1 && !slices.IsSorted(mm) {
		t.mm = append(t.mm[:0], mm...)
		slices.Sort(t.mm)
		mm = t.mm
	}
	return kv.HashBlock(tokens, mm, seed)
}

// wellFormed checks a stored event with tokens and learns the block size. A GPU store
// teaches it: an external cache may announce chunks of its own size.
func (t *Translator) wellFormed(e *kvwire.Event) bool {
	switch {
	case e.BlockSize == 1:
		t.stats.BadBlockSize++
		t.stats.pageSizeOne = true
		return false
	case e.BlockSize <= 0:
		t.stats.BadBlockSize++
		return false
	case t.repeats(e):
		t.stats.Malformed++
		return false
	case len(e.Tokens) != len(e.Hashes)*e.BlockSize:
		t.stats.Masked++
		return false
	case t.blockSize == 0 && e.Tier == kv.TierGPU:
		t.learn(e.BlockSize)
	case t.blockSize != e.BlockSize:
		t.stats.SizeMismatch++
		t.stats.otherSize = e.BlockSize
		return false
	}
	return true
}

// repeats tells whether a hash occurs twice in the event or is its own parent: such a
// chain would be a cycle.
func (t *Translator) repeats(e *kvwire.Event) bool {
	if len(e.Hashes) <= 8 {
		for i, h := range e.Hashes {
			if e.HasParent && h == e.Parent || slices.Contains(e.Hashes[:i], h) {
				return true
			}
		}
		return false
	}
	clear(t.seen)
	if e.HasParent {
		t.seen[e.Parent] = struct{}{}
	}
	for _, h := range e.Hashes {
		if _, ok := t.seen[h]; ok {
			return true
		}
		t.seen[h] = struct{}{}
	}
	return false
}

// storedByHash takes an offloaded block that is announced by its hash alone. Such an
// announcement repeats per chunk of the offload, so it makes a block resident once.
func (t *Translator) storedByHash(e *kvwire.Event) {
	for _, h := range e.Hashes {
		if n, ok := t.nodes[h]; ok {
			if e.Tier == kv.TierGPU || n.suspect || n.refs[e.Tier] == 0 {
				n.refs = refs{}
				n.refs[e.Tier] = 1
				t.add(h, n)
			}
		} else if o := t.orphans.byHash[h]; o != nil {
			if e.Tier == kv.TierGPU || o.n.refs[e.Tier] == 0 {
				o.n.refs[e.Tier]++
			}
		} else {
			t.stats.UnknownStored++
		}
	}
	t.adoptAll()
}

// add counts the copies in n.refs of block h, stores what becomes resident, and
// queues the orphans that wait for it.
func (t *Translator) add(h kvwire.EngineHash, n node) {
	if o := t.orphans.take(h); o != nil {
		n.refs.add(o.n.refs)
	}
	old, known := t.nodes[h]
	if known && (old.seq != n.seq || old.silent != n.silent) {
		t.stats.Conflicts++
		t.forget(h, old)
		known = false
	}
	was := refs{}
	n.proved = false
	if known && !old.suspect {
		was = old.refs
		stored := n.refs[kv.TierGPU]
		n.refs.add(was)
		if old.proved && stored > 0 {
			// It may be the copy that the child proved: told twice, it would outlive its removal.
			n.refs[kv.TierGPU] = max(stored, was[kv.TierGPU])
		}
		n.proved = old.proved && stored == 0
	}
	n.suspect = false
	t.nodes[h] = n
	if !n.silent {
		for tier := range kv.Tier(kv.Tiers) {
			if was[tier] == 0 && n.refs[tier] > 0 {
				t.hold(n, tier)
			}
		}
	}
	if t.orphans.awaited(h) {
		t.adopt = append(t.adopt, h)
	}
}

func (r *refs) add(more refs) {
	for i := range r {
		r[i] = uint16(min(int(r[i])+int(more[i]), 1<<16-1))
	}
}

func (t *Translator) hold(n node, tier kv.Tier) {
	r := t.held[n.seq]
	r[tier]++
	t.held[n.seq] = r
	if r[tier] == 1 {
		t.stats.Held[tier]++
		t.emit(kv.EventStored, tier, n.hasParent, n.parentSeq, n.seq)
	}
}

func (t *Translator) release(n node, tier kv.Tier) {
	r := t.held[n.seq]
	r[tier]--
	if r.any() {
		t.held[n.seq] = r
	} else {
		delete(t.held, n.seq)
	}
	if r[tier] == 0 {
		t.stats.Held[tier]--
		t.emit(kv.EventRemoved, tier, false, 0, n.seq)
	}
}

func (t *Translator) removed(e *kvwire.Event) {
	if e.Remote || e.Group != max(t.group, 0) {
		t.stats.Ignored++
		return
	}
	for _, h := range e.Hashes {
		n, ok := t.nodes[h]
		switch {
		case !ok:
			if !t.orphans.removed(h, e.Tier) {
				t.stats.UnknownRemoved++
			}
		case n.suspect:
			delete(t.nodes, h)
		case n.refs[e.Tier] == 0:
			t.stats.UnknownRemoved++
		default:
			n.refs[e.Tier]--
			if n.refs[e.Tier] == 0 && !n.silent {
				t.release(n, e.Tier)
			}
			if n.refs.any() {
				t.nodes[h] = n
			} else {
				delete(t.nodes, h)
			}
		}
	}
}

// forget removes block h with all its copies.
func (t *Translator) forget(h kvwire.EngineHash, n node) {
	delete(t.nodes, h)
	if n.suspect || n.silent {
		return
	}
	for tier := range kv.Tier(kv.Tiers) {
		if n.refs[tier] > 0 {
			t.release(n, tier)
		}
	}
}

func (t *Translator) forgetAll() {
	clear(t.nodes)
	clear(t.held)
	t.orphans.init()
	t.stats.Held = [kv.Tiers]int{}
	t.stats.orphansLost = false
}
