package prompt

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

func parse(t testing.TB, kind openai.Kind, body string) *openai.Request {
	t.Helper()
	v := new(openai.Request)
	if err := openai.ParseRequest(kind, []byte(body), v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}

// formOf returns a body's canonical form with readable marks.
func formOf(t testing.TB, b *Builder, body string) *form {
	t.Helper()
	kind := openai.Chat
	if strings.Contains(body, `"prompt"`) {
		kind = openai.Completions
	}
	f := newForm(b.seeds)
	f.build(parse(t, kind, body), []byte(body), true, "m")
	return f
}

func readable(f *form) string {
	return strings.NewReplacer("\x01", "<", "\x02", "> ", "\x03", " #", "\x04", "=", "\x06", "tool ", "\x07", "[media]").Replace(string(f.text))
}

const (
	sys  = `{"role":"system","content":"be brief"}`
	user = `{"role":"user","content":"hi"}`
)

func chat(fields string, messages ...string) string {
	return `{"model":"m"` + fields + `,"messages":[` + strings.Join(messages, ",") + `]}`
}

func TestForm(t *testing.T) {
	b := New(Config{})
	f := func(body, want string) {
		t.Helper()
		if got := readable(formOf(t, b, body)); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", body, got, want)
		}
	}
	f(chat("", sys, user), `<system> be brief<user> hi`)
	f(chat(`,"tools":[{"type": "function", "function":{"name":"f","parameters":{"z":1,"a":[1.0, "é\u00e9\"\n"]}}}]`, user),
		`tool {"type":"function","function":{"name":"f","parameters":{"z":1,"a":[1.0,"éé\"\u000a"]}}}<user> hi`)
	f(chat(`,"chat_template_kwargs":{"b":{"y":1,"x":2},"a":true},"reasoning_effort":"high"`, user),
		` #chat_template_kwargs={"a":true,"b":{"x":2,"y":1}} #reasoning_effort="high"<user> hi`)
	f(chat(`,"chat_template_kwargs":{ },"documents":[],"tools":[],"reasoning_effort":null`, user), `<user> hi`)
	f(chat("", user, `{"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\": 1}"}}],"content":null,"role":"assistant","refusal":null,"annotations":[]}`,
		`{"role":"tool","tool_call_id":"c1","content":"42"}`),
		`<user> hi<assistant>  #tool_calls=[{"function":{"arguments":"{\"a\": 1}","name":"f"},"id":"c1"}]<tool> 42 #tool_call_id="c1"`)
	f(chat("", `{"role":"user","content":[{"type":"text","text":"a "},{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"b"}]}`), `<user> a [media]b`)
	f(`{"model":"m","prompt":"once\nupon"}`, "once\nupon")
	f(`{"model":"m","prompt":["once","twice"]}`, "once")
}

// equal and unequal compare the text of two bodies.
func compare(t *testing.T, b *Builder, x, y string, want bool) {
	t.Helper()
	if fx, fy := formOf(t, b, x), formOf(t, b, y); (string(fx.text) == string(fy.text)) != want {
		t.Errorf("equal is not %v:\n%s\n%s\n%s\n%s", want, x, y, readable(fx), readable(fy))
	}
}

func TestForm_WhatDoesNotRenderHasNoPart(t *testing.T) {
	b := New(Config{})
	base := chat("", sys, user)
	for _, fields := range []string{
		`,"temperature":0.3,"top_p":1,"seed":7,"n":2,"stop":["x"],"logprobs":true,"max_tokens":5,"logit_bias":{"1":2}`,
		`,"stream":true,"stream_options":{"include_usage":true},"user":"u","metadata":{"a":"b"},"prompt_cache_key":"k","cache_salt":"in the seed"`,
		`,"priority":1,"vllm_xargs":{"a":1},"nvext":{"agent_hints":{"speculative_prefill":true}},"rid":"r","return_token_ids":true,"service_tier":"auto"`,
		`,"tool_choice":"auto","response_format":{"type":"json_object"},"parallel_tool_calls":false`,
	} {
		compare(t, b, base, chat(fields, sys, user), true)
	}
	compare(t, b, base, "{\n \"messages\" : [ {\"content\":\"be br\\u0069ef\",\n\"role\":\"system\"} , {\"role\" : \"user\", \"content\":\"hi\", \"cache_control\":{}} ], \"model\":\"m\" }", true)
}

