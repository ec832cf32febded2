package sim

import (
	"encoding/json"
	"strings"
	"testing"
)

// both runs a test against each personality.
func both(t *testing.T, cfg Config, f func(t *testing.T, s *Server)) {
	for _, like := range []Personality{VLLM, SGLang} {
		t.Run(string(like), func(t *testing.T) {
			c := cfg
			c.Like = like
			f(t, start(t, c))
		})
	}
}

const hello = `{"model":"sim","messages":[{"role":"user","content":"hello there, how are you today?"}],"max_tokens":40}`

// TestHTTP_ChatStreamsWhatItAnswersWhole: both ways of asking give one text.
func TestHTTP_ChatStreamsWhatItAnswersWhole(t *testing.T) {
	for _, template := range []string{"plain", "thinking"} {
		both(t, Config{Template: template, ReasoningTokens: 10}, func(t *testing.T, s *Server) {
			field := "reasoning"
			if s.cfg.Like == SGLang {
				field = "reasoning_content"
			}
			whole := post(t, s, "/v1/chat/completions", hello)
			if whole.status != 200 {
				t.Fatal(whole.raw)
			}
			events := sse(t, s, "/v1/chat/completions", strings.Replace(hello, "{", `{"stream":true,"stream_options":{"include_usage":true},`, 1))
			content, reasoning, finish := "", "", ""
			var usage any
			for i, e := range events {
				if i == len(events)-1 {
					if e != "[DONE]" {
						t.Fatalf("last event is %s", e)
					}
					break
				}
				v := parse(t, e)
				if i == 0 && dig(v, "choices.0.delta.role") != "assistant" {
					t.Errorf("first event is %s", e)
				}
				if c, ok := dig(v, "choices.0.delta.content").(string); ok {
					content += c
				}
				if c, ok := dig(v, "choices.0.delta."+field).(string); ok {
					reasoning += c
				}
				if f, ok := dig(v, "choices.0.finish_reason").(string); ok {
					finish += f
				}
				if u := dig(v, "usage"); u != nil {
					usage = u
					if len(v.(map[string]any)["choices"].([]any)) != 0 {
						t.Errorf("usage in an event with choices: %s", e)
					}
				}
			}
			if want := dig(whole.json, "choices.0.message.content"); content != want || content == "" {
				t.Errorf("streamed %q, whole %q", content, want)
			}
			wantReasoning, _ := dig(whole.json, "choices.0.message."+field).(string)
			if reasoning != wantReasoning || (template == "thinking") != (reasoning != "") {
				t.Errorf("streamed reasoning %q, whole %q", reasoning, wantReasoning)
			}
			if want := dig(whole.json, "choices.0.finish_reason"); finish != want || finish != "length" {
				t.Errorf("streamed finish %q, whole %q", finish, want)
			}
			if a, b := num(dig(usage, "completion_tokens")), num(dig(whole.json, "usage.completion_tokens")); a != 40 || b != 40 {
				t.Errorf("completion tokens: streamed %d, whole %d", a, b)
			}
		})
	}
}

