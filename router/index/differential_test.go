package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// history drives one backend and the model through the same random changes.
type history struct {
	rng    *rand.Rand
	chains [][]kv.SequenceHash
	model  model
	b      backend
	clock  *frozen

	// live are the entries of Predicted that may still be retracted.
	live []entryOf
}

type entryOf struct {
	w     kv.Worker
	chain []kv.SequenceHash
	p     Prediction
}

func (h *history) worker() kv.Worker         { return kv.Worker(h.rng.IntN(len(h.model))) }
func (h *history) chain() []kv.SequenceHash  { return h.chains[h.rng.IntN(len(h.chains))] }
func (h *history) prefix() []kv.SequenceHash { c := h.chain(); return c[:1+h.rng.IntN(len(c))] }

func (h *history) tier() kv.Tier {
	if h.rng.IntN(4) > 0 {
		return kv.TierGPU
	}
	return kv.Tier(h.rng.IntN(kv.Tiers))
}

// event returns a random event: stores of a range with, without or with an unknown
// parent, and removals of tails, heads, middles, single blocks, repeats and strangers.
func (h *history) event() kv.Event {
	c, t := h.chain(), h.tier()
	from := h.rng.IntN(len(c))
	if h.rng.IntN(2) == 0 {
		from = 0
	}
	to := from + 1 + h.rng.IntN(len(c)-from)
	switch k := h.rng.IntN(100); {
	case k < 55:
		e := stored(t, c, from, to)
		switch h.rng.IntN(20) {
		case 0:
			e.HasParent, e.Parent = false, 0
		case 1:
			e.HasParent, e.Parent = true, kv.SequenceHash(h.rng.Uint64())
		case 2: // out of order: the blocks are no neighbours
			e.Hashes = slices.Clone(e.Hashes)
			for i := 0; i < len(e.Hashes); i += 2 {
				e.Hashes[i] = c[h.rng.IntN(len(c))]
			}
			e.Hashes = e.Hashes[:1]
		}
		return e
	case k < 75: // tail first, as engines evict
		tail := slices.Clone(c[from:])
		slices.Reverse(tail)
		return removed(t, tail...)
	case k < 80:
		return removed(t, c[from:to]...)
	case k < 99:
		var some []kv.SequenceHash
		for range 1 + h.rng.IntN(8) {
			some = append(some, c[h.rng.IntN(len(c))])
		}
		some = append(some, some[0], kv.SequenceHash(h.rng.Uint64()))
		return removed(t, some...)
	}
	return kv.Event{Kind: kv.EventCleared}
}

func (h *history) step() {
	w := h.worker()
	if h.rng.IntN(60) == 0 {
		h.b.drop(w)
		h.model.drop(w)
		h.live = slices.DeleteFunc(h.live, func(e entryOf) bool { return e.w == w })
		return
	}
	if h.rng.IntN(8) == 0 {
		h.clock.advance(time.Duration(h.rng.IntN(30)) * h.b.tick)
	}
	h.b.change(h, w)
}

// query compares the overlap of one prompt on all workers, with and without room in
// dst for all of them.
func (h *history) query() error {
	chain := slices.Clone(h.prefix())
	for range h.rng.IntN(3) {
		chain = append(chain, kv.SequenceHash(h.rng.Uint64()))
	}
	dst := make([]kv.Overlap, h.rng.IntN(len(h.model)+3))
	for i := range dst {
		dst[i] = kv.Overlap{GPU: 77, CPU: 77, Disk: 77}
	}
	h.b.overlap(chain, dst)
	for w, got := range dst {
		var want kv.Overlap
		if w < len(h.model) {
			want = h.model.overlap(kv.Worker(w), chain)
		}
		if got != want {
			return fmt.Errorf("worker %d, prompt of %d blocks: overlap %+v, want %+v", w, len(chain), got, want)
		}
	}
	return nil
}

// TestDifferential_AgreesWithNaiveModel runs every backend beside the naive model.
func TestDifferential_AgreesWithNaiveModel(t *testing.T) {
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			first := firstSeed(t)
			for seed := first; seed < first+uint64(soak(12, 200)); seed++ {
				if err := differ(b.name, seed); err != nil {
					t.Fatalf("seed %d (WARMROUTE_SEED=%d repeats it): %v", seed, seed, err)
				}
			}
		})
	}
}

func differ(name string, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	h := &history{rng: rng, model: newModel(2 + rng.IntN(6)), clock: newFrozen()}
	h.b = backendOf(name, h.clock, seed)
	maxLen := []int{12, 60, h.b.longest}[seed%3]
	h.chains = forest(rng, 4+rng.IntN(12), min(maxLen, h.b.longest))
	for op := range 300 {
		h.step()
		for range 2 {
			if err := h.query(); err != nil {
				return fmt.Errorf("after %d changes: %w", op+1, err)
			}
		}
		if h.b.check != nil && op%10 == 0 {
			if err := h.b.check(h.model); err != nil {
				return fmt.Errorf("after %d changes: %w", op+1, err)
			}
		}
	}
	return nil
}

// TestDifferential_AtTheBytesCap holds the exact index to its promise where memory is
// refused: what is counted as refused is absent, everything else is exact.
func TestDifferential_AtTheBytesCap(t *testing.T) {
	first := firstSeed(t)
	refusedAll := 0
	for seed := first; seed < first+uint64(soak(4, 200)); seed++ {
		rng := rand.New(rand.NewPCG(seed, 3))
		b := &budget{max: 300_000 + rng.Int64N(1<<20)}
		clock := newFrozen()
		x := newExact(b, clock.now, seed)
		h := &history{rng: rng, model: newModel(6), clock: clock, chains: forest(rng, 60, 1500)}
		refusedNow := 0
		for op := range 300 {
			w, e := h.worker(), h.event()
			before := x.Held(w)[e.Tier]
			refused := x.Apply(w, e)
			refusedNow += refused
			old := len(h.model[w][e.Tier])
			h.model.apply(w, e)
			fresh := len(h.model[w][e.Tier]) - old
			if e.Kind == kv.EventStored {
				if got := x.Held(w)[e.Tier] - before; got != fresh-refused {
					t.Fatalf("seed %d change %d: %d blocks new, %d refused, %d taken", seed, op, fresh, refused, got)
				}
			}
			// What is held is in the model; the model then forgets what was refused.
			next := newModel(1)
			x.Dump(w, func(e kv.Event) bool { next.apply(0, e); return true })
			for tier := range next[0] {
				for hash := range next[0][tier] {
					if h.model[w][tier][hash] == 0 {
						t.Fatalf("seed %d change %d: worker %d holds a block in %v that it should not", seed, op, w, kv.Tier(tier))
					}
				}
			}
			h.model[w] = next[0]
			if op%20 == 0 {
				if err := x.check(); err != nil {
					t.Fatalf("seed %d change %d: %v", seed, op, err)
				}
			}
			h.b = backend{overlap: x.Overlap}
			if err := h.query(); err != nil {
				t.Fatalf("seed %d change %d: %v", seed, op, err)
			}
		}
		if int64(refusedNow) != b.refused.Load() {
			t.Fatalf("seed %d: %d blocks refused, counter says %d", seed, refusedNow, b.refused.Load())
		}
		refusedAll += refusedNow
	}
	if refusedAll == 0 {
		t.Fatal("nothing was refused: the caps are too large for the histories")
	}
}
