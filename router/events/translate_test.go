package events

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// view is what the net events of a rank say is resident.
type view [kv.Tiers]map[kv.SequenceHash]kv.SequenceHash // to the parent

func (v *view) apply(t *testing.T, events []kv.Event) {
	t.Helper()
	for _, e := range events {
		switch e.Kind {
		case kv.EventStored:
			parent := e.Parent
			for _, h := range e.Hashes {
				if _, ok := v[e.Tier][h]; ok {
					t.Fatalf("stored event repeats %x, which is held: not a net change", h)
				}
				if v[e.Tier] == nil {
					v[e.Tier] = make(map[kv.SequenceHash]kv.SequenceHash)
				}
				v[e.Tier][h] = parent
				parent = h
			}
		case kv.EventRemoved:
			for _, h := range e.Hashes {
				if _, ok := v[e.Tier][h]; !ok {
					t.Fatalf("removed event names %x, which is not held: not a net change", h)
				}
				delete(v[e.Tier], h)
			}
		case kv.EventCleared:
			*v = view{}
		}
	}
}

func (v *view) equal(w *view) bool {
	for tier := range v {
		if len(v[tier]) != len(w[tier]) {
			return false
		}
		for h, p := range v[tier] {
			if q, ok := w[tier][h]; !ok || p != q {
				return false
			}
		}
	}
	return true
}

// run feeds engine events one by one and keeps the view.
type run struct {
	t  *testing.T
	tr *Translator
	v  view
}

func newRun(t *testing.T, cfg TranslatorConfig) *run {
	return &run{t: t, tr: NewTranslator(cfg)}
}

func (r *run) apply(events ...kvwire.Event) []kv.Event {
	r.t.Helper()
	out := r.tr.Apply(&kvwire.Batch{Events: events})
	r.v.apply(r.t, out)
	var snap view
	snap.apply(r.t, r.tr.Snapshot())
	if !snap.equal(&r.v) {
		r.t.Fatalf("snapshot differs from the net events after %+v", events)
	}
	return out
}

// want checks that exactly these sequence hashes are held in the tier.
func (r *run) want(tier kv.Tier, seqs ...[]kv.SequenceHash) {
	r.t.Helper()
	want := make(map[kv.SequenceHash]bool)
	for _, s := range seqs {
		for _, h := range s {
			want[h] = true
		}
	}
	if len(want) != len(r.v[tier]) {
		r.t.Fatalf("%v holds %d blocks, want %d", tier, len(r.v[tier]), len(want))
	}
	for h := range want {
		if _, ok := r.v[tier][h]; !ok {
			r.t.Fatalf("%v lacks block %x", tier, h)
		}
	}
}

const bs = 16 // the tests' block size

// tokens returns n blocks of tokens that depend on the start.
func tokens(start, blocks int) []uint32 {
	out := make([]uint32, blocks*bs)
	for i := range out {
		out[i] = uint32(start*bs + i)
	}
	return out
}

func chain(ns kv.Namespace, toks []uint32) []kv.SequenceHash {
	return kv.AppendSequenceHashes(nil, toks, bs, ns.Seed())
}

func store(parent kvwire.EngineHash, toks []uint32, hashes ...kvwire.EngineHash) kvwire.Event {
	return kvwire.Event{
		Kind: kv.EventStored, Hashes: hashes, Tokens: toks, BlockSize: bs,
		HasParent: parent != 0, Parent: parent, Medium: "GPU",
	}
}

func remove(tier kv.Tier, hashes ...kvwire.EngineHash) kvwire.Event {
	return kvwire.Event{Kind: kv.EventRemoved, Hashes: hashes, Tier: tier}
}

func cleared() kvwire.Event { return kvwire.Event{Kind: kv.EventCleared} }

var base kv.Namespace