func TestHTTP_UsageOnlyWhenAsked(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Server) {
		f := func(options string, want func(total int) int) {
			t.Helper()
			n, total := 0, 0
			for _, e := range sse(t, s, "/v1/chat/completions", strings.Replace(hello, "{", `{"stream":true`+options+`,`, 1)) {
				if e == "[DONE]" {
					continue
				}
				if total++; dig(parse(t, e), "usage") != nil {
					n++
				}
			}
			if n != want(total) {
				t.Errorf("%q: %d of %d events have usage, want %d", options, n, total, want(total))
			}
		}
		f("", func(int) int { return 0 })
		f(`,"stream_options":{"include_usage":false}`, func(int) int { return 0 })
		f(`,"stream_options":{"include_usage":true}`, func(int) int { return 1 })
		f(`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, func(total int) int { return total })
	})
}

// TestHTTP_SecondTurnFindsWhatTheFirstLeft: with the plain template the whole history,
// generated tokens included; with the thinking template what stands before the reply.
func TestHTTP_SecondTurnFindsWhatTheFirstLeft(t *testing.T) {
	for _, template := range []string{"plain", "thinking"} {
		both(t, Config{Template: template}, func(t *testing.T, s *Server) {
			k := &talk{t: t, s: s, messages: []map[string]any{{"role": "system", "content": strings.Repeat("be kind. ", 40)}}}
			first := k.turn(strings.Repeat("tell me a story. ", 20))
			if dig(first, "choices.0.finish_reason") != "stop" {
				t.Fatalf("first turn ends with %v", dig(first, "choices.0.finish_reason"))
			}
			prompt, output := num(dig(first, "usage.prompt_tokens")), num(dig(first, "usage.completion_tokens"))
			second := k.turn("go on")
			cached := num(dig(second, "usage.prompt_tokens_details.cached_tokens"))
			want := (prompt + output - 1) / 16 * 16
			if template == "thinking" {
				want = prompt / 16 * 16
			}
			if cached != want {
				t.Errorf("%d tokens cached, want %d of %d prompt and %d generated", cached, want, prompt, output)
			}
		})
	}
}

// TestHTTP_ToolLoopKeepsItsReasoning: inside a tool loop echoed reasoning stays in the
// prompt, so the KV that the model left is useful; the next user turn drops it.
func TestHTTP_ToolLoopKeepsItsReasoning(t *testing.T) {
	s := start(t, Config{Template: "thinking"})
	tools := `"tools":[{"type":"function","function":{"name":"search","parameters":{"type":"object"}}}]`
	ask := func(messages, choice string) map[string]any {
		r := post(t, s, "/v1/chat/completions", `{"model":"sim",`+tools+`,"tool_choice":"`+choice+`","messages":[`+messages+`]}`)
		if r.status != 200 {
			t.Fatal(r.raw)
		}
		return r.json
	}
	user := `{"role":"user","content":"` + strings.Repeat("look it up. ", 30) + `"}`
	first := ask(user, "required")
	if dig(first, "choices.0.finish_reason") != "tool_calls" {
		t.Fatalf("finish %v", dig(first, "choices.0.finish_reason"))
	}
	echo, _ := json.Marshal(dig(first, "choices.0.message"))
	id := dig(first, "choices.0.message.tool_calls.0.id").(string)
	tool := `{"role":"tool","tool_call_id":"` + id + `","content":"nothing found"}`
	second := ask(user+","+string(echo)+","+tool, "auto")
	all := num(dig(first, "usage.prompt_tokens")) + num(dig(first, "usage.completion_tokens")) - 1
	if got := num(dig(second, "usage.prompt_tokens_details.cached_tokens")); got != all/16*16 {
		t.Errorf("tool step: %d cached, want %d", got, all/16*16)
	}
	final, _ := json.Marshal(dig(second, "choices.0.message"))
	third := ask(user+","+string(echo)+","+tool+","+string(final)+`,{"role":"user","content":"thanks"}`, "auto")
	if got, want := num(dig(third, "usage.prompt_tokens_details.cached_tokens")), num(dig(first, "usage.prompt_tokens"))/16*16; got != want {
		t.Errorf("next user turn: %d cached, want %d", got, want)
	}
}

func TestHTTP_ToolCallsStream(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Server) {
		body := `{"model":"sim","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"search"}}],"tool_choice":{"type":"function","function":{"name":"search"}}`
		whole := post(t, s, "/v1/chat/completions", body+"}")
		args, name, finish := "", "", ""
		for _, e := range sse(t, s, "/v1/chat/completions", body+`,"stream":true}`) {
			if e == "[DONE]" {
				continue
			}
			v := parse(t, e)
			if n, ok := dig(v, "choices.0.delta.tool_calls.0.function.name").(string); ok {
				name += n
			}
			if a, ok := dig(v, "choices.0.delta.tool_calls.0.function.arguments").(string); ok {
				args += a
			}
			if f, ok := dig(v, "choices.0.finish_reason").(string); ok {
				finish = f
			}
		}
		if want := dig(whole.json, "choices.0.message.tool_calls.0.function.arguments"); args != want || !json.Valid([]byte(args)) {
			t.Errorf("streamed arguments %q, whole %q", args, want)
		}
		if name != "search" || finish != "tool_calls" {
			t.Errorf("name %q, finish %q", name, finish)
		}
	})
}

