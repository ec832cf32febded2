package prefill

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/warmroute/warmroute/internal/sim"
	"github.com/warmroute/warmroute/router"
	"github.com/warmroute/warmroute/router/kv"
)

// TestNative_RequestOfEachEngine: token ids and what else makes it a prefill, nothing that
// only a chat has, and what says where the prompt is stored.
func TestNative_RequestOfEachEngine(t *testing.T) {
	const chat = `{"model":"m","temperature":0.5,"messages":[{"role":"user","content":"hi"}],"tools":[],"vllm_xargs":{"a":[1]},"max_tokens":1,"id_slot":3,"lora_path":"x","cache_salt":null}`
	f := func(engine string, drafts bool, rank, path, want string) {
		t.Helper()
		form := form{native: natives[engine], tokens: 3, drafts: drafts}
		if got := string(form.request(nil, []byte(chat), []uint32{7, 0, 4294967295, 9}, rank)); got != want || form.native.path != path {
			t.Errorf("%s: %s %s\nwant %s %s", engine, form.native.path, got, path, want)
		}
	}
	f("vllm", false, "1", "/v1/completions", `{"prompt":[7,0,4294967295],"max_tokens":1,"temperature":0,"stream":false,"model":"m","vllm_xargs":{"a":[1]},"cache_salt":null}`)
	f("sglang", false, "", "/generate", `{"input_ids":[7,0,4294967295],"sampling_params":{"max_new_tokens":0,"temperature":0},"stream":false,"model":"m","lora_path":"x"}`)
	f("sglang", true, "2", "/generate", `{"input_ids":[7,0,4294967295],"sampling_params":{"max_new_tokens":1,"temperature":0},"stream":false,"routed_dp_rank":2,"model":"m","lora_path":"x"}`)
	f("llamacpp", false, "", "/completion", `{"prompt":[7,0,4294967295],"n_predict":0,"temperature":0,"stream":false,"model":"m","id_slot":3}`)
}

// TestNative_ChatWhereIDsDoNotSayAll: what may change where a prompt is stored, or cut it,
// or is not known here, keeps the warm-up a chat.
func TestNative_ChatWhereIDsDoNotSayAll(t *testing.T) {
	f := func(engine, extra string, ns kv.Namespace, want bool) {
		t.Helper()
		body := `{"model":"m","messages":[],"tools":[],"max_tokens":1` + extra + `}`
		if got := natives[engine].carries([]byte(body), ns); got != want {
			t.Errorf("%s %s %+v: %t", engine, extra, ns, got)
		}
	}
	f("vllm", `,"chat_template_kwargs":{},"top_p":1,"reasoning_effort":"low","documents":[]`, kv.Namespace{}, true)
	f("vllm", `,"cache_salt":"s"`, kv.Namespace{Salt: "s"}, true)
	f("vllm", ``, kv.Namespace{LoRA: "a"}, true) // the model's name says it
	f("vllm", `,"truncate_prompt_tokens":100`, kv.Namespace{}, false)
	f("vllm", `,"truncate_prompt_tokens":null`, kv.Namespace{}, true)
	f("vllm", `,"mm_processor_kwargs":{}`, kv.Namespace{}, false)
	f("vllm", `,"what_comes_next_year":1`, kv.Namespace{}, false)
	f("sglang", `,"extra_key":"s"`, kv.Namespace{}, false)
	f("sglang", `,"cache_salt":"s"`, kv.Namespace{Salt: "s"}, false)
	f("sglang", ``, kv.Namespace{LoRA: "a"}, false)
	f("llamacpp", `,"id_slot":1`, kv.Namespace{}, true)
}

