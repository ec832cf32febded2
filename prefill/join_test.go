package prefill

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmroute/warmroute/internal/testcluster"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// tenants returns conversations that arrive at random, every apart on average, each with
// one of the heads of so many tokens, the first ones most often.
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

// joinWorker adds a worker as a fleet does: it is told to Join before it takes requests.
func (g *rig) joinWorker() string {
	g.t.Helper()
	id := g.add()
	g.router.SetHealth(id, false, "not probed yet")
	g.prefill.Join(id)
	g.router.SetHealth(id, true, "")
	return id
}

// warming tells whether the router leaves a worker out.
func (g *rig) warming(worker string) bool {
	for _, s := range g.router.Status() {
		if s.Worker == worker {
			return s.Warming
		}
	}
	return false
}

// TestLoad_JoinFillsTheCacheFirst: a worker that is added under load is ready within 10 s
// and answers its first 50 requests with at least 80 % of the blocks of shared prefixes
// cached, for at most 5 % of what the fleet computes.
func TestLoad_JoinFillsTheCacheFirst(t *testing.T) {
	seeds, chats, at := uint64(1), 900, 3*time.Minute
	if soak {
		seeds, chats, at = 20, 2000, 6*time.Minute
	}
	mean := func(v [2]float64) [2]float64 { return [2]float64{v[0] / float64(seeds), v[1] / float64(seeds)} }
	var cached, p95, ready, cost [2]float64
	for seed := uint64(1); seed <= seeds; seed++ {
		for arm, on := range []bool{false, true} {
			var added, took time.Duration
			w := town{
				Workers: 4, Mode: ModeOn, Seed: seed, Prefill: Config{Join: on}, At: at,
				Chats: tenants(seed, chats, 400*time.Millisecond, 12_000, 8_000, 6_000, 10_000, 4_000, 7_000, 5_000, 3_000),
				What: func(g *rig) {
					added = time.Since(g.start)
					for id := g.joinWorker(); g.warming(id); {
						time.Sleep(time.Millisecond)
					}
					took = time.Since(g.start) - added
				},
			}
			l := w.live(t)
			c, tail := l.first(50, "w5")
			share := l.sums["copy_tokens_total join"] / (float64(l.computed()) + l.sums["copy_tokens_total join"])
			t.Logf("seed %d join=%-5v ready after %5.2f s, first 50 requests: %.3f of shared blocks cached, p95 TTFT %.3f s; join computed %.3f of all",
				seed, on, took.Seconds(), c, tail, share)
			cached[arm] += c
			p95[arm] += tail
			ready[arm] += took.Seconds()
			cost[arm] += share
			if !on {
				continue
			}
			if took > joinLife || c < 0.8 || share > 0.05 || l.sums["copies_total warmed  join"] == 0 {
				t.Errorf("seed %d: ready after %v, %.3f cached, %.3f of the fleet's prefill: %v", seed, took, c, share, l.sums)
			}
		}
	}
	t.Logf("means without and with join: cached %.3f, p95 TTFT %.3f s, ready after %.2f s, share %.4f", mean(cached), mean(p95), mean(ready), mean(cost))
	if cached[1] < cached[0] {
		t.Errorf("with join %.3f of shared blocks are cached, without %.3f", cached[1], cached[0])
	}
}

// first returns what a worker's first n requests found cached of their shared prefixes and
// the p95 of their TTFT.
func (l *lived) first(n int, worker string) (share, p95 float64) {
	cached, head := 0, 0
	var ttft []float64
	for _, r := range sorted(l.rows) {
		if r.worker != worker || len(ttft) == n {
			continue
		}
		cached += min(r.cached, r.head/64*64)
		head += r.head / 64 * 64
		ttft = append(ttft, r.ttft.Seconds())
	}
	return float64(cached) / float64(head), quantile(ttft, .95)
}