func TestHTTP_Completions(t *testing.T) {
	both(t, Config{}, func(t *testing.T, s *Server) {
		ask := func(prompt, more string) httpReply {
			r := post(t, s, "/v1/completions", `{"model":"sim","prompt":`+prompt+more+`}`)
			if r.status != 200 {
				t.Fatalf("%s: %s", prompt, r.raw)
			}
			return r
		}
		text := ask(`"once upon a time"`, "")
		if n := num(dig(text.json, "usage.completion_tokens")); n != 16 || len(dig(text.json, "choices.0.text").(string)) != 64 {
			t.Errorf("default max_tokens: %s", text.raw)
		}
		ids, _ := json.Marshal(appendTokens(nil, "once upon a time"))
		if got := dig(ask(string(ids), "").json, "choices.0.text"); got != dig(text.json, "choices.0.text") {
			t.Errorf("ids give %q, text %q", got, dig(text.json, "choices.0.text"))
		}
		many := ask(`["a","b"]`, `,"n":2,"max_tokens":3,"ignore_eos":true`)
		if n := len(many.json["choices"].([]any)); n != 4 || num(dig(many.json, "usage.completion_tokens")) != 12 || num(dig(many.json, "usage.prompt_tokens")) != 2 {
			t.Errorf("two prompts, two choices: %s", many.raw)
		}
		var streamed string
		for _, e := range sse(t, s, "/v1/completions", `{"prompt":"once upon a time","stream":true}`) {
			if e != "[DONE]" {
				streamed += dig(parse(t, e), "choices.0.text").(string)
			}
		}
		if streamed != dig(text.json, "choices.0.text") {
			t.Errorf("streamed %q, whole %q", streamed, dig(text.json, "choices.0.text"))
		}
		long := ask(`"x"`, `,"max_tokens":500,"ignore_eos":true`)
		if n := num(dig(long.json, "usage.completion_tokens")); n != 500 || dig(long.json, "choices.0.finish_reason") != "length" {
			t.Errorf("ignore_eos: %d tokens, %v", n, dig(long.json, "choices.0.finish_reason"))
		}
	})
}

// TestHTTP_TokenIDsAreWhatWasComputed: prompt and output ids of an answer make the next
// prompt, and equal what tokenize and render say.
func TestHTTP_TokenIDsAreWhatWasComputed(t *testing.T) {
	s := start(t, Config{})
	r := post(t, s, "/v1/chat/completions", strings.Replace(hello, "{", `{"return_token_ids":true,`, 1))
	tok := post(t, s, "/tokenize", hello)
	ren := post(t, s, "/v1/chat/completions/render", hello)
	ids, _ := json.Marshal(dig(r.json, "prompt_token_ids"))
	a, _ := json.Marshal(dig(tok.json, "tokens"))
	b, _ := json.Marshal(dig(ren.json, "token_ids"))
	if string(ids) != string(a) || string(ids) != string(b) || len(ids) < 10 {
		t.Errorf("engine %s\ntokenize %s\nrender %s", ids, a, b)
	}
	if n := num(dig(tok.json, "count")); n != num(dig(r.json, "usage.prompt_tokens")) {
		t.Errorf("tokenize counts %d, usage %v", n, dig(r.json, "usage.prompt_tokens"))
	}
	if n := len(dig(r.json, "choices.0.token_ids").([]any)); n != 40 {
		t.Errorf("%d output ids for 40 tokens", n)
	}
	outs, _ := json.Marshal(dig(r.json, "choices.0.token_ids"))
	back := post(t, s, "/detokenize", `{"tokens":`+string(outs)+`}`)
	if dig(back.json, "prompt") != dig(r.json, "choices.0.message.content") {
		t.Errorf("detokenize says %v, the answer %v", dig(back.json, "prompt"), dig(r.json, "choices.0.message.content"))
	}
	list := post(t, s, "/v1/completions/render", `{"model":"sim","prompt":["a","b"]}`)
	if !strings.HasPrefix(list.raw, "[") {
		t.Errorf("completions render: %s", list.raw)
	}
	var streamed, prompts int
	for _, e := range sse(t, s, "/v1/chat/completions", strings.Replace(hello, "{", `{"return_token_ids":true,"stream":true,`, 1)) {
		if e == "[DONE]" {
			continue
		}
		v := parse(t, e)
		if dig(v, "prompt_token_ids") != nil {
			prompts++
		}
		if l, ok := dig(v, "choices.0.token_ids").([]any); ok {
			streamed += len(l)
		}
	}
	if streamed != 40 || prompts != 1 {
		t.Errorf("stream has %d output ids and %d prompts", streamed, prompts)
	}
}

