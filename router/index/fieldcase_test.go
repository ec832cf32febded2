package index

import (
	"math/rand/v2"
	"testing"

	"github.com/warmroute/warmroute/router/kv"
)

// The tests of this file carry the numbers of the field cases: faults that other
// routers had in production.

func TestFC53_ResidencyIsKeptPerTier(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	c := chainOf(20, 1)
	f := func(step string, held [kv.Tiers]int, want kv.Overlap) {
		t.Helper()
		if got := x.Held(0); got != held {
			t.Errorf("%s: holds %v, want %v", step, got, held)
		}
		if got := overlapOf(x, 0, c); got != want {
			t.Errorf("%s: overlap %+v, want %+v", step, got, want)
		}
	}
	x.Apply(0, stored(kv.TierGPU, c, 0, 20))
	x.Apply(0, stored(kv.TierCPU, c, 0, 20))
	f("both", [3]int{20, 20, 0}, kv.Overlap{GPU: 20})
	x.Apply(0, removed(kv.TierGPU, c[12:]...))
	f("tail offloaded", [3]int{12, 20, 0}, kv.Overlap{GPU: 12, CPU: 8})
	x.Apply(0, removed(kv.TierGPU, c[:12]...))
	f("GPU copy gone", [3]int{0, 20, 0}, kv.Overlap{CPU: 20})
	x.Apply(0, stored(kv.TierDisk, c, 5, 20))
	x.Apply(0, removed(kv.TierCPU, c[5:]...))
	f("tail on disk", [3]int{0, 5, 15}, kv.Overlap{CPU: 5, Disk: 15})
	x.Apply(0, removed(kv.TierCPU, c...))
	f("head gone", [3]int{0, 0, 15}, kv.Overlap{})
	x.Apply(0, kv.Event{Kind: kv.EventCleared})
	f("cleared", [3]int{}, kv.Overlap{})
	mustCheck(t, x)
}

func TestFC58_WorkersMeetInOurHashes(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	c := chainOf(90, 1)
	x.Apply(0, stored(kv.TierGPU, c, 0, 90))
	for from := 0; from < 90; from += 7 {
		x.Apply(1, stored(kv.TierGPU, c, from, min(from+7, 90)))
	}
	dst := make([]kv.Overlap, 2)
	x.Overlap(c, dst)
	if dst[0].GPU != 90 || dst[1].GPU != 90 {
		t.Errorf("overlap %v, want 90 on both", dst)
	}
	if x.blocks != 90 || x.memberships != 180 {
		t.Errorf("%d blocks, %d memberships, want 90 and 180", x.blocks, x.memberships)
	}
}

func TestFC60_CapIsEnforced(t *testing.T) {
	const maxBytes = 8 << 20
	base := liveHeap()
	set := NewSet(Config{MaxBytes: maxBytes})
	x := set.Exact(16)
	rng := rand.New(rand.NewPCG(1, 1))
	var kept [][]kv.SequenceHash
	offered, refused := 0, 0
	for range soak(400, 50) {
		c := forest(rng, 1, 1)[0]
		c = append(c, chainOf(2047, rng.Uint64())...)
		n := x.Apply(0, stored(kv.TierGPU, c, 0, 2048))
		if n == 0 {
			kept = append(kept, c)
		}
		offered, refused = offered+2048, refused+n
	}
	st := set.Stats()
	if refused == 0 || st.Refused != int64(refused) || st.Memberships != offered-refused {
		t.Fatalf("%d of %d refused, stats %+v", refused, offered, st)
	}
	if st.Bytes > maxBytes || st.Bytes < maxBytes/2 {
		t.Errorf("%d bytes in use under a cap of %d", st.Bytes, maxBytes)
	}
	if heap := liveHeap() - base - int64(len(kept)*2048*8); heap > maxBytes*5/4 {
		t.Errorf("%d bytes of heap under a cap of %d", heap, maxBytes)
	}
	for _, c := range kept {
		if got := overlapOf(x, 0, c).GPU; got != 2048 {
			t.Fatalf("a prompt that was taken has %d blocks, want 2048", got)
		}
	}
	x.Apply(0, removed(kv.TierGPU, kept[0]...))
	if n := x.Apply(0, stored(kv.TierGPU, kept[0], 0, 1024)); n != 0 {
		t.Errorf("%d blocks refused after as many left", n)
	}
	mustCheck(t, x)
}

func liveHeap() int64 {
	b, _ := heap()
	return int64(b)
}

func TestFC46_WorkersComeAndGo(t *testing.T) {
	set := NewSet(Config{})
	var numbers kv.Workers
	rng := rand.New(rand.NewPCG(1, 1))
	cycle := func() {
		w := numbers.Hold(kv.WorkerRank{ID: "w"})
		defer numbers.Release(w)
		for range 10 {
			c := chainOf(1000, rng.Uint64())
			set.Exact(16).Apply(w, stored(kv.TierGPU, c, 0, 1000))
			set.Approximate().Learn(w, c, []int{10, 500, 1000})
			set.Predicted().Add(w, c)
		}
		set.Drop(w)
	}
	for range 10 {
		cycle()
	}
	base := liveHeap()
	bytes := set.Stats().Bytes
	for range soak(60, 20) {
		cycle()
	}
	if heap := liveHeap(); float64(heap) > 1.05*float64(base) {
		t.Errorf("heap grew from %d to %d bytes", base, heap)
	}
	st := set.Stats()
	if st.Memberships != 0 || st.Blocks != 0 || st.ApproximateEntries != 0 || st.ApproximateBytes != 0 || st.PredictedEntries != 0 {
		t.Errorf("left behind: %+v", st)
	}
	if st.Bytes > bytes+bytes/20 {
		t.Errorf("index grew from %d to %d bytes", bytes, st.Bytes)
	}
}