func TestTranslate_CountsCopies(t *testing.T) {
	r := newRun(t, TranslatorConfig{})
	toks := tokens(0, 3)
	c := chain(base, toks)
	out := r.apply(store(0, toks, 1, 2, 3))
	if len(out) != 1 || out[0].HasParent || !slices.Equal(out[0].Hashes, c) {
		t.Fatalf("stored = %+v, want one event of the chain", out)
	}
	if out := r.apply(store(0, toks[:bs], 1)); len(out) != 0 {
		t.Fatalf("a second copy gave %+v", out)
	}
	if out := r.apply(remove(kv.TierGPU, 1)); len(out) != 0 {
		t.Fatalf("removing one of two copies gave %+v", out)
	}
	r.want(kv.TierGPU, c)
	r.apply(remove(kv.TierGPU, 1, 3))
	r.want(kv.TierGPU, c[1:2])
	r.apply(remove(kv.TierGPU, 1)) // not held any more
	if s := r.tr.Stats(); s.UnknownRemoved != 1 || s.Blocks != 1 || s.Held[kv.TierGPU] != 1 {
		t.Fatalf("stats = %+v", s)
	}
	r.apply(cleared())
	r.want(kv.TierGPU)
	if s := r.tr.Stats(); s.Blocks != 0 || len(r.tr.held) != 0 {
		t.Fatalf("after clear: %+v", s)
	}
}

func TestTranslate_TwoEngineHashesForOnePrefix(t *testing.T) {
	r := newRun(t, TranslatorConfig{})
	c := chain(base, tokens(0, 1))
	r.apply(store(0, tokens(0, 1), 1), store(0, tokens(0, 1), 101))
	r.apply(remove(kv.TierGPU, 1))
	r.want(kv.TierGPU, c)
	r.apply(remove(kv.TierGPU, 101))
	r.want(kv.TierGPU)
}

func TestFC44_OrphansAreAdopted(t *testing.T) {
	toks := tokens(0, 3)
	c := chain(base, toks)
	r := newRun(t, TranslatorConfig{})
	r.apply(store(0, tokens(90, 1), 90)) // teaches the block size
	r.apply(store(1, toks[bs:2*bs], 2))
	if r.tr.Partial() == "" || r.tr.Stats().Orphans != 1 {
		t.Fatalf("an orphan must make the rank partial: %+v", r.tr.Stats())
	}
	r.want(kv.TierGPU, chain(base, tokens(90, 1)))
	r.apply(store(0, toks[:bs], 1))
	r.apply(store(2, toks[2*bs:], 3))
	r.want(kv.TierGPU, c, chain(base, tokens(90, 1)))
	if why := r.tr.Partial(); why != "" {
		t.Fatalf("all orphans are adopted, still partial: %s", why)
	}

	// A chain of orphans in one event, a copy of one, and the removal of another.
	r = newRun(t, TranslatorConfig{})
	toks = tokens(0, 6)
	c = chain(base, toks)
	r.apply(store(1, toks[bs:5*bs], 2, 3, 4, 5), store(2, toks[2*bs:3*bs], 3), store(5, toks[5*bs:], 6))
	r.apply(remove(kv.TierGPU, 5))
	r.apply(store(0, toks[:bs], 1))
	r.want(kv.TierGPU, c[:4])
	r.apply(remove(kv.TierGPU, 3))
	r.want(kv.TierGPU, c[:4])
	r.apply(store(4, toks[4*bs:5*bs], 5)) // brings back 6 as well
	r.want(kv.TierGPU, c)
}

func TestFC44_OrphansAreBounded(t *testing.T) {
	r := newRun(t, TranslatorConfig{})
	for i := range 12_000 {
		h := kvwire.EngineHash(1_000_000 + 2*i)
		r.tr.Apply(&kvwire.Batch{Events: []kvwire.Event{store(h+1, tokens(i, 1), h)}})
	}
	s := r.tr.Stats()
	if s.Orphans != 10_000 || s.OrphansDropped != 2_000 {
		t.Fatalf("orphans = %d, dropped = %d", s.Orphans, s.OrphansDropped)
	}
	if len(r.tr.orphans.kids) > 10_000 || len(r.tr.orphans.order) > 22_000 {
		t.Fatalf("bookkeeping is not bounded: %d kids, %d order", len(r.tr.orphans.kids), len(r.tr.orphans.order))
	}
	r.apply(cleared())
	if r.tr.Stats().Orphans != 0 || r.tr.Partial() != "" {
		t.Fatalf("a clear must end the orphans: %q", r.tr.Partial())
	}

	// Few blocks with many tokens are bounded by the tokens.
	r = newRun(t, TranslatorConfig{MaxOrphanTokens: 10 * bs})
	for i := range 20 {
		r.apply(store(kvwire.EngineHash(1000+i), tokens(i, 1), kvwire.EngineHash(1+i)))
	}
	if s := r.tr.Stats(); s.Orphans != 10 {
		t.Fatalf("orphans = %d, want 10 by their tokens", s.Orphans)
	}
}

