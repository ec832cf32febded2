package prompt

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// withTemplate is a family's tokenizer with another chat template.
func withTemplate(t testing.TB, family, source string) *Model {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		raw, err := os.ReadFile(filepath.Join(families, family, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := LoadModel(dir)
	if err != nil {
		t.Fatal(err)
	}
	m.Now = goldenNow
	return m
}

// dump prints all that a template is given.
const dump = `{% for m in messages %}{{ m | tojson }};{% endfor %}{% if tools is not none %}tools={{ tools | tojson }};{% endif %}` +
	`{% if documents is not none %}documents={{ documents | tojson }};{% endif %}{% if add_generation_prompt %}>{% endif %}`

const (
	oneTool   = `{"type":"function","function":{"name":"a","parameters":{"type":"object"}}}`
	otherTool = `{"function":{"parameters":{},"strict":true,"name":"b","description":"B","extra":1},"more":2}`
)

// TestSGLang_Messages: what stands here is what SGLang's own types and functions made of
// the bodies, releases 0.5.22 and 0.5.23.
func TestSGLang_Messages(t *testing.T) {
	m := withTemplate(t, "qwen3", dump)
	f := func(body, want string) {
		t.Helper()
		for _, style := range []Style{StyleSGLang, styleSGLang22} {
			got, err := m.Render(openai.Chat, []byte(body), style)
			if err != nil || got != want {
				t.Errorf("%s: %v\n got %s\nwant %s", body, err, got, want)
			}
		}
	}
	const user = `{"role":"user","content":"x","name":"dropped"}`
	f(chat("", user), `{"role": "user", "content": "x"};>`)
	f(chat(`,"add_generation_prompt":false,"documents":[{"title":"a"}],"chat_template":"x"`, user), `{"role": "user", "content": "x"};>`)
	f(chat(`,"chat_template_kwargs":{"documents":[{"title":"a"}]}`, user), `{"role": "user", "content": "x"};documents=[{"title": "a"}];>`)
	f(chat("", `{"role":"System","name":"n","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, user),
		`{"role": "system", "content": "a b", "name": "n"};{"role": "user", "content": "x"};>`)
	f(chat("", user, `{"role":"assistant","content":null,"reasoning":"dropped","reasoning_content":"hm","tool_calls":[]}`, user),
		`{"role": "user", "content": "x"};{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": []};{"role": "user", "content": "x"};>`)

	// A reply at the end is the user's, with nothing but its text.
	f(chat("", user, `{"role":"assistant","content":"y","reasoning_content":"hm"}`), `{"role": "user", "content": "x"};{"role": "user", "content": "y"};>`)
	f(chat("", user, `{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}`), `{"role": "user", "content": "x"};{"role": "user", "content": ""};>`)
	f(chat(`,"continue_final_message":false`, user, `{"role":"assistant","content":[{"type":"text","text":"y"},{"type":"text","text":"z"}]}`),
		`{"role": "user", "content": "x"};{"role": "user", "content": "y z"};>`)
	// A continued one follows the prompt for a reply, whatever add_generation_prompt says.
	f(chat(`,"continue_final_message":true,"add_generation_prompt":false`, user, `{"role":"assistant","content":" y "}`), `{"role": "user", "content": "x"};> y `)
	f(chat(`,"continue_final_message":true`, user), `{"role": "user", "content": "x"};>`)

	call := func(arguments string) string {
		return `{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"arguments":` + arguments + `,"name":"f","more":1},"id":"c","more":1}]}`
	}
	called := func(arguments string) string {
		return `{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "index": null, "type": "function", "function": {"name": "f", "arguments": ` + arguments + `}}]};{"role": "user", "content": "x"};>`
	}
	f(chat("", call(`"{\"a\": 1.0, \"b\": 18446744073709551615, \"c\": 18446744073709551616, \"d\": -0, \"e\": 1E2}"`), user),
		called(`{"a": 1.0, "b": 18446744073709551615, "c": 1.8446744073709552e+19, "d": 0, "e": 100.0}`))
	f(chat("", call(`{"a":18446744073709551616}`), user), called(`{"a": 18446744073709551616}`))
	f(chat("", call(`null`), user), called(`null`))
	for _, bad := range []string{`""`, `"[]"`, `"null"`, `"{\"a\": NaN}"`, `"{\"a\": 1e999}"`, `"{} x"`, `1`} {
		if text, err := m.Render(openai.Chat, []byte(chat("", call(bad), user)), StyleSGLang); err == nil {
			t.Errorf("arguments %s: %s; SGLang answers 400", bad, text)
		}
	}
}

func TestSGLang_Tools(t *testing.T) {
	m := withTemplate(t, "qwen3", dump)
	f := func(style Style, fields, want string) {
		t.Helper()
		got, err := m.Render(openai.Chat, []byte(chat(fields, user)), style)
		if want = `{"role": "user", "content": "hi"};` + want + `>`; err != nil || got != want {
			t.Errorf("%s: %v\n got %s\nwant %s", fields, err, got, want)
		}
	}
	const (
		both  = `,"tools":[` + oneTool + `,` + otherTool + `]`
		one   = `{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}, "description": null}, "defer_loading": null}`
		other = `{"type": "function", "function": {"parameters": {}, "strict": true, "name": "b", "description": "B"}, "defer_loading": null}`
		one22 = `{"type": "function", "function": {"description": null, "name": "a", "parameters": {"type": "object"}, "strict": false}, "defer_loading": null}`
		named = `,"tool_choice":{"type":"function","function":{"name":"b"}}`
	)
	f(StyleSGLang, both, `tools=[`+one+`, `+other+`];`)
	f(StyleSGLang, both+`,"tool_choice":"required"`, `tools=[`+one+`, `+other+`];`)
	f(StyleSGLang, both+named, `tools=[`+other+`];`) // a named one alone
	f(StyleSGLang, both+`,"tool_choice":"none"`, ``)
	f(StyleSGLang, `,"tools":[]`, ``)
	f(StyleSGLang, `,"tools":[],"tool_choice":"auto"`, ``)
	f(styleSGLang22, `,"tools":[`+oneTool+`]`, `tools=[`+one22+`];`)
	if _, err := m.Render(openai.Chat, []byte(chat(`,"tools":[`+oneTool+`]`+named, user)), StyleSGLang); err == nil {
		t.Error("a named tool that is not there was rendered")
	}
	// vLLM's template sees all of them, also an empty list.
	const vllm = `{"type": "function", "function": {"name": "a", "description": null, "parameters": {"type": "object"}}}`
	got, err := m.Render(openai.Chat, []byte(chat(`,"tools":[`+oneTool+`],"tool_choice":{"type":"function","function":{"name":"zzz"}}`, user)), StyleVLLM)
	if err != nil || !strings.Contains(got, `tools=[`+vllm+`];`) {
		t.Errorf("vLLM: %v %s", err, got)
	}
	if got, err := m.Render(openai.Chat, []byte(chat(`,"tools":[]`, user)), StyleVLLM); err != nil || !strings.Contains(got, `tools=[];`) {
		t.Errorf("vLLM: %v %s", err, got)
	}

	// A template that cannot take whole tools is tried again with their functions.
	bare := withTemplate(t, "qwen3", `{% for t in tools %}{% if t.function is defined %}{{ raise_exception('whole') }}{% endif %}{{ t.name }};{% endfor %}`)
	if got, err := bare.Render(openai.Chat, []byte(chat(both, user)), StyleSGLang); err != nil || got != "a;b;" {
		t.Errorf("%q %v", got, err)
	}
	if got, err := bare.Render(openai.Chat, []byte(chat(both, user)), StyleVLLM); err == nil {
		t.Errorf("vLLM: %q", got)
	}
}

// TestSGLang_Parts: a list of parts reaches a template that has to do with media or loops
// over them; a string stays one, and a tool's answer is joined.
func TestSGLang_Parts(t *testing.T) {
	const parts = `[{"type":"text","text":"a"},{"type":"text","text":"b"}]`
	body := chat("", `{"role":"user","content":`+parts+`}`, `{"role":"tool","tool_call_id":"c","content":`+parts+`}`, `{"role":"assistant","content":`+parts+`}`)
	const joined = `{"role": "user", "content": "a b"};{"role": "tool", "content": "a b", "tool_call_id": "c"};{"role": "user", "content": "a b"};>`
	const list = `[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]`
	const whole = `{"role": "user", "content": ` + list + `};{"role": "tool", "tool_call_id": "c", "content": "a b"};{"role": "assistant", "content": ` + list + `};>`
	for source, want := range map[string]string{
		dump:                 joined,
		dump + `{# image #}`: whole,
		dump + `{% for message in messages %}{% for part in message.content %}{% endfor %}{% endfor %}`: whole,
		dump + `{% for turn in messages %}{% for part in turn.content %}{% endfor %}{% endfor %}`:       joined,
	} {
		m := withTemplate(t, "qwen3", source)
		got, err := m.Render(openai.Chat, []byte(body), StyleSGLang)
		if err != nil || got != want {
			t.Errorf("%s: %v\n got %s\nwant %s", source, err, got, want)
		}
		if got, err := m.Render(openai.Chat, []byte(chat("", user)), StyleSGLang); err != nil || got != `{"role": "user", "content": "hi"};>` {
			t.Errorf("%s: %v %s", source, err, got)
		}
	}
	m := withTemplate(t, "qwen3", dump)
	for _, part := range []string{`"a"`, `{"text":"a"}`, `{"type":"refusal","refusal":"a"}`, `{"type":"thinking","thinking":"a"}`} {
		if got, err := m.Render(openai.Chat, []byte(chat("", `{"role":"user","content":[`+part+`]}`)), StyleSGLang); err == nil {
			t.Errorf("part %s: %s", part, got)
		}
	}
}

// TestSGLang_ContinuedReplyIsTokenizedApart: also where one text would have other tokens,
// and without the token that begins a text.
func TestSGLang_ContinuedReplyIsTokenizedApart(t *testing.T) {
	for _, family := range []string{"qwen3", "llama3", "llama2", "gemma"} {
		b := localBuilder(t, Config{})
		m := loadFamily(t, family)
		b.cfg.Models.useAtOnce(family, m, StyleSGLang)
		for _, prefix := range []string{"Sure", " Sure, ", "\n\nSure", ""} {
			body := []byte(chat(`,"continue_final_message":true`, user, `{"role":"assistant","content":`+string(openai.AppendString(nil, prefix))+`}`))
			open, err := m.Tokenize(openai.Chat, []byte(chat("", user)), StyleSGLang)
			if err != nil {
				t.Fatal(err)
			}
			want := append(open, m.Encode(prefix)...)
			got, err := m.Tokenize(openai.Chat, body, StyleSGLang)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s, %q: %v %v, want %v", family, prefix, err, got, want)
			}
			p := b.Build(context.Background(), parse(t, openai.Chat, string(body)), body, nil, kv.Namespace{}, family)
			if p.Source != kv.SourceLocal || p.Reason != "" || !slices.Equal(p.Tokens, want) || !slices.Equal(p.Chain(2), kv.AppendSequenceHashes(nil, want, 2, p.Namespace.Seed())) {
				t.Errorf("%s, %q: source %v %q, %v, want %v", family, prefix, p.Source, p.Reason, p.Tokens, want)
			}
		}
	}
}

func TestStyle_At(t *testing.T) {
	for version, want := range map[string]Style{"0.5.23": StyleSGLang, "0.6.0": StyleSGLang, "": StyleSGLang, "main": StyleSGLang, "0.5.23.post1": StyleSGLang,
		"0.5.22": styleSGLang22, "0.5.12.post1": styleSGLang22, "0.5.13rc1": styleSGLang22, "0.5.11": styleSGLangOld, "0.4.9": styleSGLangOld} {
		if got := StyleOf("sglang").At(version); got != want {
			t.Errorf("%s: style %d, want %d", version, got, want)
		}
	}
	if StyleOf("vllm").At("0.5.1") != StyleVLLM {
		t.Error("a version of vLLM changes its style")
	}
}

// TestSGLang_ChecksFindEachDifference: an engine that treats one of SGLang's classes as
// vLLM does is found out by the comparison.
func TestSGLang_ChecksFindEachDifference(t *testing.T) {
	for _, c := range checksOf(StyleSGLang) {
		body := []byte(`{"model":"m",` + c.body)
		if _, err := loadFamily(t, "qwen3").Tokenize(c.class.kind(), body, StyleSGLang); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if why := loadFamily(t, "qwen3").inexact(parse(t, c.class.kind(), string(body)), body, StyleSGLang); why != "" {
			t.Errorf("%s asks for what is never made here: %s", c.name, why)
		}
	}
	m := withTemplate(t, "qwen3", dump)
	differ := map[string]bool{}
	for _, c := range checksOf(StyleSGLang) {
		body := []byte(`{"model":"m",` + c.body)
		ours, err := m.Render(c.class.kind(), body, StyleSGLang)
		theirs, vllmErr := m.Render(c.class.kind(), body, StyleVLLM)
		differ[c.name] = err == nil && (vllmErr != nil || ours != theirs)
	}
	for _, name := range []string{"a reply as the last message", "a continued reply", "an empty list of tools", "a named tool", "no tool to choose", "tools"} {
		if !differ[name] {
			t.Errorf("%s does not tell SGLang from vLLM: %v", name, differ)
		}
	}
	for _, style := range []Style{StyleVLLM, StyleSGLang} {
		e := &modelEngine{model: loadFamily(t, "qwen3"), style: style}
		withModels(t, ModelsConfig{}, e, func(m *Models) {
			m.Offer("m", filepath.Join(families, "qwen3"), StyleSGLang)
			synctest.Wait()
			if p := m.ask(t, "m", true); (p.Source == kv.SourceLocal) != (style == StyleSGLang) {
				t.Errorf("an engine of style %d: source %v: %s", style, p.Source, p.Reason)
			}
		})
	}
}