// TestFC32_UnknownFieldsLeaveTheIdentityAlone: what an engine reads and the template
// does not has no part in the prefix.
func TestFC32_UnknownFieldsLeaveTheIdentityAlone(t *testing.T) {
	b := New(Config{})
	long := strings.Repeat("tell me more. ", 200)
	msg := fmt.Sprintf(`{"role":"user","content":%q}`, long)
	plain := build(t, b, nil, chat("", msg))
	many := build(t, b, nil, chat(`,"a":1,"b":{"c":[null]},"vllm_xargs":{"x":1},"top_k":3,"min_p":0.1,"rid":"z","ignore_eos":true`, msg))
	if len(plain.Text) < 10 || fmt.Sprint(plain.Text) != fmt.Sprint(many.Text) {
		t.Errorf("%d and %d text blocks differ", len(plain.Text), len(many.Text))
	}
}

// TestFC37_ContentShapesAreEqual: a string, one text part and two give one identity.
func TestFC37_ContentShapesAreEqual(t *testing.T) {
	b := New(Config{})
	compare(t, b, chat("", sys, `{"role":"user","content":"hello"}`), chat("", sys, `{"role":"user","content":[{"type":"text","text":"hello"}]}`), true)
	compare(t, b, chat("", sys, `{"role":"user","content":"hello"}`), chat("", sys, `{"role":"user","content":[{"type":"text","text":"hel"},{"text":"lo","type":"text"}]}`), true)
	compare(t, b, chat("", sys, `{"role":"user","content":"hello"}`), chat("", sys, `{"role":"user","content":["hello"]}`), true)
	compare(t, b, chat("", sys, `{"role":"user","content":"hello"}`), chat("", sys, `{"role":"user","content":[{"type":"text","text":"hello","cache_control":{"type":"ephemeral"}}]}`), true)
	// Engines may join parts with a line end: tokens are never shared between shapes.
	keys := map[key]bool{}
	for _, content := range []string{`"hello"`, `["hello"]`, `["hel","lo"]`, `["hell","o"]`} {
		keys[formOf(t, b, chat("", `{"role":"user","content":`+content+`}`)).whole] = true
	}
	if len(keys) != 4 {
		t.Errorf("%d keys for 4 shapes", len(keys))
	}
}

// TestFC39_WhatRendersIsInTheKey: tools and template arguments part prefixes, and the
// overlap is what both render.
func TestFC39_WhatRendersIsInTheKey(t *testing.T) {
	b := New(Config{})
	tool := func(name string) string {
		return fmt.Sprintf(`{"type":"function","function":{"name":%q,"description":%q}}`, name, strings.Repeat("does things. ", 60))
	}
	long := fmt.Sprintf(`{"role":"user","content":%q}`, strings.Repeat("tell me more. ", 200))
	one := build(t, b, nil, chat(`,"tools":[`+tool("a")+`]`, sys, long))
	two := build(t, b, nil, chat(`,"tools":[`+tool("a")+`,`+tool("b")+`]`, sys, long))
	if n := common(one.Text, two.Text); n != 3 { // tool a is 846 bytes
		t.Errorf("tools {a} and {a,b} share %d blocks, want the 3 of tool a", n)
	}
	think := build(t, b, nil, chat(`,"chat_template_kwargs":{"enable_thinking":true}`, sys, long))
	dont := build(t, b, nil, chat(`,"chat_template_kwargs":{"enable_thinking":false}`, sys, long))
	if n := common(think.Text, dont.Text); n != 0 {
		t.Errorf("thinking and not thinking share %d blocks", n)
	}
	compare(t, b, chat(`,"chat_template_kwargs":{"a":1,"b":2}`, user), chat(`,"chat_template_kwargs":{ "b":2, "a":1 }`, user), true)
	compare(t, b, chat(`,"tools":[{"a":1,"b":2}]`, user), chat(`,"tools":[{"b":2,"a":1}]`, user), false)
	compare(t, b, chat(`,"reasoning_effort":"low"`, user), chat(`,"reasoning_effort":"high"`, user), false)
	compare(t, b, chat(`,"documents":[{"t":1}]`, user), chat("", user), false)
	compare(t, b, chat("", user), chat("", `{"role":"system","content":"hi"}`), false)
	compare(t, b, chat("", user, sys), chat("", sys, user), false)

	// What may render in some engine keeps tokens apart.
	keys := map[key]bool{}
	bodies := []string{"", `,"tool_choice":"none"`, `,"tool_choice":"auto"`, `,"response_format":{"type":"json_object"}`, `,"add_generation_prompt":false`,
		`,"continue_final_message":true`, `,"continue_final_message":false`}
	for _, fields := range bodies {
		keys[formOf(t, b, chat(fields, user)).whole] = true
	}
	for _, m := range []string{`{"role":"user","content":"hi","id":"1"}`, `{"role":"user","content":"hi","id":"2"}`, `{"role":"user"}`, `{"role":"user","content":""}`} {
		keys[formOf(t, b, chat("", m)).whole] = true
	}
	if len(keys) != len(bodies)+4 {
		t.Errorf("%d keys for %d renderings", len(keys), len(bodies)+4)
	}
}

