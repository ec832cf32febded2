package index

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

func newTestApproximate(maxBytes int64) (*Approximate, *frozen) {
	clock := newFrozen()
	return newApproximate(maxBytes, 15*time.Minute, clock.now), clock
}

func approximateOverlap(a *Approximate, w kv.Worker, chain []kv.SequenceHash, boundaries []int) int {
	dst := make([]kv.Overlap, w+1)
	a.Overlap(chain, boundaries, dst)
	return int(dst[w].GPU)
}

func TestApproximate_MatchesEndAtCuts(t *testing.T) {
	a, _ := newTestApproximate(1 << 20)
	boundaries := []int{10, 100, 150}
	c := chainOf(200, 1, 2)
	a.Learn(0, c, boundaries)
	f := func(shared, want int) {
		t.Helper()
		q := append(slices.Clone(c[:shared]), chainOf(100, 77)...)
		var b []int
		for _, x := range boundaries {
			if x <= shared {
				b = append(b, x)
			}
		}
		if got := approximateOverlap(a, 0, q, append(b, shared+50)); got != want {
			t.Errorf("a prompt that shares %d blocks matches %d, want %d", shared, got, want)
		}
	}
	f(9, 0)
	f(10, 10)
	f(63, 10)
	f(64, 64)
	f(99, 64)
	f(120, 100)
	f(130, 128)
	f(200, 192)
}

// TestApproximate_CutsDependOnNothingBehind: the cuts of a prompt begin with those of
// every prompt it extends, are few, and are close.
func TestApproximate_CutsDependOnNothingBehind(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	cutsOf := func(n int, boundaries []int) (cuts []int) {
		c := cutter{n: min(n, maxCutBlocks), boundaries: boundaries}
		for b := c.next(); b != 0; b = c.next() {
			cuts = append(cuts, b)
		}
		return cuts
	}
	for range 200 {
		n := 1 + rng.IntN(12_000)
		var boundaries []int
		for at, step := 0, 2+rng.IntN(60); ; {
			if at += rng.IntN(step); at > n {
				break
			}
			boundaries = append(boundaries, at) // repeats and 0 included
		}
		whole := cutsOf(n, boundaries)
		if len(whole) > maxCuts || !slices.IsSorted(whole) || len(slices.Compact(slices.Clone(whole))) != len(whole) {
			t.Fatalf("%d blocks, %d boundaries: %d cuts, or not ascending", n, len(boundaries), len(whole))
		}
		at := rng.IntN(n) + 1
		i, _ := slices.BinarySearch(boundaries, at+1)
		part := cutsOf(at, boundaries[:i])
		if !slices.Equal(part, whole[:len(part)]) || len(part) < len(whole) && whole[len(part)] <= at {
			t.Fatalf("%d of %d blocks: cuts %v do not begin %v", at, n, part, whole)
		}
		for _, b := range boundaries {
			i, _ := slices.BinarySearch(whole, b+1)
			if short := b - append([]int{0}, whole...)[i]; b <= maxCutBlocks && short > b/cutRatio {
				t.Fatalf("boundary %d of %d: the cut before it is %d blocks short", b, n, short)
			}
		}
	}
}

func TestApproximate_ExpiresWhatIsNotLearnedAgain(t *testing.T) {
	a, clock := newTestApproximate(1 << 20)
	c, b := chainOf(64, 1), []int{10, 20, 40}
	a.Learn(0, c, b)
	clock.advance(10 * time.Minute)
	a.Learn(0, c[:20], b[:2])
	a.Learn(1, c, b)
	clock.advance(6 * time.Minute)
	if got := approximateOverlap(a, 0, c, b); got != 20 {
		t.Errorf("worker 0 matches %d blocks, want the 20 learned again", got)
	}
	if got := approximateOverlap(a, 1, c, b); got != 64 {
		t.Errorf("worker 1 matches %d blocks, want 64", got)
	}
	clock.advance(20 * time.Minute)
	a.Learn(2, chainOf(64, 5), nil)
	if a.entries != 1 || a.expired != 4 {
		t.Errorf("%d entries stay and %d expired, want 1 and 4", a.entries, a.expired)
	}
	if err := checkApproximate(a); err != nil {
		t.Error(err)
	}
}