// TestNative_RefusedIDsBecomeAChat: a worker that does not take token ids gets the chat at
// once, and for its later warm-ups the chat alone; another status is a failure like any.
func TestNative_RefusedIDsBecomeAChat(t *testing.T) {
	for _, c := range []struct {
		status int
		void   bool
		want   []string // paths of the warm-ups of two turns
	}{
		{200, true, []string{"/v1/completions", pathChat, pathChat}},
		{404, false, []string{"/v1/completions", pathChat, pathChat}},
		{405, false, []string{"/v1/completions", pathChat, pathChat}},
		{400, false, []string{"/v1/completions", pathChat, pathChat}},
		{500, false, []string{"/v1/completions", "/v1/completions"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, rigConfig{Thinking: true, Prefill: Config{Default: ModeOn}})
			defer g.close()
			g.mu.Lock()
			g.answer = func(context.Context) (Answer, error) {
				g.mu.Lock()
				defer g.mu.Unlock()
				if last := g.sent[len(g.sent)-1]; last.Path == pathChat {
					return Answer{Status: 200}, nil
				}
				return Answer{Status: c.status, Void: c.void}, nil
			}
			g.mu.Unlock()
			for _, name := range []string{"a", "b"} {
				chat := &chat{rig: g, name: name}
				chat.turn(say{User: someText(name, 400), Reasoning: someText(name+"r", 300), Reply: someText(name+"s", 800)})
				time.Sleep(20 * time.Second)
			}
			var paths []string
			for _, w := range g.warmups() {
				paths = append(paths, w.Path)
				if want := "X-Warmroute-Prefill: 1"; !strings.Contains(string(w.Header), want) || strings.Count(string(w.Header), "X-Request-Id") != 1 {
					t.Errorf("header %q", w.Header)
				}
			}
			if fmt.Sprint(paths) != fmt.Sprint(c.want) {
				t.Errorf("status %d: %v, want %v", c.status, paths, c.want)
			}
		})
	}
}

// TestNative_EnginesWithoutTheirOwnFormGetChats: nothing is known of a generic endpoint, and
// prompts that are known as text alone have no ids.
func TestNative_EnginesWithoutTheirOwnFormGetChats(t *testing.T) {
	for _, cfg := range []rigConfig{{Name: "openai"}, {NoTokens: true}} {
		synctest.Test(t, func(t *testing.T) {
			cfg.Thinking, cfg.Prefill = true, Config{Default: ModeOn}
			g := newRig(t, cfg)
			defer g.close()
			c := &chat{rig: g, name: "a"}
			c.turn(say{User: someText("u", 400), Reasoning: someText("r", 300), Reply: someText("s", 800)})
			time.Sleep(20 * time.Second)
			if sent := g.warmups(); len(sent) != 1 || sent[0].Path != pathChat {
				t.Errorf("%+v", sent)
			}
			c.turn(say{User: "next", Reasoning: "r", Reply: "s"})
			where := ""
			if cfg.NoTokens {
				where = whereBlocks
			}
			if n := testutil.ToFloat64(g.prefill.metrics.prefixes.WithLabelValues("true", where)); n != 1 {
				t.Errorf("%g true prefixes", n)
			}
		})
	}
}

// TestGain_ToTheBlock: what a worker holds anyway, by what is known of it.
func TestGain_ToTheBlock(t *testing.T) {
	one := kv.WorkerRank{ID: "w1"}
	ids := func(n int) []uint32 {
		out := make([]uint32, n)
		for i := range out {
			out[i] = uint32(i)
		}
		return out
	}
	f := func(what string, block int, feed string, overlap, prefix int, finished, reply []uint32, drafts bool, live, gained int, from string) {
		t.Helper()
		w := &plan{prompt: &kv.Prompt{Tokens: ids(2000), TokenCount: 2000}, prefix: prefix, exact: true, generated: -1}
		j := &job{c: &conversation{served: one, thought: true}}
		j.end = End{Prompt: &kv.Prompt{Tokens: finished, TokenCount: len(finished)}}
		j.end.Usage.CompletionTokens = len(reply)
		w.compare(&j.end, reply)
		v := gain(j, w, &router.Outlook{Worker: one, Coverage: feed, BlockSize: block, OverlapTokens: overlap, Drafts: drafts})
		if v.live != live || v.gain != gained || v.from != from {
			t.Errorf("%s: live %d, gain %d from %s; want %d, %d, %s", what, v.live, v.gain, v.from, live, gained, from)
		}
	}
	reply := ids(1000)[500:] // the reply as the next prompt has it
	other := append(ids(540)[500:], 9999, 9999)
	f("events are believed", 16, router.FeedComplete, 480, 1000, ids(500), nil, false, 480, 512, liveEvents)
	f("events are believed against ids", 16, router.FeedComplete, 320, 1000, ids(500), reply, false, 320, 672, liveEvents)
	f("no events, ids: all but the last token", 16, router.FeedNone, 0, 1000, ids(500), reply, false, 992, 0, liveGenerated)
	f("no events, ids: the last token's KV is not computed", 16, router.FeedNone, 0, 1010, ids(500), ids(1008)[500:], false, 992, 16, liveGenerated)
	f("no events, ids that differ: re-tokenised", 16, router.FeedNone, 0, 1000, ids(500), other, false, 528, 464, liveGenerated)
	f("events with gaps, ids", 16, router.FeedPartial, 480, 1000, ids(500), other, false, 528, 464, liveGenerated)
	f("events with gaps know more", 16, router.FeedPartial, 800, 1000, ids(500), other, false, 800, 192, liveEvents)
	f("no events, no ids, it reasoned", 16, router.FeedNone, 0, 1000, ids(500), nil, false, 496, 496, livePrompt)
	f("a large block of a hybrid", 528, router.FeedComplete, 528, 1000, ids(600), nil, false, 528, 0, liveEvents)
	f("… that grows by one", 528, router.FeedComplete, 528, 1100, ids(600), nil, false, 528, 528, liveEvents)
	f("drafts: the last block of both goes", 16, router.FeedComplete, 480, 1000, ids(500), nil, true, 464, 512, liveEvents)
	f("drafts: nothing held, one block less", 16, router.FeedComplete, 0, 1000, ids(500), nil, true, 0, 976, liveEvents)
	f("drafts and one block: of no use", 528, router.FeedComplete, 0, 600, ids(600), nil, true, 0, 0, liveEvents)
}