// withHead runs f on a rig of n workers that knows one hot head of so many tokens, and has
// the work behind it that budgets are shares of.
func withHead(t *testing.T, workers, tokens int, f func(g *rig, head []uint32)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Workers: workers, Prefill: Config{Default: ModeOn, Join: true}, MaxQueue: -1})
		g.quiet = true
		head := make([]uint32, tokens)
		for i := range head {
			head[i] = mix(77, i)
		}
		g.prefill.mu.Lock()
		for i := range headProof + 1 {
			p := &kv.Prompt{Source: kv.SourceLocal, Tokens: append(head[:tokens:tokens], make([]uint32, 200)...)}
			for k := range 200 {
				p.Tokens[tokens+k] = mix(uint64(1000+i), k)
			}
			p.TokenCount = len(p.Tokens)
			g.prefill.mu.heads.learn("m", p, time.Now())
		}
		g.prefill.mu.budget.work = 1000
		g.prefill.mu.Unlock()
		f(g, head)
		g.close()
	})
}

// TestJoin_WarmsBeforeRequests: the worker is left out until the head is there, and not a
// moment longer.
func TestJoin_WarmsBeforeRequests(t *testing.T) {
	withHead(t, 1, 16_000, func(g *rig, head []uint32) {
		began := time.Now()
		id := g.joinWorker()
		p := &kv.Prompt{Source: kv.SourceLocal, Tokens: head, TokenCount: len(head)}
		for n := 0; g.warming(id); n++ {
			l, err := g.router.Route(context.Background(), &router.Request{Model: "m", Prompt: p, PinRank: -1})
			if err != nil || l.Worker().ID == id {
				t.Fatalf("after %v a request went to %v, %v", time.Since(began), l, err)
			}
			l.Done(noOutcome)
			time.Sleep(100 * time.Millisecond)
		}
		if d := time.Since(began); d < time.Second || d > 3*time.Second {
			t.Errorf("ready after %v, want about 2 s of prefill", d)
		}
		time.Sleep(10 * time.Millisecond)
		if n := g.holds(id, p); n != len(head) {
			t.Errorf("the worker holds %d of %d tokens", n, len(head))
		}
		if s := g.sums(); s["copies_total warmed  join"] != 1 || s["sent_total join"] != 1 || s["join_seconds"] != 1 {
			t.Errorf("counters: %v", s)
		}
	})
}

// TestJoin_NobodyElse: a worker that is alone takes requests at once, and what is under
// way there gives way.
func TestJoin_NobodyElse(t *testing.T) {
	withHead(t, 1, 16_000, func(g *rig, head []uint32) {
		g.router.SetHealth("w1", false, "gone")
		id := g.joinWorker()
		time.Sleep(500 * time.Millisecond)
		l, err := g.router.Route(context.Background(), &router.Request{Model: "m", Prompt: &kv.Prompt{Source: kv.SourceLocal, Tokens: head, TokenCount: len(head)}, PinRank: -1})
		if err != nil || l.Worker().ID != id {
			t.Fatalf("the only worker was left out: %v", err)
		}
		g.prefill.Yield(l.Worker())
		synctest.Wait()
		if s := g.sums(); s["copies_total cancelled yield join"] != 1 || g.warming(id) {
			t.Errorf("warming %v, counters %v", g.warming(id), s)
		}
		l.Done(noOutcome)
	})
}

// TestJoin_FailureAndSilenceMakeReady: a worker that refuses, or never answers, is ready
// all the same.
func TestJoin_FailureAndSilenceMakeReady(t *testing.T) {
	for want, answer := range map[time.Duration]func(context.Context) (Answer, error){
		0:        func(context.Context) (Answer, error) { return Answer{}, errors.New("refused") },
		joinLife: func(ctx context.Context) (Answer, error) { <-ctx.Done(); return Answer{}, ctx.Err() },
	} {
		withHead(t, 1, 16_000, func(g *rig, _ []uint32) {
			g.answer = answer
			began := time.Now()
			id := g.joinWorker()
			for g.warming(id) {
				time.Sleep(time.Millisecond)
			}
			if d := time.Since(began); d < want || d > want+10*time.Millisecond {
				t.Errorf("ready after %v, want %v", d, want)
			}
		})
	}
}