func TestFC51_BlockSizes(t *testing.T) {
	sized := func(size int, h kvwire.EngineHash, toks []uint32) kvwire.Event {
		e := store(0, toks, h)
		e.BlockSize = size
		return e
	}
	for _, size := range []int{16, 64} {
		tr := NewTranslator(TranslatorConfig{})
		toks := make([]uint32, size)
		out := tr.Apply(&kvwire.Batch{Events: []kvwire.Event{sized(size, 1, toks)}})
		if tr.BlockSize() != size || len(out) != 1 || out[0].Hashes[0] != kv.AppendSequenceHashes(nil, toks, size, kv.BaseSeed)[0] {
			t.Fatalf("block size %d: learned %d, %+v", size, tr.BlockSize(), out)
		}
	}
	r := newRun(t, TranslatorConfig{})
	r.apply(sized(0, 1, tokens(0, 1)))
	r.apply(sized(-3, 1, tokens(0, 1)))
	if s := r.tr.Stats(); s.BadBlockSize != 2 || r.tr.BlockSize() != 0 || r.tr.Partial() == "" {
		t.Fatalf("block size 0: %+v, %q", s, r.tr.Partial())
	}
	r.apply(sized(1, 1, []uint32{5}))
	if why := r.tr.Partial(); !strings.Contains(why, "--page-size 16") {
		t.Fatalf("block size 1: reason %q", why)
	}
	r.want(kv.TierGPU)

	// Another size than the first is refused; than the registered one is counted.
	r = newRun(t, TranslatorConfig{BlockSize: 64})
	r.apply(store(0, tokens(0, 1), 1))
	r.apply(sized(32, 2, tokens(3, 2)))
	r.want(kv.TierGPU, chain(base, tokens(0, 1)))
	if s := r.tr.Stats(); s.SizeMismatch != 2 {
		t.Fatalf("mismatches = %d, want 2", s.SizeMismatch)
	}
}

func TestFC53_Tiers(t *testing.T) {
	r := newRun(t, TranslatorConfig{})
	toks := tokens(0, 2)
	c := chain(base, toks)
	offload := kvwire.Event{Kind: kv.EventStored, Hashes: []kvwire.EngineHash{1, 2, 77}, Tier: kv.TierCPU, Medium: "CPU"}
	r.apply(offload) // nothing is known yet
	r.apply(store(0, toks, 1, 2), offload, offload)
	r.want(kv.TierGPU, c)
	r.want(kv.TierCPU, c)
	r.apply(remove(kv.TierGPU, 1, 2))
	r.want(kv.TierGPU)
	r.want(kv.TierCPU, c)
	r.apply(remove(kv.TierCPU, 2, 1))
	r.want(kv.TierCPU)
	if s := r.tr.Stats(); s.Blocks != 0 || s.UnknownStored != 5 {
		t.Fatalf("stats = %+v", s)
	}
	r.apply(store(0, toks, 1, 2), offload, cleared())
	r.want(kv.TierCPU)
}

