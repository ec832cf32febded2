package prefill

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/testcluster"
)

// tenants returns conversations that arrive at random, every apart on average, each with one of
// the heads of so many tokens; the first is the most frequent.
func tenants(seed uint64, n int, every time.Duration, sizes ...int) (list []testcluster.Conversation) {
	r := rand.New(rand.NewPCG(seed, 0x7e4a))
	var heads [][]uint32
	for i, size := range sizes {
		head := make([]uint32, size)
		for k := range head {
			head[k] = mix(seed<<32|0xead<<8|uint64(i), k)
		}
		heads = append(heads, head)
	}
	at := time.Duration(0)
	for i := range n {
		at += time.Duration(r.ExpFloat64() * float64(every))
		c := testcluster.Conversation{ID: seed<<16 | uint64(i), Arrival: at, Prefix: heads[min(int(r.ExpFloat64()*float64(len(heads))/2), len(heads)-1)]}
		for t := range 1 + r.IntN(6) {
			turn := testcluster.Turn{InputTokens: 100 + r.IntN(400), OutputTokens: 50 + r.IntN(300)}
			if t > 0 {
				turn.Think = time.Duration(r.ExpFloat64() * 8 * float64(time.Second))
			}
			c.Turns = append(c.Turns, turn)
		}
		list = append(list, c)
	}
	return list
}

func TestLoad_TryJoin(t *testing.T) {
	for seed := range uint64(4) {
		for _, on := range []bool{false, true} {
			var ready, added time.Duration
			w := town{Workers: 4, Mode: ModeOn, Seed: seed + 1, Chats: tenants(seed+1, 2000, 400*time.Millisecond, 12_000, 8_000, 16_000, 5_000),
				Prefill: Config{Join: on}, At: 5 * time.Minute}
			w.What = func(g *rig) {
				id := g.add()
				g.router.SetHealth(id, false, "new")
				added = time.Since(g.start)
				g.prefill.Join(id)
				g.router.SetHealth(id, true, "")
				for {
					time.Sleep(10 * time.Millisecond)
					warming := false
					for _, s := range g.router.Status() {
						warming = warming || s.Warming
					}
					if !warming {
						break
					}
				}
				ready = time.Since(g.start)
			}
			began := time.Now()
			l := w.live(t)
			n, cached, head, first := 0, 0, 0, time.Duration(0)
			var ttft []float64
			for i := range l.rows {
				_ = i
			}
			for _, r := range sorted(l.rows) {
				if r.worker != "w5" || n == 50 {
					continue
				}
				if n == 0 {
					first = r.sent
				}
				n++
				cached += min(r.cached, r.head/64*64)
				head += r.head / 64 * 64
				ttft = append(ttft, r.ttft.Seconds())
			}
			t.Logf("seed %d on=%v added %v ready +%v first +%v cached %.3f ttft p50 %.3f p95 %.3f  all p95 %.3f rps %.3f; tokens join %v clients %d (%.3f)  wall %v", seed, on, added, ready-added, first-added, float64(cached)/float64(head),
				quantile(ttft, .5), quantile(ttft, .95), quantile(l.ttft(), .95), l.rps(), l.sums["copy_tokens_total join"], l.computed(), l.sums["copy_tokens_total join"]/float64(l.computed()), time.Since(began))
			t.Log(l.sums)
			for _, r := range l.debug.Recent {
				if r.Trigger == TriggerJoin {
					t.Log(r)
				}
			}
		}
	}
}