// TestFC60_ApproximateEvictsTheOldest: the bytes cap holds, and a conversation that is
// still used outlives it.
func TestFC60_ApproximateEvictsTheOldest(t *testing.T) {
	const maxBytes = 1 << 20
	a, _ := newTestApproximate(maxBytes)
	live, boundaries := chainOf(300, 1), []int{5, 100, 200, 300}
	rng := rand.New(rand.NewPCG(1, 1))
	base := liveHeap()
	for i := range soak(3000, 50) {
		a.Learn(1, chainOf(2000, rng.Uint64()), []int{7, 900, 2000})
		if i%20 == 0 {
			a.Learn(0, live, boundaries)
		}
		if a.bytes > maxBytes {
			t.Fatalf("%d bytes under a cap of %d", a.bytes, maxBytes)
		}
	}
	if a.evicted == 0 {
		t.Error("nothing was evicted")
	}
	if got := approximateOverlap(a, 0, live, boundaries); got != 300 {
		t.Errorf("the live conversation matches %d blocks, want 300", got)
	}
	if heap := liveHeap() - base; heap > maxBytes*5/4 {
		t.Errorf("%d bytes of heap under a cap of %d", heap, maxBytes)
	}
	if err := checkApproximate(a); err != nil {
		t.Error(err)
	}
}

// TestApproximate_GivesMemoryBack guards against go-radix's leak in DeletePrefix:
// expired conversations leave neither entries nor heap.
func TestApproximate_GivesMemoryBack(t *testing.T) {
	a, clock := newTestApproximate(1 << 30)
	rng := rand.New(rand.NewPCG(1, 1))
	round := func() {
		for range 2000 {
			system := chainOf(40, rng.Uint64N(5))
			c := append(system, chainOf(200, rng.Uint64())...)
			for turn := 60; turn <= 240; turn += 60 {
				a.Learn(kv.Worker(rng.IntN(8)), c[:turn], []int{40, 60, 120, 180, 240}[:1+turn/60])
			}
		}
	}
	drain := func() {
		clock.advance(time.Hour)
		for a.entries > 1 {
			a.Learn(0, chainOf(64, 99), nil)
		}
	}
	round()
	drain()
	base := liveHeap()
	for range soak(2, 25) {
		round()
		drain()
	}
	if grown := liveHeap() - base; grown > 256<<10 {
		t.Errorf("%d bytes stay after all conversations expired", grown)
	}
	if a.entries != 1 || a.tree.Len() != 1 {
		t.Errorf("%d entries, %d keys, want the last one", a.entries, a.tree.Len())
	}
}

// TestApproximate_BytesAreTheHeap holds the estimate of what an entry costs to the
// runtime's count.
func TestApproximate_BytesAreTheHeap(t *testing.T) {
	f := func(name string, conversations, turns, gap int) {
		t.Helper()
		a, _ := newTestApproximate(1 << 30)
		base := liveHeap()
		rng := rand.New(rand.NewPCG(1, 1))
		for range conversations {
			c := append(chainOf(20, 1), chainOf(turns*gap, rng.Uint64())...)
			boundaries := []int{20}
			for turn := range turns {
				boundaries = append(boundaries, 20+(turn+1)*gap)
				a.Learn(kv.Worker(rng.IntN(8)), c[:boundaries[turn+1]], boundaries)
			}
		}
		heap := liveHeap() - base
		if r := float64(heap) / float64(a.bytes); r < 0.75 || r > 1.1 {
			t.Errorf("%s: heap %d, counted %d (%d entries)", name, heap, a.bytes, a.entries)
		}
		t.Logf("%s: heap %d, counted %d, %d B per entry", name, heap, a.bytes, heap/int64(a.entries))
	}
	f("one turn", 10_000, 1, 10)
	f("twelve turns", 1500, 12, 15)
	f("long prompts", 300, 3, 1500)
}

// TestApproximate_SweepFollowsTheQueue: an entry that moves or leaves between two
// slices of a Drop does not take the sweep with it.
func TestApproximate_SweepFollowsTheQueue(t *testing.T) {
	a, _ := newTestApproximate(1 << 20)
	for i := range uint64(3) {
		a.Learn(0, chainOf(64, 10+i), nil)
	}
	a.sweep = a.old
	second, third := a.old.younger, a.young
	a.Learn(0, chainOf(64, 10), nil) // the oldest becomes the youngest
	if a.sweep != second {
		t.Error("the sweep moved with its entry")
	}
	a.remove(second)
	if a.sweep != third {
		t.Error("the sweep stays at an entry that is gone")
	}
}

