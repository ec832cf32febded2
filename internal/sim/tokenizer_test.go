package sim

import (
	"encoding/json"
	"slices"
	"testing"
	"unicode/utf8"
)

func FuzzTokenizer_IsReversible(f *testing.F) {
	for _, s := range []string{"", "a", "four", "héllo wörld", "日本語", "<|im_start|>user<|im_sep|>hi<|im_end|>", "<|im_", "a<b<think>c", "\x00\x00\x00\x00", "tail\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return // JSON has no other strings
		}
		tokens := appendTokens(nil, s)
		if got := (vocabulary{}).decode(tokens); got != s {
			t.Errorf("%q comes back as %q", s, got)
		}
		if again := appendTokens(nil, (vocabulary{}).decode(tokens)); !slices.Equal(again, tokens) {
			t.Errorf("%q: %v, then %v", s, tokens, again)
		}
	})
}

func TestTokenizer_DecodesAnyID(t *testing.T) {
	for _, id := range []uint32{0, 1, 1 << 31, 0xF5 << 24, 0xF8 << 24, 0xFC << 24, specialTop<<24 | 1000, 1<<32 - 1} {
		appendDecoded(nil, id) // no panic; what it makes is of no meaning
	}
}

func chat(t *testing.T, body string) rendered {
	t.Helper()
	var r rendering
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatal(err)
	}
	return r.render(VLLM, false)
}

// TestTemplate_IsStableAtMessageBoundaries: a longer conversation starts with the
// tokens of the shorter one, up to where the model was asked to write.
func TestTemplate_IsStableAtMessageBoundaries(t *testing.T) {
	system := `{"role":"system","content":"be kind"}`
	user := `{"role":"user","content":[{"type":"text","text":"see "},{"type":"text","text":"this"},{"type":"image_url","image_url":{"url":"x"}}]}`
	call := `{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]}`
	tool := `{"role":"tool","tool_call_id":"1","content":"ok"}`
	tools := `"tools":[{"type":"function","function":{"name":"f"}}],`
	messages := system
	last := chat(t, `{`+tools+`"messages":[`+messages+`],"add_generation_prompt":false}`)
	for _, m := range []string{user, call, tool} {
		messages += "," + m
		next := chat(t, `{`+tools+`"messages":[`+messages+`],"add_generation_prompt":false}`)
		if len(next.tokens) <= len(last.tokens) || !slices.Equal(next.tokens[:len(last.tokens)], last.tokens) {
			t.Errorf("adding %s changes what stood before it", m)
		}
		open := chat(t, `{`+tools+`"messages":[`+messages+`]}`)
		if !slices.Equal(open.tokens[:len(next.tokens)], next.tokens) || (vocabulary{}).decode(open.tokens[len(next.tokens):]) != "<|im_start|>assistant<|im_sep|>" {
			t.Errorf("generation prompt after %s: %q", m, (vocabulary{}).decode(open.tokens[len(next.tokens):]))
		}
		last = next
	}
	text := (vocabulary{}).decode(last.tokens)
	want := `<|im_start|>system<|im_sep|><|tools|>{"type":"function","function":{"name":"f"}}` + "\n<|im_end|><|im_start|>system<|im_sep|>be kind<|im_end|><|im_start|>user<|im_sep|>see this"
	if text[:len(want)] != want {
		t.Errorf("rendered %q", text)
	}
	if want := `<tool_call>{"name":"f","arguments":{"a": 1}}</tool_call><|im_end|><|im_start|>tool<|im_sep|>ok<|im_end|>`; text[len(text)-len(want):] != want {
		t.Errorf("rendered %q", text)
	}
}

// TestReply_IsReadBackAsGenerated: the text of a reply turns into its tokens.
func TestReply_IsReadBackAsGenerated(t *testing.T) {
	for seed := range uint64(200) {
		r := replyPlan{seed: seed, max: 50, natural: 30}.write(someTokens(10, uint32(seed)))
		text := r.text(chContent, 0, len(r.tokens))
		want := r.tokens
		if r.finish == "stop" {
			want = want[:len(want)-1]
		}
		if got := appendTokens(nil, text); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %q is read as %v, generated were %v", seed, text, got, want)
		}
	}
}

// TestTemplate_SGLang: a trailing reply is the user's, a continued one follows the prompt
// for it, and only a tool that may be called is shown.
func TestTemplate_SGLang(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		var q genRequest
		if err := json.Unmarshal([]byte(body), &q); err != nil {
			t.Fatal(err)
		}
		r := q.rendering
		r.Tools = q.sglangTools()
		if got := (vocabulary{}).decode(r.render(SGLang, false).tokens); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
	const user, reply = `{"role":"user","content":"x"}`, `{"role":"assistant","content":"y"}`
	const x, open = "<|im_start|>user<|im_sep|>x<|im_end|>", "<|im_start|>assistant<|im_sep|>"
	f(`{"messages":[`+user+`,`+reply+`]}`, x+"<|im_start|>user<|im_sep|>y<|im_end|>"+open)
	f(`{"messages":[`+user+`,`+reply+`],"continue_final_message":true}`, x+open+"y")
	f(`{"messages":[`+user+`],"continue_final_message":true}`, x+open)
	const tools = `"tools":[{"function":{"name":"a"}},{"function":{"name":"b"}}]`
	f(`{"messages":[`+user+`],`+tools+`,"tool_choice":"none"}`, x+open)
	f(`{"messages":[`+user+`],`+tools+`,"tool_choice":{"function":{"name":"b"}}}`,
		`<|im_start|>system<|im_sep|><|tools|>{"function":{"name":"b"}}`+"\n<|im_end|>"+x+open)
}
