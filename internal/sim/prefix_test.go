package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/prompt"
)

// ids prints n token ids of the toy vocabulary from the given one on.
func ids(from, n int) string {
	list := make([]int, n)
	for i := range list {
		list[i] = from + i
	}
	b, _ := json.Marshal(list)
	return string(b)
}

// TestHTTP_PrefixOfTokenIDsIsStored: a prompt of token ids that ends on a block's edge is
// stored whole, by the least request that each engine takes.
func TestHTTP_PrefixOfTokenIDsIsStored(t *testing.T) {
	f := func(like Personality, path, body, cached string, more func(n int) string, drafts bool, want int) {
		t.Helper()
		s := start(t, Config{Like: like, Engine: EngineConfig{BlockSize: 16, Drafts: drafts}})
		if r := post(t, s, path, body); r.status != 200 {
			t.Fatalf("%s: %d %s", path, r.status, r.raw)
		}
		r := post(t, s, path, more(100))
		if got := num(dig(r.json, cached)); r.status != 200 || got != want {
			t.Errorf("%s: %d tokens cached, want %d: %s", like, got, want, r.raw)
		}
	}
	vllm := func(n int) string { return fmt.Sprintf(`{"model":"sim","prompt":%s,"max_tokens":1}`, ids(1000, n)) }
	sglang := func(n int) string {
		return fmt.Sprintf(`{"input_ids":%s,"sampling_params":{"max_new_tokens":0}}`, ids(1000, n))
	}
	f(VLLM, "/v1/completions", vllm(64), "usage.prompt_tokens_details.cached_tokens", vllm, false, 64)
	f(SGLang, "/generate", sglang(64), "meta_info.cached_tokens", sglang, false, 64)
	f(VLLM, "/v1/completions", vllm(64), "usage.prompt_tokens_details.cached_tokens", vllm, true, 48)
	f(VLLM, "/v1/completions", vllm(63), "usage.prompt_tokens_details.cached_tokens", vllm, false, 48)
}

func TestHTTP_EnginesTellOfDrafts(t *testing.T) {
	s := start(t, Config{Engine: EngineConfig{Drafts: true}})
	if m := get(t, s, "/metrics"); !strings.Contains(m.raw, "\nvllm:spec_decode_num_drafts_total{") {
		t.Error(m.raw)
	}
	s = start(t, Config{Like: SGLang, Engine: EngineConfig{Drafts: true}})
	if m := get(t, s, "/server_info"); dig(m.json, "speculative_algorithm") != "EAGLE" {
		t.Error(m.raw)
	}
}

// TestHTTP_RealModelReasonsAndCalls: with a real tokenizer a reply has reasoning and tool
// calls in their own fields, and what it generated is how the model would write them.
func TestHTTP_RealModelReasonsAndCalls(t *testing.T) {
	m, err := prompt.LoadModel("../tokenizer/testdata/qwen3")
	if err != nil {
		t.Fatal(err)
	}
	both(t, Config{Model: m, Template: "thinking"}, func(t *testing.T, s *Server) {
		const tools = `"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}],"tool_choice":"required"`
		body := `{"model":"sim","messages":[{"role":"user","content":"hi"}],` + tools + `,"return_token_ids":true,"max_tokens":900`
		whole := post(t, s, "/v1/chat/completions", body+"}").json
		message := dig(whole, "choices.0.message")
		reasoning, _ := dig(message, "reasoning").(string)
		if reasoning == "" {
			reasoning, _ = dig(message, "reasoning_content").(string)
		}
		args, _ := dig(message, "tool_calls.0.function.arguments").(string)
		if reasoning == "" || !json.Valid([]byte(args)) || dig(message, "tool_calls.0.function.name") != "look" {
			t.Fatalf("%v", message)
		}
		var streamed string
		for _, e := range sse(t, s, "/v1/chat/completions", body+`,"stream":true}`) {
			if e != "[DONE]" {
				piece, _ := dig(parse(t, e), "choices.0.delta.tool_calls.0.function.arguments").(string)
				streamed += piece
			}
		}
		if streamed != args {
			t.Errorf("streamed arguments %q, whole %q", streamed, args)
		}
		if s.cfg.Like == VLLM {
			var ids []uint32
			for _, id := range dig(whole, "choices.0.token_ids").([]any) {
				ids = append(ids, uint32(num(id)))
			}
			want := "<think>\n" + reasoning + "\n</think>\n\n<tool_call>\n" + callText("look", args) + "\n</tool_call>"
			if got := m.Decode(ids); !strings.HasPrefix(got, want) {
				t.Errorf("generated %q, want %q", got, want)
			}
		}
		text := post(t, s, "/v1/completions", `{"model":"sim","prompt":"hello","max_tokens":8}`).json
		if got, _ := dig(text, "choices.0.text").(string); !strings.Contains(got, " ") || strings.ContainsRune(got, 0xfffd) {
			t.Errorf("a completion of %q", got)
		}
	})
}