func TestApproximate_Concurrent(t *testing.T) {
	a, _ := newTestApproximate(200 << 10)
	var all sync.WaitGroup
	for g := range kv.Worker(4) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			dst := make([]kv.Overlap, 4)
			for range soak(500, 50) {
				c := append(chainOf(10, 1), chainOf(100, rng.Uint64N(300))...)
				a.Overlap(c, []int{10, 50}, dst)
				a.Learn(g, c, []int{10, 50, 110})
				if rng.IntN(40) == 0 {
					a.Drop(g)
				}
			}
		})
	}
	all.Wait()
	if err := checkApproximate(a); err != nil {
		t.Error(err)
	}
}

func newTestPredicted() (*Predicted, *frozen) {
	clock := newFrozen()
	return newPredicted(2*time.Second, clock.now), clock
}

func predictedOverlap(p *Predicted, w kv.Worker, chain []kv.SequenceHash) int {
	dst := make([]kv.Overlap, w+1)
	p.Overlap(chain, dst)
	return int(dst[w].GPU)
}

func TestPredicted_LivesUntilItExpiresOrIsRetracted(t *testing.T) {
	p, clock := newTestPredicted()
	c, sibling := chainOf(100, 1, 2, 3), chainOf(100, 1, 2, 9)
	f := func(step string, chain []kv.SequenceHash, want int) {
		t.Helper()
		if got := predictedOverlap(p, 0, chain); got != want {
			t.Errorf("%s: %d blocks, want %d", step, got, want)
		}
	}
	first := p.Add(0, c)
	f("in flight", c, 100)
	f("a sibling", sibling, 2)
	clock.advance(1500 * time.Millisecond)
	second := p.Add(0, sibling)
	p.Extend(first)
	clock.advance(1500 * time.Millisecond)
	f("extended", c, 100)
	p.Retract(first)
	f("retracted", c, 2)
	p.Extend(first)
	f("gone for good", c, 2)
	clock.advance(time.Second)
	f("expired", sibling, 0)
	p.Retract(second)
	p.Retract(Prediction{})
	if err := checkPredicted(p); err != nil || p.live != 0 || len(p.edges) != 0 {
		t.Errorf("%d entries, %d edges stay: %v", p.live, len(p.edges), err)
	}
}

func TestPredicted_OnlyRaises(t *testing.T) {
	p, _ := newTestPredicted()
	c := chainOf(50, 1)
	p.Add(0, c[:20])
	p.Add(1, c[:40])
	dst := []kv.Overlap{{GPU: 30, CPU: 5}, {GPU: 30, CPU: 5}, {GPU: 7}}
	p.Overlap(c, dst)
	if want := []kv.Overlap{{GPU: 30, CPU: 5}, {GPU: 40, CPU: 5}, {GPU: 7}}; !slices.Equal(dst, want) {
		t.Errorf("got %v, want %v", dst, want)
	}
}

func TestPredicted_IsBounded(t *testing.T) {
	p, clock := newTestPredicted()
	c := chainOf(4, 1)
	for range maxPredictions + 10 {
		p.Add(0, c)
	}
	long := chainOf(maxPredictedBlocks/8, 2)
	clock.advance(time.Minute)
	for p.live > 0 { // a call takes out at most predictionsPerHold
		predictedOverlap(p, 0, c)
	}
	for range 12 {
		p.Add(0, long)
	}
	if p.live != 8 || p.refused != 10+4 {
		t.Errorf("%d entries, %d refused, want 8 and 14", p.live, p.refused)
	}
	if got := predictedOverlap(p, 0, long); got != len(long) {
		t.Errorf("%d blocks, want %d", got, len(long))
	}
}

func TestPredicted_Concurrent(t *testing.T) {
	p := NewSet(Config{PredictedTTL: time.Millisecond}).Predicted()
	var all sync.WaitGroup
	for g := range kv.Worker(4) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			dst := make([]kv.Overlap, 4)
			for range soak(1000, 50) {
				c := chainOf(1+rng.IntN(40), 1, rng.Uint64N(4), rng.Uint64N(4))
				h := p.Add(g, c)
				p.Overlap(c, dst)
				p.Extend(h)
				if rng.IntN(2) == 0 {
					p.Retract(h)
				}
				if rng.IntN(50) == 0 {
					p.Drop(g)
				}
			}
			p.Drop(g)
		})
	}
	all.Wait()
	if err := checkPredicted(p); err != nil || p.live != 0 {
		t.Errorf("%d entries stay: %v", p.live, err)
	}
}