func TestHTTP_Errors(t *testing.T) {
	both(t, Config{MaxModelLen: 200, DPRanks: 2}, func(t *testing.T, s *Server) {
		f := func(path, body string, status int, want string, headers ...string) {
			t.Helper()
			r := post(t, s, path, body, headers...)
			message := dig(r.json, "error.message")
			if s.cfg.Like == SGLang {
				if message = dig(r.json, "message"); dig(r.json, "object") != "error" {
					t.Errorf("%s: not flat: %s", body, r.raw)
				}
			}
			text, _ := message.(string)
			if r.status != status || !strings.Contains(text, want) {
				t.Errorf("%s: status %d, %q; want %d, %q", body, r.status, text, status, want)
			}
		}
		chat := "/v1/chat/completions"
		f(chat, `{"messages":`, 400, "unexpected end")
		f(chat, `{"model":"sim","messages":"x"}`, 400, "messages")
		f(chat, `{"model":"sim","messages":[]}`, 400, "messages must not be empty")
		f(chat, `{"model":"sim","messages":[{"role":"user","content":[{"type":"smell"}]}]}`, 400, "smell")
		f(chat, strings.Replace(hello, "40", "4000", 1), 400, "maximum context length is 200 tokens")
		f(chat, strings.Replace(hello, "40", "-1", 1), 400, "max_tokens")
		f(chat, strings.Replace(hello, "{", `{"n":0,`, 1), 400, "n must be")
		f(chat, strings.Replace(hello, "{", `{"min_tokens":9000000000000000000,`, 1), 400, "min_tokens")
		f(chat, strings.Replace(hello, "{", `{"min_tokens":-1,`, 1), 400, "min_tokens")
		f("/v1/completions", `{"model":"sim","n":128,"prompt":[`+strings.Repeat(`"a",`, 200000)+`"b"]}`, 503, "queue is full")
		f(chat, hello, 400, "out of range", "X-Data-Parallel-Rank", "2")
		f("/v1/completions", `{"model":"sim"}`, 400, "prompt")
		f("/v1/completions", `{"model":"sim","prompt":""}`, 400, "empty")
		f("/tokenize", `{"model":"sim"}`, 400, "prompt")
		f(chat, "x", 400, "Unsupported Media Type", "Content-Type", "text/plain")
		if s.cfg.Like == VLLM {
			f(chat, strings.Replace(hello, `"sim"`, `"other"`, 1), 404, "`other` does not exist")
			f("/tokenize", `{"model":"other","prompt":"x"}`, 404, "does not exist")
		}
		if r := post(t, s, "/nowhere", "{}"); r.status != 404 {
			t.Errorf("unknown path: %d", r.status)
		}
		if r := get(t, s, chat); r.status != 405 {
			t.Errorf("GET on a POST path: %d", r.status)
		}
	})
}

func TestHTTP_APIKeyGuardsV1Only(t *testing.T) {
	s := start(t, Config{APIKey: "secret"})
	if r := post(t, s, "/v1/chat/completions", hello); r.status != 401 || r.raw != `{"error":"Unauthorized"}` {
		t.Errorf("without key: %d %s", r.status, r.raw)
	}
	if r := post(t, s, "/v1/chat/completions", hello, "Authorization", "Bearer secret"); r.status != 200 {
		t.Errorf("with key: %d %s", r.status, r.raw)
	}
	if r := post(t, s, "/tokenize", hello); r.status != 200 {
		t.Errorf("tokenize is not under /v1: %d", r.status)
	}
}