// TestFC40_NonceLeavesLittleOverlap: a nonce at the start of the system text is
// reported as what it is, no shared prefix.
func TestFC40_NonceLeavesLittleOverlap(t *testing.T) {
	b := New(Config{})
	rest := strings.Repeat("You are a careful assistant. ", 100)
	var last *kv.Prompt
	for turn := range 30 {
		p := build(t, b, nil, chat("", fmt.Sprintf(`{"role":"system","content":"trace=%05x; %s"}`, turn*7919, rest), user))
		if last != nil {
			if n := common(last.Text, p.Text); n != 0 || len(p.Text) < 10 {
				t.Fatalf("turn %d shares %d of %d blocks", turn, n, len(p.Text))
			}
		}
		last = p
	}
}

// TestForm_NextTurnExtendsIt: the text chain of turn n is a prefix of that of turn n+1
// up to every boundary of turn n, and boundaries stay where they are.
func TestForm_NextTurnExtendsIt(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	b := New(Config{})
	for range 60 {
		fields := []string{"", `,"tools":[{"type":"function","function":{"name":"f"}}]`, `,"reasoning_effort":"low"`}[rng.IntN(3)]
		messages := []string{randomMessage(rng, "system")}
		var last *kv.Prompt
		for turn := range 6 {
			messages = append(messages, randomMessage(rng, []string{"user", "tool"}[rng.IntN(2)]))
			p := build(t, b, nil, chat(fields, messages...))
			if last != nil {
				if n := common(last.Text, p.Text); n != len(last.Text) {
					t.Fatalf("seed %d turn %d: %d of %d blocks shared", seed, turn, n, len(last.Text))
				}
				if n := len(last.TextBoundaries); n > 0 && !slices.Equal(p.TextBoundaries[:n], last.TextBoundaries) {
					t.Fatalf("seed %d turn %d: boundaries %v became %v", seed, turn, last.TextBoundaries, p.TextBoundaries)
				}
			}
			if n := len(p.TextBoundaries); len(p.Text) > 0 && (n == 0 || p.TextBoundaries[n-1] != len(p.Text)) || !slices.IsSorted(p.TextBoundaries) {
				t.Fatalf("seed %d turn %d: boundaries %v of %d blocks", seed, turn, p.TextBoundaries, len(p.Text))
			}
			last = p
			messages = append(messages, randomMessage(rng, "assistant"))
		}
	}
}

func randomMessage(rng *rand.Rand, role string) string {
	words := make([]string, rng.IntN(300))
	for i := range words {
		words[i] = []string{"prefix", "é", "\"quoted\"", "line\n", "😀", "\x01"}[rng.IntN(6)]
	}
	text, _ := json.Marshal(strings.Join(words, " "))
	extra := []string{"", `,"name":"n"`, `,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]`}[rng.IntN(3)]
	return fmt.Sprintf(`{"role":%q,"content":%s%s}`, role, text, extra)
}

func TestBuild_StopsBeforeTheFirstPlaceholder(t *testing.T) {
	b := New(Config{})
	long := fmt.Sprintf(`{"role":"system","content":%q}`, strings.Repeat("tell me more. ", 100))
	image := func(url string) string {
		return fmt.Sprintf(`{"role":"user","content":[{"type":"text","text":"what?"},{"type":"image_url","image_url":{"url":%q}}]}`, url)
	}
	text := build(t, b, nil, chat("", long, user))
	a := build(t, b, nil, chat("", long, image("a"), user, long))
	c := build(t, b, nil, chat("", long, image("c"), user, long))
	if len(a.Text) != 5 || fmt.Sprint(a.Text) != fmt.Sprint(c.Text) || common(a.Text, text.Text) != 5 || fmt.Sprint(a.TextBoundaries) != "[5]" {
		t.Errorf("%d blocks, boundaries %v", len(a.Text), a.TextBoundaries)
	}
	if want := "no tokenizer for this model and none on its workers; identity stops before the image, audio or file in messages[1]"; a.Reason != want {
		t.Errorf("reason %q, want %q", a.Reason, want)
	}
	if a.TokenCount < 2*1400/4+placeholderTokens || a.Source != kv.SourceText {
		t.Errorf("%d tokens of %v", a.TokenCount, a.Source)
	}
	if x, y := formOf(t, b, chat("", image("a"))), formOf(t, b, chat("", image("c"))); x.whole == y.whole {
		t.Error("two images share the key of tokens")
	}
	for _, part := range []string{`{"type":"input_audio","input_audio":{}}`, `{"type":"video_url"}`, `{"type":"file"}`, `{"type":"holo"}`, `{"image_url":{}}`} {
		if p := build(t, b, nil, chat("", `{"role":"user","content":[`+part+`]}`)); !strings.Contains(p.Reason, "messages[0]") {
			t.Errorf("%s: reason %q", part, p.Reason)
		}
	}
}