// TestCut_IsWhatAllRenderingsShare: less the last token, which the next text may change.
func TestCut_IsWhatAllRenderingsShare(t *testing.T) {
	exact := func(ids ...uint32) *kv.Prompt { return &kv.Prompt{Tokens: ids, TokenCount: len(ids)} }
	f := func(prefix int, sure bool, others ...*kv.Prompt) {
		t.Helper()
		w := &plan{prompt: exact(1, 2, 3, 4, 5, 6, 7), prefix: 7, exact: true}
		for _, q := range others {
			w.cut(q)
		}
		if w.prefix != prefix || w.exact != sure {
			t.Errorf("prefix %d, exact %t; want %d, %t", w.prefix, w.exact, prefix, sure)
		}
	}
	f(4, true, exact(1, 2, 3, 4, 5, 9, 9))
	f(2, true, exact(1, 2, 3, 4, 5, 9, 9), exact(1, 2, 3, 9))
	f(2, true, exact(1, 2, 3, 9), exact(1, 2, 3, 4, 5, 9, 9))
	f(0, true, exact(9))
	f(0, false, nil)
	f(0, false, exact(1, 2, 3, 4, 5, 9, 9), &kv.Prompt{Reason: "deadline"})
}

// TestGain_DraftsAsTheEngineHasIt: of an engine that drops the last block of each match the
// next turn finds what the gate promised, no more.
func TestGain_DraftsAsTheEngineHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, rigConfig{Thinking: true, Prefill: Config{Default: ModeOn}, Engine: sim.EngineConfig{Drafts: true}})
		defer g.close()
		c := &chat{rig: g, name: "a"}
		c.turn(say{User: someText("u", 400), Reasoning: someText("r", 300), Reply: someText("s", 800)})
		time.Sleep(20 * time.Second)
		o := c.turn(say{User: someText("v", 100), Reasoning: "r", Reply: "s"})
		w := g.prefill.Debug().Recent[0]
		if o.Cached != w.LiveTokens+w.GainTokens {
			t.Errorf("%d tokens cached, promised %d + %d", o.Cached, w.LiveTokens, w.GainTokens)
		}
	})
}

// TestWhollyExact_AnEnginesTokensAre: why they were not made here does not matter.
func TestWhollyExact_AnEnginesTokensAre(t *testing.T) {
	f := func(want bool, source kv.Source, reason string, count int) {
		t.Helper()
		if got := whollyExact(&kv.Prompt{Source: source, Reason: reason, Tokens: []uint32{1, 2}, TokenCount: count}); got != want {
			t.Errorf("%v, %q, 2 of %d tokens: %t", source, reason, count, got)
		}
	}
	f(true, kv.SourceLocal, "", 2)
	f(true, kv.SourceEngine, "no local tokens: tool_choice", 2)
	f(false, kv.SourceEngine, "tokens are those of an earlier turn", 3)
	f(false, kv.SourceLocal, "identity of the first 2 tokens: the rest takes more than 20ms", 2)
}