func TestHTTP_VLLMShapes(t *testing.T) {
	s := start(t, Config{Adapters: []string{"ad"}, Engine: EngineConfig{CapacityTokens: 1605}})
	if r := get(t, s, "/health"); r.status != 200 || r.raw != "" {
		t.Errorf("health: %d %q", r.status, r.raw)
	}
	if r := get(t, s, "/version"); r.raw != `{"version":"0.26.0"}` {
		t.Errorf("version: %s", r.raw)
	}
	m := get(t, s, "/v1/models").json
	if dig(m, "data.0.id") != "sim" || dig(m, "data.0.root") != "sim" || num(dig(m, "data.0.max_model_len")) != 1600 ||
		dig(m, "data.0.owned_by") != "vllm" || dig(m, "data.1.id") != "ad" || dig(m, "data.1.parent") != "sim" {
		t.Errorf("models: %v", m)
	}
	post(t, s, "/v1/chat/completions", hello)
	metrics := get(t, s, "/metrics").raw
	for _, want := range []string{
		`vllm:num_requests_running{model_name="sim",engine="0"} 0`,
		`vllm:generation_tokens_total{model_name="sim",engine="0"} 40`,
		`vllm:time_to_first_token_seconds_count{model_name="sim",engine="0"} 1`,
		`vllm:inter_token_latency_seconds_count{model_name="sim",engine="0"} 39`,
		`vllm:request_success_total{model_name="sim",engine="0",finished_reason="length"} 1`,
		`block_size="16",num_gpu_blocks="100"`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s in\n%s", want, metrics)
		}
	}
	if r := post(t, s, "/reset_prefix_cache", ""); r.raw != `{"success":true}` || s.Stats(0).CachedBlocks != 0 {
		t.Errorf("reset: %s, %d blocks", r.raw, s.Stats(0).CachedBlocks)
	}
	if r := get(t, s, "/server_info"); r.status != 404 {
		t.Errorf("server_info is SGLang's: %d", r.status)
	}
	if r := post(t, s, "/v1/tokenize", hello); r.status != 404 {
		t.Errorf("/v1/tokenize is SGLang's: %d", r.status)
	}
}

func TestHTTP_SGLangShapes(t *testing.T) {
	s := start(t, Config{Like: SGLang, Engine: EngineConfig{CapacityTokens: 1600}})
	tok := post(t, s, "/v1/tokenize", hello)
	if num(dig(tok.json, "count")) != num(dig(post(t, s, "/v1/chat/completions", hello).json, "usage.prompt_tokens")) {
		t.Errorf("tokenize: %s", tok.raw)
	}
	// A prompt without hit has no cached_tokens; a repeated one has.
	cached := func() any {
		return dig(post(t, s, "/v1/completions", `{"prompt":"`+strings.Repeat("again and ", 30)+`"}`).json, "usage.prompt_tokens_details.cached_tokens")
	}
	if a, b := cached(), cached(); a != nil || num(b) < 16 {
		t.Errorf("cached_tokens %v, then %v", a, b)
	}
	info := get(t, s, "/server_info").json
	if num(dig(info, "max_total_num_tokens")) != 1600 || num(dig(info, "page_size")) != 16 || dig(info, "kv_events") != nil || dig(info, "version") == nil {
		t.Errorf("server_info: %v", info)
	}
	if r := get(t, s, "/model_info"); dig(r.json, "model_path") != "sim" {
		t.Errorf("model_info: %s", r.raw)
	}
	before := s.Stats(0).Finished
	if r := get(t, s, "/health"); r.status != 200 || s.Stats(0).Finished != before+1 {
		t.Errorf("health: %d, %d generations", r.status, s.Stats(0).Finished-before)
	}
	g := post(t, s, "/generate", `{"input_ids":[1,2,3,4,5],"sampling_params":{"max_new_tokens":0}}`)
	if num(dig(g.json, "meta_info.prompt_tokens")) != 5 || num(dig(g.json, "meta_info.completion_tokens")) != 0 {
		t.Errorf("generate: %s", g.raw)
	}
	if r := get(t, s, "/flush_cache"); r.status != 200 || s.Stats(0).CachedBlocks != 0 {
		t.Errorf("flush: %d %s", r.status, r.raw)
	}
	if m := get(t, s, "/metrics").raw; !strings.Contains(m, "sglang:max_total_num_tokens") {
		t.Errorf("metrics: %s", m)
	}
	// A trailing assistant message is read as the user's.
	same := func(role string) string {
		r := post(t, s, "/tokenize", `{"messages":[{"role":"user","content":"a"},{"role":"`+role+`","content":"b"}]}`)
		return r.raw
	}
	if same("assistant") != same("user") {
		t.Error("trailing assistant message is not rewritten")
	}
}

