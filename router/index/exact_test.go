package index

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

func newTestExact(maxBytes int64) (*Exact, *frozen) {
	clock := newFrozen()
	return newExact(&budget{max: maxBytes}, clock.now, 12345), clock
}

// overlapOf returns w's overlap with chain.
func overlapOf(x *Exact, w kv.Worker, chain []kv.SequenceHash) kv.Overlap {
	dst := make([]kv.Overlap, w+1)
	x.Overlap(chain, dst)
	return dst[w]
}

func mustCheck(t *testing.T, x *Exact) {
	t.Helper()
	if err := x.check(); err != nil {
		t.Fatal(err)
	}
}

func TestExact_HoleEndsTheOverlapUntilTheBlockReturns(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	c := chainOf(500, 1)
	x.Apply(0, stored(kv.TierGPU, c, 0, 500))
	x.Apply(0, removed(kv.TierGPU, c[257]))
	if got := overlapOf(x, 0, c).GPU; got != 257 {
		t.Errorf("with a hole: %d blocks, want 257", got)
	}
	x.Apply(0, stored(kv.TierGPU, c, 257, 258))
	if got := overlapOf(x, 0, c).GPU; got != 500 {
		t.Errorf("healed: %d blocks, want 500", got)
	}
	mustCheck(t, x)
}

func TestExact_LongEventsGoInSlices(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	c := chainOf(10*maxRun+7, 1)
	x.Apply(3, stored(kv.TierGPU, c, 0, len(c)))
	if got := overlapOf(x, 3, c).GPU; int(got) != len(c) {
		t.Errorf("%d blocks, want %d", got, len(c))
	}
	back := slices.Clone(c[5000:])
	slices.Reverse(back)
	x.Apply(3, removed(kv.TierGPU, back...))
	if got := overlapOf(x, 3, c).GPU; got != 5000 {
		t.Errorf("%d blocks, want 5000", got)
	}
	mustCheck(t, x)
	x.Apply(3, kv.Event{Kind: kv.EventCleared})
	if x.blocks != 0 || x.memberships != 0 {
		t.Errorf("cleared: %d blocks, %d memberships stay", x.blocks, x.memberships)
	}
	mustCheck(t, x)
}

// TestExact_ManyWorkersShareOneRun: a system prompt on more workers than a word has
// bits, each with holes of its own.
func TestExact_ManyWorkersShareOneRun(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	c := chainOf(300, 1)
	const workers = 1500
	for w := range kv.Worker(workers) {
		x.Apply(w, stored(kv.TierGPU, c, 0, 300))
		x.Apply(w, removed(kv.TierGPU, c[w%300]))
	}
	dst := make([]kv.Overlap, workers)
	x.Overlap(c, dst)
	for w := range dst {
		if int(dst[w].GPU) != w%300 {
			t.Fatalf("worker %d: %d blocks, want %d", w, dst[w].GPU, w%300)
		}
	}
	mustCheck(t, x)
}

// TestExact_MoreHolesThanAListTakes: past the longest list of intervals credit gets
// too low, counted, never too high.
func TestExact_MoreHolesThanAListTakes(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	c := chainOf(1000, 1)
	for w := range kv.Worker(40) {
		x.Apply(w, stored(kv.TierGPU, c, 0, 1000))
		for off := 1; off < 1000; off += 2 {
			x.Apply(w, removed(kv.TierGPU, c[off]))
		}
	}
	if x.budget.refused.Load() == 0 {
		t.Error("nothing was counted as refused")
	}
	for w := range kv.Worker(40) {
		if got := overlapOf(x, w, c).GPU; got > 1 {
			t.Fatalf("worker %d: %d blocks, holds block 0 only", w, got)
		}
	}
	mustCheck(t, x)
}