// TestJoin_EndsWithItsWorkerAndWithRun: what is under way is cancelled when the worker
// drains or leaves, and when Run ends; the rig checks that nothing stays behind.
func TestJoin_EndsWithItsWorkerAndWithRun(t *testing.T) {
	for name, end := range map[string]func(g *rig, id string){
		"drain":    func(g *rig, id string) { g.router.SetDraining(id, true) },
		"removal":  func(g *rig, _ string) { g.router.SetWorkers(g.specs[:1]) },
		"shutdown": func(g *rig, _ string) { g.stop() },
	} {
		withHead(t, 1, 60_000, func(g *rig, _ []uint32) {
			id := g.joinWorker()
			time.Sleep(500 * time.Millisecond)
			end(g, id)
			time.Sleep(1100 * time.Millisecond)
			g.prefill.mu.Lock()
			sent := len(g.prefill.mu.copies)
			g.prefill.mu.Unlock()
			if sent != 0 || g.warming(id) {
				t.Errorf("%s: %d copies are under way, warming %v", name, sent, g.warming(id))
			}
		})
	}
}

// TestJoin_ACacheThatWasCleared is filled again before the worker takes more requests.
func TestJoin_ACacheThatWasCleared(t *testing.T) {
	withHead(t, 2, 16_000, func(g *rig, head []uint32) {
		p := &kv.Prompt{Source: kv.SourceLocal, Tokens: head, TokenCount: len(head)}
		<-g.engine("w2").submit(head, []uint32{9}).done
		time.Sleep(1500 * time.Millisecond)
		if g.holds("w2", p) == 0 || g.warming("w2") {
			t.Fatal("the head is not there to be cleared")
		}
		g.engine("w2").clear()
		<-g.engine("w2").submit([]uint32{1, 2, 3}, []uint32{9}).done // a step tells of it
		time.Sleep(1100 * time.Millisecond)
		if !g.warming("w2") {
			t.Error("nobody noticed that the cache was cleared", g.sums(), g.router.Status()[1].HeldBlocks, g.holds("w2", p))
		}
		time.Sleep(5 * time.Second)
		if g.warming("w2") || g.holds("w2", p) != len(head) {
			t.Errorf("warming %v, %d tokens held", g.warming("w2"), g.holds("w2", p))
		}
	})
}

// TestJoin_NotWhereOnlyTheIndexIsEmpty: a worker whose events are read anew keeps its
// conversations.
func TestJoin_NotWhereOnlyTheIndexIsEmpty(t *testing.T) {
	withHead(t, 2, 16_000, func(g *rig, head []uint32) {
		<-g.engine("w2").submit(head, []uint32{9}).done
		time.Sleep(1500 * time.Millisecond)
		g.router.SetFeed(kv.WorkerRank{ID: "w2"}, router.Feed{State: router.FeedPartial, BlockSize: 16})
		g.index.Exact(16).Apply(g.engine("w2").number, kv.Event{Kind: kv.EventCleared})
		for range 3000 {
			if time.Sleep(time.Millisecond); g.warming("w2") {
				t.Fatal("it is left out")
			}
		}
	})
}

// TestJoin_NeverOnGenericEndpoints: nobody is billed for nothing.
func TestJoin_NeverOnGenericEndpoints(t *testing.T) {
	withHead(t, 1, 16_000, func(g *rig, _ []uint32) {
		g.cfg.Name, g.cfg.Feed = "openai", router.FeedNone
		id := g.joinWorker()
		time.Sleep(time.Second)
		if s := g.sums(); g.warming(id) || s["sent_total join"] != 0 || s["copies_total skipped generic join"] == 0 {
			t.Errorf("warming %v, counters %v", g.warming(id), s)
		}
	})
}

// TestCopy_SaysWhoseItIs: a copy carries the salt and the model of the prompts that it was
// learned from, and nothing of a client.
func TestCopy_SaysWhoseItIs(t *testing.T) {
	x := prefix{"adapter", kv.Namespace{LoRA: "adapter", Salt: "s\"1"}, []uint32{7, 300, 12}}
	w := x.warmup(kv.WorkerRank{ID: "w", Rank: 3}, true)
	if got, want := string(w.Body), `{"prompt":[7,300,12],"max_tokens":1,"temperature":0,"stream":false,"model":"adapter","cache_salt":"s\"1"}`; got != want {
		t.Errorf("body %s, want %s", got, want)
	}
	h := string(w.Header)
	if w.Path != "/v1/completions" || w.Authorization != nil || !strings.Contains(h, "X-Warmroute-Prefill: 1\r\n") || !strings.Contains(h, "X-Data-Parallel-Rank: 3\r\n") {
		t.Errorf("path %q, header %q", w.Path, h)
	}
}