func TestHTTP_SwitchesHideWhatEnginesHide(t *testing.T) {
	both(t, Config{HideCached: true, NoTokenize: true}, func(t *testing.T, s *Server) {
		r := post(t, s, "/v1/chat/completions", hello)
		if d, ok := r.json["usage"].(map[string]any)["prompt_tokens_details"]; !ok || d != nil {
			t.Errorf("usage: %s", r.raw)
		}
		for _, path := range []string{"/tokenize", "/v1/tokenize", "/v1/chat/completions/render"} {
			if r := post(t, s, path, hello); r.status != 404 {
				t.Errorf("%s: %d", path, r.status)
			}
		}
	})
}

func TestHTTP_NamespacesAreIsolated(t *testing.T) {
	s := start(t, Config{Adapters: []string{"x", "y"}})
	long := strings.Repeat("a long enough prompt ", 20)
	ask := func(model, salt string) int {
		r := post(t, s, "/v1/completions", `{"model":"`+model+`","cache_salt":"`+salt+`","prompt":"`+long+`"}`)
		return num(dig(r.json, "usage.prompt_tokens_details.cached_tokens"))
	}
	for _, n := range [][2]string{{"sim", ""}, {"x", ""}, {"y", ""}, {"sim", "t1"}, {"sim", "t2"}, {"x", "t1"}} {
		if first, second := ask(n[0], n[1]), ask(n[0], n[1]); first != 0 || second < 96 {
			t.Errorf("%v: %d cached at first, %d then", n, first, second)
		}
	}
}

func TestHTTP_ImagesAreIdentifiedByTheirContent(t *testing.T) {
	s := start(t, Config{})
	ask := func(url string) int {
		r := post(t, s, "/v1/chat/completions", `{"model":"sim","max_tokens":2,"messages":[{"role":"user","content":[{"type":"text","text":"what is this?"},{"type":"image_url","image_url":{"url":"`+url+`"}},{"type":"text","text":"`+strings.Repeat("describe it. ", 10)+`"}]}]}`)
		if r.status != 200 {
			t.Fatal(r.raw)
		}
		return num(dig(r.json, "usage.prompt_tokens_details.cached_tokens"))
	}
	if a, b, c := ask("data:a"), ask("data:a"), ask("data:b"); a != 0 || b < 80 || c != 0 {
		t.Errorf("first %d, same image %d, other image %d cached", a, b, c)
	}
}

func TestHTTP_DPRanksHaveTheirOwnCaches(t *testing.T) {
	both(t, Config{DPRanks: 3}, func(t *testing.T, s *Server) {
		ask := func(rank string) int {
			r := post(t, s, "/v1/completions", `{"prompt":"`+strings.Repeat("ranks apart ", 20)+`"}`, "X-Data-Parallel-Rank", rank)
			n := num(dig(r.json, "usage.prompt_tokens_details.cached_tokens"))
			return max(n, 0)
		}
		if a, b, c := ask("2"), ask("1"), ask("2"); a != 0 || b != 0 || c < 48 {
			t.Errorf("rank 2: %d, rank 1: %d, rank 2 again: %d cached", a, b, c)
		}
		if s.Stats(0).Finished != 0 || s.Stats(1).Finished != 1 || s.Stats(2).Finished != 2 {
			t.Errorf("ranks finished %d, %d, %d", s.Stats(0).Finished, s.Stats(1).Finished, s.Stats(2).Finished)
		}
		bad := post(t, s, "/v1/completions", `{"prompt":"x"}`, "X-Data-Parallel-Rank", "one")
		if want := map[Personality]int{VLLM: 200, SGLang: 400}[s.cfg.Like]; bad.status != want {
			t.Errorf("rank that is no number: %d, want %d", bad.status, want)
		}
		if s.cfg.Like == SGLang {
			before := s.Stats(1).Finished
			post(t, s, "/v1/completions", `{"prompt":"x","routed_dp_rank":1}`)
			if s.Stats(1).Finished != before+1 {
				t.Error("routed_dp_rank is not followed")
			}
		}
	})
}