// TestExact_ClusteredHashesStayBounded: hashes that all mix to one shard and tag are
// refused, not answered with ever larger tables.
func TestExact_ClusteredHashesStayBounded(t *testing.T) {
	clock := newFrozen()
	x := newExact(&budget{max: 1 << 30}, clock.now, 1) // 1: hashes are not mixed
	hashes := make([]kv.SequenceHash, 4000)
	for i := range hashes {
		hashes[i] = kv.SequenceHash(0xabcdef<<40 | uint64(i))
	}
	before := x.budget.used.Load()
	refused := x.Apply(0, kv.Event{Kind: kv.EventStored, Hashes: hashes})
	if refused == 0 || x.Held(0)[0] != len(hashes)-refused {
		t.Errorf("%d of %d refused, %d held", refused, len(hashes), x.Held(0)[0])
	}
	if grown := x.budget.used.Load() - before; grown > 1<<20 {
		t.Errorf("%d bytes for %d blocks", grown, len(hashes))
	}
	mustCheck(t, x)
}

// TestExact_TiersContinueInOrder: GPU, CPU, disk, and no tier twice, also where each
// stretch is a run of its own.
func TestExact_TiersContinueInOrder(t *testing.T) {
	for _, length := range []int{40, 4 * maxRun} {
		x, _ := newTestExact(1 << 30)
		c := chainOf(length, 1)
		at := func(i int) int { return length * i / 4 }
		f := func(w kv.Worker, want kv.Overlap, tiers ...kv.Tier) {
			t.Helper()
			for i, tier := range tiers {
				x.Apply(w, stored(tier, c, at(i), at(i+1)))
			}
			if got := overlapOf(x, w, c); got != want {
				t.Errorf("%d blocks in tiers %v: %+v, want %+v", length, tiers, got, want)
			}
		}
		q := uint32(length / 4)
		f(0, kv.Overlap{GPU: q, CPU: q, Disk: 2 * q}, kv.TierGPU, kv.TierCPU, kv.TierDisk, kv.TierDisk)
		f(1, kv.Overlap{GPU: q, Disk: q}, kv.TierGPU, kv.TierDisk, kv.TierCPU, kv.TierDisk)
		f(2, kv.Overlap{CPU: q}, kv.TierCPU, kv.TierGPU, kv.TierGPU, kv.TierGPU)
		f(3, kv.Overlap{Disk: 2 * q}, kv.TierDisk, kv.TierDisk, kv.TierCPU, kv.TierGPU)
	}
}

// TestFC58_WorkersMeetInOurHashes: engines number their blocks as they like and cut
// their events where they like; the prefix is one.
// TestFC60_CapIsEnforced: unique prompts of 32k tokens beyond the cap are refused and
// counted, what is held stays, and room that is given back is used.
// TestFC46_WorkersComeAndGo: nothing of a worker stays in any index.
// TestExact_BytesAreTheHeap holds Stats.Bytes to what the runtime sees, for long and
// for short runs and after most has left again.
func TestExact_BytesAreTheHeap(t *testing.T) {
	f := func(name string, chains, length int) {
		t.Helper()
		rng := rand.New(rand.NewPCG(1, 1))
		chain := make([]kv.SequenceHash, length)
		seeds := make([]uint64, chains)
		base := liveHeap()
		set := NewSet(Config{})
		x := set.Exact(16)
		for i := range seeds {
			seeds[i] = rng.Uint64()
			copy(chain, chainOf(length, seeds[i]))
			x.Apply(kv.Worker(i%8), stored(kv.TierGPU, chain, 0, length))
		}
		compare := func(when string) {
			t.Helper()
			heap, bytes := liveHeap()-base, set.Stats().Bytes
			if r := float64(heap) / float64(bytes); r < 0.9 || r > 1.1 {
				t.Errorf("%s, %s: heap %d, Stats.Bytes %d", name, when, heap, bytes)
			}
			t.Logf("%s, %s: %.1f B per block", name, when, float64(heap)/float64(set.Stats().Blocks))
		}
		compare("full")
		full := set.Stats().Bytes
		for i := range seeds[:chains*9/10] {
			copy(chain, chainOf(length, seeds[i]))
			x.Apply(kv.Worker(i%8), removed(kv.TierGPU, chain...))
		}
		compare("nine tenths gone")
		if got := set.Stats().Bytes; got > full/2 {
			t.Errorf("%s: %d of %d bytes stay when a tenth of the blocks does", name, got, full)
		}
		runtime.KeepAlive(seeds)
		runtime.KeepAlive(chain)
	}
	f("long runs", 150, 3000)
	f("short runs", 60_000, 3)
}

