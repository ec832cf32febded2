package testcluster

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

func TestRun_IsAFunctionOfItsInput(t *testing.T) {
	w := Agents(6, 4)
	for _, mode := range allModes {
		cfg := Config{Workers: 3, Mode: mode, Concurrency: 4, Stagger: 5 * time.Second, Seed: 4}
		a, b := mustRun(t, cfg, w), mustRun(t, cfg, w)
		if !slices.Equal(a.Rows, b.Rows) {
			t.Errorf("%s: two runs of one seed differ", mode)
		}
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		if string(x) != string(y) {
			t.Errorf("%s: two results of one seed differ:\n%s\n%s", mode, x, y)
		}
	}
}

// What the proxies know at the end is what the engines hold, evictions included, and
// no booking is left.
func TestRun_IndexEqualsTheEngines(t *testing.T) {
	for _, personality := range []sim.Personality{sim.VLLM, sim.SGLang} {
		cfg := Config{
			Workers: 3, Routers: 2, Concurrency: 6, Seed: 8,
			Engine: sim.EngineConfig{CapacityTokens: 90_000, Personality: personality},
		}.withDefaults()
		c, err := play(cfg, Agents(12, 8))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.workers {
			if w.engine.Stats().Evicted == 0 {
				t.Errorf("%s/%s: nothing was evicted", personality, w.rank)
			}
			truth := w.engine.Truth()
			for i, p := range c.proxies {
				n, _ := p.numbers.Lookup(w.rank)
				held := map[kv.SequenceHash]bool{}
				p.index.Exact(cfg.Engine.BlockSize).Dump(n, func(e kv.Event) bool {
					for _, h := range e.Hashes {
						held[h] = true
					}
					return true
				})
				for h := range truth {
					if !held[h] {
						t.Errorf("%s/%s: proxy %d misses a block", personality, w.rank, i)
						break
					}
				}
				if len(held) != len(truth) {
					t.Errorf("%s/%s: proxy %d knows %d blocks, the engine holds %d", personality, w.rank, i, len(held), len(truth))
				}
			}
		}
		for i, p := range c.proxies {
			for _, s := range p.router.Status() {
				if s.Inflight != 0 || s.BacklogTokens != 0 || s.KVTokens != 0 || s.HeldTokens != 0 {
					t.Errorf("%s: proxy %d ends with bookings on %s: %+v", personality, i, s.Worker, s)
				}
			}
		}
	}
}

// The measures of one conversation on one idle worker follow from the engine's profile
// by hand.
func TestRun_MeasuresOneConversation(t *testing.T) {
	w := chats("one", 1, 2, 1_024, Turn{InputTokens: 1_024, OutputTokens: 128}, 1)
	r := mustRun(t, Config{Workers: 1, Concurrency: 1, Seed: 1}, w)
	if r.Requests != 2 || r.PerWorker[0] != 2 || r.SameWorker != 1 || r.MaxOverMean != 1 {
		t.Fatalf("%+v", r)
	}
	first, second := r.Rows[0], r.Rows[1]
	// 2,048 tokens in one step of 8 ms + 256 ms.
	if first.TTFT != 264*time.Millisecond || first.CachedTokens != 0 {
		t.Errorf("first turn: TTFT %v, %d cached", first.TTFT, first.CachedTokens)
	}
	// Of 2,048 + 128 tokens all but the last block, whose last token has no KV yet.
	if second.PromptTokens != 3_200 || second.CachedTokens != 2_112 {
		t.Errorf("second turn: %d of %d tokens cached", second.CachedTokens, second.PromptTokens)
	}
	if want := 8*time.Millisecond + 136*time.Millisecond; second.TTFT != want {
		t.Errorf("second turn: TTFT %v, want %v", second.TTFT, want)
	}
	if want := float64(2_112) / (2_048 + 3_200); r.Reuse != want {
		t.Errorf("reuse %v, want %v", r.Reuse, want)
	}
	// 8 ms + 0.1 ms + 20 ns for each of about 2,112 and 3,264 tokens.
	if r.TPOT.Mean < 8.14e-3 || r.TPOT.Mean > 8.17e-3 {
		t.Errorf("TPOT %v", r.TPOT.Mean)
	}
	if r.InFlight[0] < 0.99 || r.InFlight[0] > 1 {
		t.Errorf("%v in flight", r.InFlight[0])
	}
}

func TestRun_OpenLoopSendsAtArrival(t *testing.T) {
	w := Siblings(5, 100, 10, 5, time.Second, 2)
	r := mustRun(t, Config{Workers: 2, Mode: router.ModeRoundRobin}, w)
	for i, q := range r.Rows {
		if q.Sent != time.Duration(i)*time.Second {
			t.Errorf("request %d sent at %v", i, q.Sent)
		}
	}
}

func TestRun_SaysWhatIsWrong(t *testing.T) {
	w := chats("too long", 1, 1, 0, Turn{InputTokens: 5_000, OutputTokens: 10}, 1)
	_, err := Run(Config{Workers: 1, Concurrency: 1, Engine: sim.EngineConfig{CapacityTokens: 1_024}}, w)
	if err == nil || !strings.Contains(err.Error(), "too long/kv at 0s: submit turn 0 of conversation") {
		t.Errorf("error %v", err)
	}
}
