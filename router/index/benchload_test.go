package index

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// load fills an exact index like a fleet does: a system prompt on every worker, and
// conversations behind it, each on one or two workers.
type load struct {
	rng     *rand.Rand
	workers int
	shared  []kv.SequenceHash
	short   bool // conversations of 132 blocks instead of 1,600 (4 of 5) and 8,192
	convs   []conversation
	x       *Exact
	set     *Set
}

type conversation struct {
	chain []kv.SequenceHash
	on    []kv.Worker
}

const sharedBlocks = 100

func newLoad(memberships, workers int, short bool) *load {
	l := &load{rng: rand.New(rand.NewPCG(7, 7)), workers: workers, short: short}
	l.shared = l.grow(nil, sharedBlocks)
	for left := memberships; left > 0; {
		c := l.conversation(len(l.convs))
		l.convs = append(l.convs, c)
		left -= (len(c.chain) - sharedBlocks) * len(c.on)
	}
	l.set = NewSet(Config{MaxBytes: 8 << 30})
	l.x = l.set.Exact(16)
	return l
}

func (l *load) grow(chain []kv.SequenceHash, to int) []kv.SequenceHash {
	for len(chain) < to {
		b := kv.BlockHash(l.rng.Uint64())
		if len(chain) == 0 {
			chain = append(chain, kv.First(b))
		} else {
			chain = append(chain, chain[len(chain)-1].Next(b))
		}
	}
	return chain
}

func (l *load) conversation(i int) conversation {
	n := 1600
	if l.short {
		n = 132
	} else if i%5 == 4 {
		n = 8192
	}
	c := conversation{chain: l.grow(append(make([]kv.SequenceHash, 0, n), l.shared...), n)}
	for range 1 + i%2 {
		w := kv.Worker(l.rng.IntN(l.workers))
		if !slices.Contains(c.on, w) {
			c.on = append(c.on, w)
		}
	}
	return c
}

// cpu returns the processor time that this process has used, the garbage collector's
// included: what a budget for one core counts, whoever else is on the machine.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// build stores everything in events of the given size, many conversations at a time.
// took is processor time, each is the wall time of each event.
func (l *load) build(event int) (blocks int, took time.Duration, each []time.Duration) {
	for w := range kv.Worker(l.workers) {
		l.x.Apply(w, stored(kv.TierGPU, l.shared, 0, sharedBlocks))
	}
	type stream struct {
		c  *conversation
		w  kv.Worker
		at int
	}
	var waiting, active []stream
	for i := range l.convs {
		for _, w := range l.convs[i].on {
			waiting = append(waiting, stream{&l.convs[i], w, sharedBlocks})
		}
	}
	each = make([]time.Duration, 0, 1<<16)
	began := cpu()
	for len(waiting) > 0 || len(active) > 0 {
		for len(active) < 4*l.workers && len(waiting) > 0 {
			active, waiting = append(active, waiting[0]), waiting[1:]
		}
		next := active[:0]
		for _, s := range active {
			to := min(s.at+event, len(s.c.chain))
			t0 := time.Now()
			l.x.Apply(s.w, stored(kv.TierGPU, s.c.chain, s.at, to))
			d := time.Since(t0)
			blocks, each = blocks+to-s.at, append(each, d)
			if s.at = to; to < len(s.c.chain) {
				next = append(next, s)
			}
		}
		active = next
	}
	return blocks, cpu() - began, each
}

// churn replaces conversations, oldest first: each is removed tail first and a new one
// stored, in events of 16. It stops after n conversations or when stop is set, and
// keeps to pace block changes a second if that is not 0.
func (l *load) churn(n int, pace float64, stop *atomic.Bool) (blocks int, took time.Duration) {
	const event = 16
	tail := make([]kv.SequenceHash, event)
	began := time.Now()
	apply := func(w kv.Worker, e kv.Event) {
		l.x.Apply(w, e)
		blocks += len(e.Hashes)
		for pace > 0 && time.Since(began).Seconds()*pace < float64(blocks) && !stop.Load() {
		}
	}
	for i := 0; i < n && (stop == nil || !stop.Load()); i++ {
		c := &l.convs[i%len(l.convs)]
		fresh := l.conversation(i % len(l.convs))
		used := cpu()
		for _, w := range c.on {
			for to := len(c.chain); to > sharedBlocks; {
				from := max(to-event, sharedBlocks)
				tail = append(tail[:0], c.chain[from:to]...)
				slices.Reverse(tail)
				apply(w, removed(kv.TierGPU, tail...))
				to = from
			}
		}
		c.on = fresh.on
		copy(c.chain, fresh.chain)
		for _, w := range c.on {
			for from := sharedBlocks; from < len(c.chain); from += event {
				apply(w, stored(kv.TierGPU, c.chain, from, min(from+event, len(c.chain))))
			}
		}
		took += cpu() - used
	}
	return blocks, took
}