// TestExact_ShortenedRunsGiveMemoryBack: conversations whose tails are evicted keep
// no room for them.
func TestExact_ShortenedRunsGiveMemoryBack(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	chains := make([][]kv.SequenceHash, 200)
	for i := range chains {
		chains[i] = chainOf(1000, uint64(i))
		x.Apply(0, stored(kv.TierGPU, chains[i], 0, 1000))
	}
	full := x.budget.used.Load()
	for _, c := range chains {
		x.Apply(0, removed(kv.TierGPU, c[20:]...))
	}
	if got := x.budget.used.Load(); got > full/4 {
		t.Errorf("%d of %d bytes stay for 2 %% of the blocks", got, full)
	}
	for i, c := range chains { // events of 256 ask for more room than they fill
		x.Apply(0, removed(kv.TierGPU, c...))
		chains[i] = nil
		c = slices.Concat(chainOf(10, uint64(i), 1), c[500:700])
		x.Apply(1, stored(kv.TierGPU, c[10:], 0, 200))
		x.Apply(0, stored(kv.TierGPU, c, 0, 210))
	}
	words := 0
	for id := x.runs.skip(1); id < x.runs.end(); id++ {
		if r := x.runs.get(id); r.n > 0 {
			words += classWords[r.class]
		}
	}
	if words > 2*x.blocks {
		t.Errorf("%d words hold %d blocks", words, x.blocks)
	}
	mustCheck(t, x)
}

func TestExact_DecayedOldest(t *testing.T) {
	x, clock := newTestExact(1 << 30)
	a, b := chainOf(100, 1), chainOf(50, 2)
	f := func(step string, blocks int, want float64) {
		t.Helper()
		// A tick of 8 s at τ = 60 s is ± 14 %.
		if got := x.DecayedOldest(0, blocks, time.Minute); math.Abs(got-want) > 0.14*want+1e-9 {
			t.Errorf("%s: %d oldest blocks decay to %.2f, want %.2f", step, blocks, got, want)
		}
	}
	f("unknown worker", 10, 0)
	x.Apply(0, stored(kv.TierGPU, a, 0, 100))
	x.Apply(0, stored(kv.TierCPU, a, 0, 100)) // other tiers do not count
	f("fresh", 100, 100)
	clock.advance(time.Minute)
	x.Apply(0, stored(kv.TierGPU, b, 0, 50))
	clock.advance(time.Minute)
	f("part of the oldest", 40, 40*math.Exp(-2))
	f("all of the oldest", 100, 100*math.Exp(-2))
	f("and younger ones", 120, 100*math.Exp(-2)+20*math.Exp(-1))
	f("more than it holds", 1000, 100*math.Exp(-2)+50*math.Exp(-1))
	x.Touch(0, a)
	f("after a match", 60, 50*math.Exp(-1)+10)
	x.Apply(0, removed(kv.TierGPU, b...))
	f("after eviction", 60, 60)
	clock.advance(20 * time.Minute)
	f("long idle", 100, 100*math.Exp(-20))
	clock.advance(10 * time.Hour)
	x.Touch(0, b)
	f("for ever idle", 100, 0)
	x.Touch(0, append(a[:60:60], b...))
	f("a match of more than half", 100, 100)
	mustCheck(t, x)
}