func TestBuild_ClientTokens(t *testing.T) {
	b := New(Config{})
	ids := make([]string, 200)
	for i := range ids {
		ids[i] = fmt.Sprint(i * 1000)
	}
	p := build(t, b, nil, `{"model":"m","prompt":[`+strings.Join(ids, ",")+`]}`)
	if p.Source != kv.SourceClient || p.Reason != "" || len(p.Tokens) != 200 || p.Tokens[3] != 3000 || p.TokenCount != 200 || len(p.Chain(64)) != 3 {
		t.Errorf("%+v", p)
	}
	if len(p.Text) != 3 || p.TextTokens(2) != 128 {
		t.Errorf("%d text blocks, 2 of them are %d tokens", len(p.Text), p.TextTokens(2))
	}
	p = build(t, b, nil, `{"model":"m","prompt":[[1,2],[3]]}`)
	if p.Source != kv.SourceClient || len(p.Tokens) != 2 || p.Reason != "identity of the first of 2 prompts" {
		t.Errorf("%+v", p)
	}
	p = build(t, b, nil, `{"model":"m","prompt":""}`)
	if p.Source != kv.SourceNone || p.Reason != "the prompt is empty" || p.TokenCount != 0 {
		t.Errorf("%+v", p)
	}
	p = build(t, b, nil, `{"model":"m","prompt_embeds":"AA"}`)
	if p.Source != kv.SourceNone || !strings.Contains(p.Reason, "embeddings") {
		t.Errorf("%+v", p)
	}
}

func TestBuild_NamespacesAndModelsAreApart(t *testing.T) {
	b := New(Config{})
	body := chat("", fmt.Sprintf(`{"role":"user","content":%q}`, strings.Repeat("tell me more. ", 100)))
	seen := map[kv.SequenceHash]string{}
	for _, c := range []struct {
		model string
		ns    kv.Namespace
	}{{"m", kv.Namespace{}}, {"n", kv.Namespace{}}, {"m", kv.Namespace{LoRA: "a"}}, {"m", kv.Namespace{Salt: "a"}}} {
		p := b.Build(context.Background(), parse(t, openai.Chat, body), []byte(body), nil, c.ns, c.model)
		if other, ok := seen[p.Text[0]]; ok {
			t.Errorf("%v and %s share text blocks", c, other)
		}
		seen[p.Text[0]] = fmt.Sprint(c)
		if p.Namespace != c.ns {
			t.Errorf("namespace %v, want %v", p.Namespace, c.ns)
		}
	}
}

// TestForm_DeepObjectsCostLittle: sorting nested objects must not take time quadratic
// in their depth.
func TestForm_DeepObjectsCostLittle(t *testing.T) {
	b := New(Config{})
	deep := strings.Repeat(`{"b":0,"a":`, 200) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("}", 200)
	f := formOf(t, b, chat(`,"chat_template_kwargs":`+deep, user))
	if len(f.text) < 1<<20 || len(f.members) != 0 || len(f.names) != 0 {
		t.Errorf("%d bytes, %d members left", len(f.text), len(f.members))
	}
}

func build(t testing.TB, b *Builder, src Source, body string) *kv.Prompt {
	t.Helper()
	kind := openai.Chat
	if strings.Contains(body, `"prompt`) {
		kind = openai.Completions
	}
	return b.Build(context.Background(), parse(t, kind, body), []byte(body), src, kv.Namespace{}, "m")
}

func common(a, b []kv.SequenceHash) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// TestForm_WideObjectsKeepTheirOrder: sorting them would cost more than it may gain.
func TestForm_WideObjectsKeepTheirOrder(t *testing.T) {
	b := New(Config{})
	for _, n := range []int{sortedMembers, sortedMembers + 1} {
		var members []string
		for i := range n {
			members = append(members, fmt.Sprintf(`"k%05d":1`, i))
		}
		up := `,"chat_template_kwargs":{` + strings.Join(members, ",") + `}`
		slices.Reverse(members)
		down := `,"chat_template_kwargs":{` + strings.Join(members, ",") + `}`
		compare(t, b, chat(up, user), chat(down, user), n <= sortedMembers)
	}
}
