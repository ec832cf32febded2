package kvwire

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/warmroute/warmroute/router/kv"
)

// TestAppend_GoldenPayloads: what we encode is what the engine would have sent.
func TestAppend_GoldenPayloads(t *testing.T) {
	seen := map[Layout]bool{}
	for _, g := range goldens() {
		seen[g.layout(t)] = true
		if g.lossy {
			continue
		}
		if got, want := Append(nil, g.layout(t), &g.want, g.opts), g.payload(t); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", g.name, got, want)
		}
	}
	for _, l := range Layouts() {
		if !seen[l] {
			t.Errorf("layout %s has no golden payload", l)
		}
	}
}

// randomBatch makes what layout l can say.
func randomBatch(r *rand.Rand, l Layout) Batch {
	s := shapes[l]
	b := Batch{Time: float64(r.IntN(1 << 30)), Rank: -1}
	if s.rank && r.IntN(3) > 0 {
		b.Rank = r.IntN(300)
	}
	media := []string{"", "GPU", "CPU", "STORAGE"}
	for range r.IntN(5) {
		e := Event{Kind: kv.EventKind(r.IntN(3))}
		if s.maps || s.removed > 2 {
			e.Medium = media[r.IntN(len(media))]
		}
		if (s.maps || s.removed > 3) && !s.sglang {
			e.Group = r.IntN(3)
		}
		e.Remote = s.locality && r.IntN(2) == 0
		if e.Kind == kv.EventCleared {
			b.Events = append(b.Events, Event{Kind: kv.EventCleared})
			continue
		}
		e.Tier, _ = tierOf(e.Medium)
		n := r.IntN(4)
		for range n {
			e.Hashes = append(e.Hashes, EngineHash(r.Uint64()>>r.IntN(64)))
		}
		if e.Kind == kv.EventStored {
			e.BlockSize = 1 << r.IntN(8)
			e.HasParent = r.IntN(2) == 0
			if e.HasParent {
				e.Parent = EngineHash(r.Uint64())
			}
			for range n * e.BlockSize {
				e.Tokens = append(e.Tokens, uint32(r.Uint64()>>r.IntN(64)))
			}
			if e.Bigram = s.sglang && n > 0 && r.IntN(3) == 0; e.Bigram {
				e.Next = r.Uint32()
			}
			if e.HasLoRAID = r.IntN(4) == 0; e.HasLoRAID {
				e.LoRAID = r.Int64N(100) - 1
			}
			if !s.sglang && (s.maps || s.stored >= 8) && r.IntN(3) == 0 {
				e.LoRAName = "adapter"
			}
			keys := !s.sglang && (s.maps || s.stored >= 9)
			if (s.salt || keys && n > 0 && !e.HasParent) && r.IntN(3) == 0 {
				e.Salt = "tenant"
			}
			if keys && n > 0 && r.IntN(3) == 0 {
				e.MM = make([][]uint64, n)
				e.MM[r.IntN(n)] = []uint64{uint64(r.IntN(9)), 9 + r.Uint64()>>1}
			}
			if !s.sglang && (s.maps || s.stored >= 12) && r.IntN(2) == 0 {
				e.SpecKind, e.SlidingWindow = "sliding_window", 1+r.IntN(5000)
			}
		}
		b.Events = append(b.Events, e)
	}
	return b
}

// TestAppend_EveryLayoutIsReadBack encodes random batches in every layout and option.
func TestAppend_EveryLayoutIsReadBack(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 1))
	for _, l := range Layouts() {
		for i := range 60 {
			want := randomBatch(r, l)
			opts := EncodeOptions{HashBytes: []int{0, 0, 16, 32}[r.IntN(4)], Signed: r.IntN(2) == 0, MapEnvelope: shapes[l].rank && r.IntN(5) == 0}
			if diff := cmp.Diff(&want, decode(t, Append(nil, l, &want, opts)), equalBatch); diff != "" {
				t.Fatalf("seed %d, %s, batch %d, %+v: -sent +read\n%s", seed, l, i, opts, diff)
			}
		}
	}
}

func TestLayouts_HaveNames(t *testing.T) {
	for _, l := range Layouts() {
		if got, err := ParseLayout(l.String()); err != nil || got != l {
			t.Errorf("%v: parsed as %v, %v", l, got, err)
		}
	}
	if _, err := ParseLayout("vllm-9"); err == nil || Layout(99).String() != "layout(99)" {
		t.Errorf("unknown layout: %v", err)
	}
}