func TestExact_TouchOfASmallPartKeepsTheAge(t *testing.T) {
	x, clock := newTestExact(1 << 30)
	c := chainOf(100, 1)
	x.Apply(0, stored(kv.TierGPU, c, 0, 100))
	clock.advance(5 * time.Minute)
	x.Touch(0, c[:20])
	x.Touch(1, c)
	if got := x.DecayedOldest(0, 100, time.Minute); got > 2 {
		t.Errorf("decayed to %.2f blocks, want the age of a conversation of which only the head was matched", got)
	}
	mustCheck(t, x)
}

func TestExact_ReplaceKeepsAges(t *testing.T) {
	x, clock := newTestExact(1 << 30)
	c := chainOf(100, 1)
	x.Apply(0, stored(kv.TierGPU, c, 0, 90))
	clock.advance(5 * time.Minute)
	x.Replace(0, []kv.Event{stored(kv.TierGPU, c, 10, 100), stored(kv.TierGPU, chainOf(20, 2), 0, 20)})
	if got := x.DecayedOldest(0, 90, time.Minute); got > 1 {
		t.Errorf("the 90 oldest decay to %.2f blocks, want the ages of before the resync", got)
	}
	if got := x.DecayedOldest(0, 110, time.Minute); got < 18 || got > 21 {
		t.Errorf("all decay to %.2f blocks, want the 20 that are new", got)
	}
	mustCheck(t, x)
}

// TestExact_ReplaceNeverCreditsMoreThanOldOrNew: stores before removals would join the
// old head to the new tail.
func TestExact_ReplaceNeverCreditsMoreThanOldOrNew(t *testing.T) {
	x, _ := newTestExact(1 << 30)
	c := chainOf(6000, 1)
	head := []kv.Event{stored(kv.TierGPU, c, 0, 3000)}
	tail := []kv.Event{stored(kv.TierGPU, c, 2000, 6000)}
	x.Replace(0, head)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			dst := make([]kv.Overlap, 1)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if x.Overlap(c, dst); dst[0].GPU > 3000 {
					t.Errorf("credits %d blocks, neither state has more than 3000", dst[0].GPU)
					return
				}
			}
		})
	}
	for range soak(30, 50) {
		x.Replace(0, tail)
		if got := x.Held(0)[kv.TierGPU]; got != 4000 {
			t.Errorf("holds %d blocks, want 4000", got)
		}
		x.Replace(0, head)
	}
	close(stop)
	readers.Wait()
	mustCheck(t, x)
}

// TestExact_ConcurrentFeeds runs one feed per worker beside readers; each worker ends
// with exactly what its own feed said.
func TestExact_ConcurrentFeeds(t *testing.T) {
	x, clock := newTestExact(1 << 30)
	const workers = 4
	chains := forest(rand.New(rand.NewPCG(9, 9)), 12, 700)
	models := newModel(workers)
	stop := make(chan struct{})
	var feeds, readers sync.WaitGroup
	for w := range kv.Worker(workers) {
		feeds.Go(func() {
			h := &history{rng: rand.New(rand.NewPCG(uint64(w), 1)), chains: chains, model: models, clock: clock}
			for range soak(400, 50) {
				changeExact(h, x, w)
				if h.rng.IntN(50) == 0 {
					x.Drop(w)
					models.drop(w)
				}
			}
		})
	}
	for r := range 2 {
		readers.Go(func() {
			dst := make([]kv.Overlap, workers)
			for i := r; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				c := chains[i%len(chains)]
				x.Overlap(c, dst)
				for w, o := range dst {
					if n := o.GPU + o.CPU + o.Disk; int(n) > len(c) {
						t.Errorf("worker %d: %d of %d blocks", w, n, len(c))
						return
					}
				}
				x.Held(kv.Worker(i % workers))
				x.DecayedOldest(kv.Worker(i%workers), 100, time.Minute)
				x.Dump(kv.Worker(i%workers), func(kv.Event) bool { return i%2 == 0 })
			}
		})
	}
	feeds.Wait()
	close(stop)
	readers.Wait()
	if err := checkExact(x, models); err != nil {
		t.Fatal(err)
	}
}
