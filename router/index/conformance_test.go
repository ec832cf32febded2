package index

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// backend is an index under test: prefixes in, overlaps out.
type backend struct {
	name    string
	longest int           // blocks of the longest chain on which it is exact to the block
	tick    time.Duration // how far a random history moves the clock at a time

	store   func(w kv.Worker, prefix []kv.SequenceHash)
	overlap func(chain []kv.SequenceHash, dst []kv.Overlap)
	drop    func(w kv.Worker)

	// change makes one random change; check compares what overlap does not show.
	change func(h *history, w kv.Worker)
	check  func(m model) error
}

func backendOf(name string, clock *frozen, seed uint64) backend {
	set := NewSet(Config{Now: clock.now, PredictedTTL: time.Hour})
	switch name {
	case "exact":
		x := newExact(&set.budget, clock.now, seed*0x9e3779b97f4a7c15)
		return backend{
			name:    name,
			longest: 2600,
			tick:    time.Minute,
			store:   func(w kv.Worker, c []kv.SequenceHash) { x.Apply(w, stored(kv.TierGPU, c, 0, len(c))) },
			overlap: x.Overlap,
			drop:    x.Drop,
			change:  func(h *history, w kv.Worker) { changeExact(h, x, w) },
			check:   func(m model) error { return checkExact(x, m) },
		}
	case "approximate":
		a := set.approximate
		every := make([]int, 64) // a boundary at every block makes it exact to the block
		for i := range every {
			every[i] = i + 1
		}
		return backend{
			name:    name,
			longest: 64,
			store:   func(w kv.Worker, c []kv.SequenceHash) { a.Learn(w, c, every) },
			overlap: func(c []kv.SequenceHash, dst []kv.Overlap) { a.Overlap(c, every, dst) },
			drop:    a.Drop,
			change: func(h *history, w kv.Worker) {
				c := h.prefix()
				a.Learn(w, c, every)
				h.model.apply(w, stored(kv.TierGPU, c, 0, len(c)))
			},
			check: func(m model) error { return checkApproximate(a) },
		}
	case "predicted":
		p := set.predicted
		return backend{
			name:    name,
			longest: 2600,
			store:   func(w kv.Worker, c []kv.SequenceHash) { p.Add(w, c) },
			overlap: func(c []kv.SequenceHash, dst []kv.Overlap) { clear(dst); p.Overlap(c, dst) },
			drop:    p.Drop,
			change:  func(h *history, w kv.Worker) { changePredicted(h, p, w) },
			check:   func(m model) error { return checkPredicted(p) },
		}
	}
	panic("no backend " + name)
}

func backends() (all []backend) {
	for _, name := range []string{"exact", "approximate", "predicted"} {
		all = append(all, backendOf(name, newFrozen(), 1))
	}
	return all
}

func changeExact(h *history, x *Exact, w kv.Worker) {
	switch h.rng.IntN(20) {
	case 0: // a resync
		var state []kv.Event
		next := newModel(1)
		for range h.rng.IntN(6) {
			c := h.chain()
			from := h.rng.IntN(len(c))
			e := stored(h.tier(), c, from, from+1+h.rng.IntN(len(c)-from))
			state = append(state, e)
			next.apply(0, e)
		}
		x.Replace(w, state)
		h.model[w] = next[0]
	case 1, 2:
		x.Touch(w, h.prefix())
	default:
		e := h.event()
		x.Apply(w, e)
		h.model.apply(w, e)
	}
}

func checkExact(x *Exact, m model) error {
	if err := x.check(); err != nil {
		return err
	}
	for w := range m {
		if got, want := x.Held(kv.Worker(w)), m.held(kv.Worker(w)); got != want {
			return fmt.Errorf("worker %d holds %v, want %v", w, got, want)
		}
		dumped := newModel(1)
		x.Dump(kv.Worker(w), func(e kv.Event) bool { dumped.apply(0, e); return true })
		for t := range m[w] {
			if !maps.Equal(dumped[0][t], m[w][t]) {
				return fmt.Errorf("worker %d: the dump in %v is not what it holds", w, kv.Tier(t))
			}
		}
	}
	return nil
}

func checkApproximate(a *Approximate) error {
	n, bytes := 0, int64(0)
	seen := map[*backing]int32{}
	for e := a.old; e != nil; e = e.younger {
		n++
		bytes += entryBytes + int64(cap(e.more))*holderBytes
		if seen[e.backing]++; seen[e.backing] == 1 {
			bytes += int64(e.backing.bytes)
		}
		if v, ok := a.tree.Get(e.key); !ok || v.(*entry) != e {
			return fmt.Errorf("an entry of %d blocks is not in the tree", e.blocks)
		}
		if e.younger == nil && a.young != e {
			return fmt.Errorf("the queue's young end is not its last entry")
		}
	}
	if n != a.entries || n != a.tree.Len() || bytes != a.bytes {
		return fmt.Errorf("%d entries and %d bytes in the queue, counts %d and %d, tree has %d", n, bytes, a.entries, a.bytes, a.tree.Len())
	}
	for b, keys := range seen {
		if b.keys != keys {
			return fmt.Errorf("a backing counts %d keys of %d", b.keys, keys)
		}
	}
	return nil
}