// TestCopy_ARefusalIsNotRepeated: a worker that takes no copies, for they carry token ids
// and no client's credentials, is asked once, and its turns' warm-ups go on.
func TestCopy_ARefusalIsNotRepeated(t *testing.T) {
	for _, status := range []int{400, 401, 404} {
		withHead(t, 1, 16_000, func(g *rig, _ []uint32) {
			var asked atomic.Int64
			g.answer = func(context.Context) (Answer, error) { asked.Add(1); return Answer{Status: status}, nil }
			id := g.joinWorker()
			time.Sleep(time.Second)
			if len(g.prefill.Debug().Pauses) != 0 {
				t.Errorf("%d: warm-ups of turns are paused, too", status)
			}
			for range 10 { // it flaps
				g.router.SetHealth(id, false, "ill")
				g.prefill.Join(id)
				g.router.SetHealth(id, true, "")
				time.Sleep(time.Second)
			}
			if asked.Load() != 1 || g.warming(id) {
				t.Errorf("%d: asked %d times, warming %v", status, asked.Load(), g.warming(id))
			}
			time.Sleep(copyRefusal)
			g.prefill.Join(id)
			if time.Sleep(time.Second); asked.Load() > 2 {
				t.Errorf("%d: asked %d times", status, asked.Load())
			}
		})
	}
}

// TestCopy_NotToAWorkerThatTakesChatsOnly: what a turn's warm-up has learned holds.
func TestCopy_NotToAWorkerThatTakesChatsOnly(t *testing.T) {
	withHead(t, 1, 16_000, func(g *rig, _ []uint32) {
		g.prefill.chatOnly("w2")
		g.joinWorker()
		time.Sleep(time.Second)
		if s := g.sums(); s["sent_total join"] != 0 || s["copies_total skipped refused join"] != 1 {
			t.Errorf("counters %v", s)
		}
	})
}

// TestCopy_GivesWayToWhoCameAtTheLastMoment: a request that is routed between the last look
// and the booking yields before there is anything to yield.
func TestCopy_GivesWayToWhoCameAtTheLastMoment(t *testing.T) {
	withHead(t, 1, 16_000, func(g *rig, head []uint32) {
		g.answer = func(context.Context) (Answer, error) {
			t.Error("it was sent all the same")
			return Answer{}, errRefused
		}
		c := &copying{prefix: prefix{model: "m", tokens: head}, trigger: TriggerJoin, to: kv.WorkerRank{ID: "w1"}}
		var client *router.Lease
		outcome, reason, again := g.prefill.copy(g.ctx, c, func(*router.Outlook, float64) string {
			var err error
			if client, err = g.router.Route(g.ctx, &router.Request{Model: "m", Prompt: c.prompt(), Stream: true, PinRank: -1}); err != nil {
				t.Fatal(err)
			}
			g.prefill.Yield(client.Worker())
			return ""
		})
		if outcome != copyCancelled || reason != cutYield || !again {
			t.Errorf("the copy is %s %s, again %v", outcome, reason, again)
		}
		client.Done(noOutcome)
	})
}

// TestCopy_SaltsCount against the bytes that may be held: clients choose their length.
func TestCopy_SaltsCount(t *testing.T) {
	now, salt := time.Now(), kv.Namespace{Salt: strings.Repeat("s", 1<<20)}
	h, held := newHeads(1 << 20)
	for i := range uint64(5) {
		h.learn("m", asked(tokensOf(1, 640), i, salt), now)
	}
	if len(h.byKey) != 0 || *held != 0 {
		t.Errorf("%d heads with a salt above the cap, %d bytes", len(h.byKey), *held)
	}
	h, held = newHeads(1 << 24)
	for i := range uint64(5) {
		h.learn("m", asked(tokensOf(1, 640), i, salt), now)
	}
	if len(h.byKey) != 1 || *held < 1<<20 {
		t.Errorf("%d heads, %d bytes", len(h.byKey), *held)
	}
	if h.clear(); *held != 0 {
		t.Errorf("%d bytes are still held", *held)
	}
}