// queries times one overlap of each of n random conversations of a length. The chain
// is in the cache, as if it had just been hashed; the index is not.
func (l *load) queries(n, length int) []time.Duration {
	chain := make([]kv.SequenceHash, length)
	dst := make([]kv.Overlap, l.workers)
	var pick []int
	for i := range l.convs {
		if len(l.convs[i].chain) == length {
			pick = append(pick, i)
		}
	}
	times := make([]time.Duration, 0, n)
	for range n {
		c := &l.convs[pick[l.rng.IntN(len(pick))]]
		copy(chain, c.chain)
		t0 := time.Now()
		l.x.Overlap(chain, dst)
		times = append(times, time.Since(t0))
		if int(dst[c.on[0]].GPU) != length {
			panic("BUG: a stored conversation is not found whole")
		}
	}
	return times
}

func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func BenchmarkExactOverlap(b *testing.B) {
	for _, workers := range []int{8, 64, 1024} {
		l := newLoad(400_000, workers, false)
		l.build(128)
		dst := make([]kv.Overlap, workers)
		for _, length := range []int{1600, 8192} {
			b.Run("blocks="+itoa(length)+"/workers="+itoa(workers), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					for i++; len(l.convs[i%len(l.convs)].chain) != length; i++ {
					}
					l.x.Overlap(l.convs[i%len(l.convs)].chain, dst)
				}
			})
			b.Run("blocks="+itoa(length)+"/workers="+itoa(workers)+"/parallel", func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					dst := make([]kv.Overlap, workers)
					for i := 0; pb.Next(); i++ {
						l.x.Overlap(l.convs[i%len(l.convs)].chain, dst)
					}
				})
			})
		}
	}
}

func BenchmarkExactApply(b *testing.B) {
	for _, event := range []int{16, 128} {
		b.Run("event="+itoa(event), func(b *testing.B) {
			b.ReportAllocs()
			x := NewSet(Config{}).Exact(16)
			chain := chainOf(1<<20, 3)
			for i := 0; b.Loop(); i++ {
				from := i * event % len(chain)
				if from == 0 {
					x.Drop(0)
				}
				x.Apply(0, stored(kv.TierGPU, chain, from, from+event))
			}
			b.ReportMetric(float64(b.N*event)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
		})
	}
}

func BenchmarkApproximate(b *testing.B) {
	boundaries := make([]int, 40)
	for i := range boundaries {
		boundaries[i] = (i + 1) * 14
	}
	chains := make([][]kv.SequenceHash, 2000)
	for i := range chains {
		chains[i] = chainOf(600, 1, 2, 3, 4, uint64(10+i))
	}
	a := NewSet(Config{}).Approximate()
	b.Run("learn/blocks=600", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			a.Learn(kv.Worker(i%8), chains[i%len(chains)], boundaries)
		}
	})
	b.Run("overlap/blocks=600", func(b *testing.B) {
		b.ReportAllocs()
		dst := make([]kv.Overlap, 8)
		for i := 0; b.Loop(); i++ {
			a.Overlap(chains[i%len(chains)], boundaries, dst)
		}
	})
}

func BenchmarkPredicted(b *testing.B) {
	chains := make([][]kv.SequenceHash, 512)
	for i := range chains {
		chains[i] = chainOf(1600, 1, 2, 3, 4, uint64(10+i))
	}
	p := NewSet(Config{PredictedTTL: time.Hour}).Predicted()
	dst := make([]kv.Overlap, 64)
	live := make([]Prediction, len(chains))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k := i % len(chains)
		p.Retract(live[k])
		p.Overlap(chains[k], dst)
		live[k] = p.Add(kv.Worker(k%64), chains[k])
	}
}