func changePredicted(h *history, p *Predicted, w kv.Worker) {
	count := func(w kv.Worker, c []kv.SequenceHash, n int) {
		for _, hash := range c {
			h.model[w][kv.TierGPU][hash] += n
		}
	}
	switch k := h.rng.IntN(10); {
	case k < 5 || len(h.live) == 0:
		c := h.prefix()
		h.live = append(h.live, entryOf{w, c, p.Add(w, c)})
		count(w, c, 1)
	case k < 6:
		p.Extend(h.live[h.rng.IntN(len(h.live))].p)
	default:
		i := h.rng.IntN(len(h.live))
		e := h.live[i]
		h.live = slices.Delete(h.live, i, i+1)
		p.Retract(e.p)
		p.Retract(e.p)
		p.Extend(e.p)
		count(e.w, e.chain, -1)
	}
}

func checkPredicted(p *Predicted) error {
	blocks, live := 0, 0
	for i := range p.slots {
		if c := p.slots[i].chain; c != nil {
			blocks += len(c)
			live++
		}
	}
	if blocks != p.blocks || live != p.live {
		return fmt.Errorf("counts %d entries of %d blocks, has %d of %d", p.live, p.blocks, live, blocks)
	}
	if live == 0 && len(p.edges) > 0 {
		return fmt.Errorf("%d edges without an entry", len(p.edges))
	}
	for first, e := range p.edges {
		if e.hashes[0] != first || len(e.holders) == 0 {
			return fmt.Errorf("edge of %d hashes with %d holders is in the wrong place", len(e.hashes), len(e.holders))
		}
	}
	return nil
}

// TestConformance states what every backend promises.
func TestConformance(t *testing.T) {
	for _, b := range backends() {
		fresh := func() backend { return backendOf(b.name, newFrozen(), 1) }
		f := func(name string, test func(t *testing.T, b backend)) {
			t.Run(b.name+"/"+name, func(t *testing.T) { test(t, fresh()) })
		}
		want := func(t *testing.T, b backend, chain []kv.SequenceHash, gpu ...uint32) {
			t.Helper()
			dst := make([]kv.Overlap, len(gpu))
			b.overlap(chain, dst)
			for w := range gpu {
				if dst[w] != (kv.Overlap{GPU: gpu[w]}) {
					t.Errorf("worker %d: overlap %+v, want %d on the GPU", w, dst[w], gpu[w])
				}
			}
		}
		a := chainOf(40, 1)
		f("empty", func(t *testing.T, b backend) {
			want(t, b, a, 0, 0)
			want(t, b, nil, 0, 0)
			b.drop(0)
			b.drop(1 << 10)
			b.store(0, nil)
			want(t, b, a, 0)
		})
		f("longest prefix", func(t *testing.T, b backend) {
			b.store(0, a[:10])
			b.store(2, a)
			want(t, b, a, 10, 0, 40)
			want(t, b, a[:7], 7, 0, 7)
			want(t, b, chainOf(60, 1), 10, 0, 40)
			want(t, b, chainOf(40, 2), 0, 0, 0)
		})
		f("branches", func(t *testing.T, b backend) {
			left := chainOf(40, 1, 2, 3, 4, 5)
			right := chainOf(40, 1, 2, 3, 9, 9)
			b.store(0, left)
			b.store(1, right)
			b.store(1, left[:4])
			want(t, b, left, 40, 4)
			want(t, b, right, 3, 40)
			want(t, b, chainOf(9, 1, 2, 7), 2, 2)
		})
		f("a child before its parent is extended", func(t *testing.T, b backend) {
			b.store(0, a[:30])
			b.store(1, a[:20])
			b.store(1, a[:40])
			want(t, b, a, 30, 40)
		})
		f("repeats change nothing", func(t *testing.T, b backend) {
			for range 3 {
				b.store(1, a[:12])
			}
			want(t, b, a, 0, 12)
		})
		f("drop", func(t *testing.T, b backend) {
			b.store(0, a)
			b.store(1, a[:25])
			b.drop(0)
			want(t, b, a, 0, 25)
			b.drop(0)
			b.store(0, a[:3]) // the number is used again
			want(t, b, a, 3, 25)
			b.drop(1)
			want(t, b, a, 3, 0)
		})
		f("workers beyond dst are left out", func(t *testing.T, b backend) {
			b.store(0, a)
			b.store(900, a)
			want(t, b, a, 40)
			want(t, b, a)
		})
		f("queries allocate nothing", func(t *testing.T, b backend) {
			left := chainOf(b.longest, 1, 2, 3)
			for w := range kv.Worker(8) {
				b.store(w, left[:b.longest-int(w)])
				b.store(w, chainOf(b.longest, 1, 2, uint64(w)+50))
			}
			dst := make([]kv.Overlap, 8)
			if n := testing.AllocsPerRun(100, func() { b.overlap(left, dst) }); n != 0 {
				t.Errorf("%v allocations per query, want 0", n)
			}
			if int(dst[0].GPU) != b.longest {
				t.Errorf("overlap %d, want %d", dst[0].GPU, b.longest)
			}
		})
	}
}