func TestFC54_LoRA(t *testing.T) {
	lora := func(name string, id int64, h kvwire.EngineHash) kvwire.Event {
		e := store(0, tokens(0, 1), h)
		e.LoRAName, e.LoRAID, e.HasLoRAID = name, id, id > 0
		return e
	}
	r := newRun(t, TranslatorConfig{})
	r.apply(lora("", 0, 1), lora("lora-a", 1, 2), lora("lora-b", 2, 3), lora("", 9, 4))
	a, b := kv.Namespace{LoRA: "lora-a"}, kv.Namespace{LoRA: "lora-b"}
	toks := tokens(0, 2)
	r.want(kv.TierGPU, chain(base, toks[:bs]), chain(a, toks[:bs]), chain(b, toks[:bs]))

	child := lora("lora-a", 1, 5)
	child.HasParent, child.Parent, child.Tokens = true, 2, toks[bs:]
	nameless := lora("", 9, 6)
	nameless.HasParent, nameless.Parent, nameless.Tokens = true, 4, toks[bs:]
	r.apply(child, nameless)
	r.want(kv.TierGPU, chain(base, toks[:bs]), chain(a, toks), chain(b, toks[:bs]))

	r.apply(lora("lora-a", 7, 2)) // loaded anew: its old blocks are stale
	r.want(kv.TierGPU, chain(base, toks[:bs]), chain(a, toks[:bs]), chain(b, toks[:bs]))
	if s := r.tr.Stats(); s.AdapterReloads != 1 {
		t.Fatalf("reloads = %d", s.AdapterReloads)
	}
	r.apply(remove(kv.TierGPU, 4, 6, 1, 3, 2))
	r.want(kv.TierGPU)
}

func TestTranslate_SaltIsInherited(t *testing.T) {
	r := newRun(t, TranslatorConfig{})
	toks := tokens(0, 3)
	salted := kv.Namespace{Salt: "tenant-a"}
	first := store(0, toks[:bs], 1)
	first.Salt = "tenant-a"
	r.apply(store(2, toks[2*bs:], 3), first, store(1, toks[bs:2*bs], 2))
	r.want(kv.TierGPU, chain(salted, toks))
}

func TestFC58_HashesAreOpaque(t *testing.T) {
	r1, r2 := newRun(t, TranslatorConfig{}), newRun(t, TranslatorConfig{})
	toks := tokens(0, 2)
	r1.apply(store(0, toks, 11, 12))
	r2.apply(store(0, toks, 901, 902))
	if !r1.v.equal(&r2.v) {
		t.Fatal("the same tokens under other engine hashes are another prefix")
	}
}

func TestFC59_MalformedStores(t *testing.T) {
	r := newRun(t, TranslatorConfig{})
	r.apply(store(0, tokens(0, 1), 7))
	long := make([]kvwire.EngineHash, 20)
	for i := range long {
		long[i] = kvwire.EngineHash(100 + i)
	}
	long[19] = long[3]
	r.apply(store(7, tokens(1, 3), 7, 8, 7), store(0, tokens(1, 2), 8, 8), store(9, tokens(1, 1), 9), store(0, tokens(1, 20), long...))
	r.apply(store(0, tokens(5, 2), 50)) // two blocks of tokens, one hash: masked
	r.want(kv.TierGPU, chain(base, tokens(0, 1)))
	if s := r.tr.Stats(); s.Malformed != 4 || s.Masked != 1 || s.Orphans != 0 {
		t.Fatalf("stats = %+v", s)
	}
}

func TestTranslate_GroupsAndKinds(t *testing.T) {
	grouped := func(group int, kind string, h kvwire.EngineHash) kvwire.Event {
		e := store(0, tokens(int(h), 1), h)
		e.Group, e.SpecKind = group, kind
		return e
	}
	removed := func(group int, h kvwire.EngineHash) kvwire.Event {
		e := remove(kv.TierGPU, h)
		e.Group = group
		return e
	}
	r := newRun(t, TranslatorConfig{})
	r.apply(grouped(0, "mamba", 1), grouped(1, "full_attention", 2), grouped(2, "full_attention", 2), grouped(0, "sliding_window", 2))
	r.want(kv.TierGPU, chain(base, tokens(2, 1)))
	r.apply(removed(0, 2), removed(2, 2))
	r.want(kv.TierGPU, chain(base, tokens(2, 1)))
	r.apply(removed(1, 2))
	r.want(kv.TierGPU)

	r = newRun(t, TranslatorConfig{})
	remote := grouped(0, "", 4)
	remote.Remote = true
	r.apply(grouped(1, "", 1), grouped(0, "", 2), grouped(0, "mla_attention", 3), remote)
	r.want(kv.TierGPU, chain(base, tokens(2, 1)), chain(base, tokens(3, 1)))
}

func TestTranslate_ConflictingHash(t *testing.T) {
	r := newRun(t, TranslatorConfig{})
	r.apply(store(0, tokens(0, 1), 1))
	r.apply(store(0, tokens(5, 1), 1))
	r.want(kv.TierGPU, chain(base, tokens(5, 1)))
	if s := r.tr.Stats(); s.Conflicts != 1 {
		t.Fatalf("conflicts = %d", s.Conflicts)
	}
}

func TestTranslate_Multimodal(t *testing.T) {
	e := store(0, tokens(0, 2), 1, 2)
	e.MM = [][]uint64{nil, {9, 7}}
	r := newRun(t, TranslatorConfig{})
	r.apply(e)
	h0 := kv.First(kv.HashBlock(tokens(0, 1), nil, kv.BaseSeed))
	h1 := h0.Next(kv.HashBlock(tokens(1, 1), []uint64{7, 9}, kv.BaseSeed))
	r.want(kv.TierGPU, []kv.SequenceHash{h0, h1})
	if e.MM[1][0] != 9 {
		t.Fatal("the batch was changed")
	}
}

func TestTranslate_LostCreditIsProvedByChildren(t *testing.T) {
	r := newRun(t, TranslatorConfig{})
	toks := tokens(0, 5)
	c := chain(base, toks)
	other := chain(base, tokens(50, 1))
	r.apply(store(0, toks[:3*bs], 1, 2, 3), store(0, tokens(50, 1), 50))
	r.v.apply(t, r.tr.Lost())
	r.want(kv.TierGPU)
	r.apply(store(2, toks[2*bs:3*bs], 3)) // 2 is there, so 1 is
	r.want(kv.TierGPU, c[:3])
	r.apply(remove(kv.TierGPU, 50), store(3, toks[3*bs:], 4, 5))
	r.want(kv.TierGPU, c)
	if r.tr.Partial() != "" {
		t.Fatalf("no orphan expected: %s", r.tr.Partial())
	}
	r.v.apply(t, r.tr.Lost())
	r.apply(store(0, tokens(50, 1), 50))
	r.want(kv.TierGPU, other)
	r.v.apply(t, r.tr.Lost()) // 1..5 stay unproved for a second time: forgotten
	if s := r.tr.Stats(); s.Blocks != 1 {
		t.Fatalf("blocks = %d, want the one of the last life", s.Blocks)
	}

	// Another process with another block size has other blocks.
	r.v.apply(t, r.tr.Restarted())
	r.v.apply(t, r.tr.Restarted())
	e := store(0, make([]uint32, 32), 60)
	e.BlockSize = 32
	r.tr.Apply(&kvwire.Batch{Events: []kvwire.Event{e}})
	if s := r.tr.Stats(); s.Blocks != 1 || r.tr.BlockSize() != 32 {
		t.Fatalf("after a restart with 32: %+v", s)
	}
}

// copies is a naive engine: how many copies it holds of each prefix, as a map of paths.
type copies struct {
	rng   *rand.Rand
	count map[string]int
	toks  map[string][]uint32
	hash  map[string]kvwire.EngineHash
}

func (m *copies) step() kvwire.Event {
	paths := make([]string, 0, len(m.count))
	for p := range m.count {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	if len(paths) > 0 && m.rng.IntN(3) == 0 {
		p := paths[m.rng.IntN(len(paths))]
		if m.count[p]--; m.count[p] == 0 {
			delete(m.count, p)
		}
		return remove(kv.TierGPU, m.hash[p])
	}
	path, parent, toks := "", kvwire.EngineHash(0), []uint32(nil)
	if len(paths) > 0 && m.rng.IntN(5) > 0 {
		path = paths[m.rng.IntN(len(paths))]
		parent, toks = m.hash[path], m.toks[path]
	}
	var hashes []kvwire.EngineHash
	from := len(toks)
	toks = slices.Clone(toks)
	for range 1 + m.rng.IntN(3) {
		b := m.rng.IntN(4)
		path += fmt.Sprint("/", b)
		for i := range bs {
			toks = append(toks, uint32(b*bs+i))
		}
		if m.hash[path] == 0 {
			m.hash[path] = kvwire.EngineHash(len(m.hash) + 1)
			m.toks[path] = slices.Clone(toks)
		}
		m.count[path]++
		hashes = append(hashes, m.hash[path])
	}
	return store(parent, toks[from:], hashes...)
}

func TestTranslate_EqualsNaiveModel(t *testing.T) {
	for seed := range uint64(20) {
		m := &copies{
			rng: rand.New(rand.NewPCG(seed, 1)), count: map[string]int{},
			toks: map[string][]uint32{}, hash: map[string]kvwire.EngineHash{},
		}
		r := newRun(t, TranslatorConfig{})
		for step := range 150 {
			r.apply(m.step())
			want := make(map[kv.SequenceHash]bool)
			for p := range m.count {
				c := chain(base, m.toks[p])
				want[c[len(c)-1]] = true
			}
			got := r.v[kv.TierGPU]
			for h := range want {
				if _, ok := got[h]; !ok || len(got) != len(want) {
					t.Fatalf("seed %d step %d: %d blocks held, want %d", seed, step, len(got), len(want))
				}
			}
		}
	}
}

func FuzzTranslator(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, script []byte) {
		r := newRun(t, TranslatorConfig{MaxOrphans: 20})
		for len(script) >= 4 {
			op, a, b, c := script[0], script[1], script[2], script[3]
			script = script[4:]
			switch op % 6 {
			case 0, 1:
				e := store(kvwire.EngineHash(a%16), tokens(int(b%16), 1), kvwire.EngineHash(b%16+1))
				e.Tier = kv.Tier(c % kv.Tiers)
				r.apply(e)
			case 2:
				r.apply(store(kvwire.EngineHash(a%16), tokens(int(b%16), 2), kvwire.EngineHash(b%16+1), kvwire.EngineHash(c%16+1)))
			case 3:
				r.apply(remove(kv.Tier(c%kv.Tiers), kvwire.EngineHash(a%16+1), kvwire.EngineHash(b%16+1)))
			case 4:
				r.apply(kvwire.Event{Kind: kv.EventStored, Tier: kv.TierCPU, Hashes: []kvwire.EngineHash{kvwire.EngineHash(a%16 + 1)}})
			case 5:
				if a%8 == 0 {
					r.v.apply(t, r.tr.Lost())
				}
			}
		}
	})
}

// TestTranslator_OrphansOfBeforeALossEarnNothing: an orphan's removal may be among the
// events that were lost, so the return of its parent proves nothing about it.
func TestTranslator_OrphansOfBeforeALossEarnNothing(t *testing.T) {
	toks := tokens(0, 3)
	c := chain(base, toks)
	r := newRun(t, TranslatorConfig{})
	r.apply(store(0, tokens(90, 1), 90)) // teaches the block size
	r.apply(store(1, toks[bs:2*bs], 2))
	r.v.apply(t, r.tr.Lost())
	r.apply(store(0, toks[:bs], 1))
	r.want(kv.TierGPU, c[:1])
	r.apply(store(1, toks[bs:], 2, 3)) // told again: now it is there
	r.want(kv.TierGPU, c)
}

// TestTranslator_ProvedAndStoredIsOneCopy: after a loss a child that comes before its
// parent proves the parent, whose own event then tells of the same copy.
func TestTranslator_ProvedAndStoredIsOneCopy(t *testing.T) {
	toks := tokens(0, 3)
	c := chain(base, toks)
	r := newRun(t, TranslatorConfig{})
	r.apply(store(0, toks[:2*bs], 1, 2))
	r.v.apply(t, r.tr.Lost()) // the removal of 2 is among what was lost
	r.apply(store(2, toks[2*bs:], 3))
	r.want(kv.TierGPU, c)
	r.apply(store(1, toks[bs:2*bs], 2))
	r.want(kv.TierGPU, c)
	r.apply(remove(kv.TierGPU, 3), remove(kv.TierGPU, 2))
	r.want(kv.TierGPU, c[:1])
}
