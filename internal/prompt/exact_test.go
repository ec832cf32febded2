package prompt

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/router/kv"
)

// fieldCase is a request with one field, and what becomes of it: "same" tokens as without,
// "other" ones, or "refused".
type fieldCase struct{ field, vllm, sglang string }

// names is what the reason of a refused one says.
func (c fieldCase) names(field string) string {
	switch {
	case field == "prompt_embeds":
		return "embeddings"
	case strings.Contains(c.field, `"chat_template_kwargs":{"reasoning_effort"`):
		return "chat_template_kwargs: "
	}
	return field + ": "
}

var fieldCases = map[string][]fieldCase{
	"messages":                  {{``, "same", "same"}},
	"prompt":                    {{`"prompt":"x"`, "same", "same"}}, // of a chat
	"prompt_embeds":             {{`"prompt_embeds":"AA"`, "refused", "refused"}},
	"input_ids":                 {{`"input_ids":[1,2]`, "same", "refused"}},
	"tools":                     {{`"tools":[` + oneTool + `]`, "other", "other"}, {`"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"type":"int"}}}}}]`, "other", "refused"}},
	"functions":                 {{`"functions":[{"name":"f"}]`, "same", "same"}},
	"tool_choice":               {{`"tools":[` + oneTool + `],"tool_choice":"none"`, "refused", "same"}, {`"tools":[` + oneTool + `],"tool_choice":"auto"`, "other", "other"}, {`"tool_choice":"none"`, "same", "same"}},
	"parallel_tool_calls":       {{`"parallel_tool_calls":false`, "same", "same"}},
	"response_format":           {{`"response_format":{"type":"json_object"}`, "same", "same"}},
	"documents":                 {{`"documents":[{"title":"a"}]`, "other", "same"}},
	"chat_template":             {{`"chat_template":"x"`, "refused", "same"}},
	"chat_template_kwargs":      {{`"chat_template_kwargs":{"a":1}`, "other", "other"}, {`"chat_template_kwargs":{"chat_template":"x"}`, "refused", "refused"}, {`"chat_template_kwargs":{"chat\u005ftemplate":"x"}`, "refused", "refused"}, {`"chat_template_kwargs":{"messages":[]}`, "refused", "refused"}, {`"chat_template_kwargs":{"add_generation_prompt":false}`, "refused", "refused"}, {`"documents":[],"chat_template_kwargs":{"documents":[{"a":"b"}]}`, "refused", "other"}},
	"reasoning_effort":          {{`"reasoning_effort":"low"`, "refused", "refused"}, {`"reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":true}`, "other", "other"}, {`"reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high","enable_thinking":true}`, "refused", "other"}},
	"reasoning":                 {{`"reasoning":{"effort":"low"}`, "same", "refused"}},
	"thinking":                  {{`"thinking":{"type":"enabled"}`, "same", "refused"}},
	"enable_thinking":           {{`"enable_thinking":true`, "same", "same"}},
	"add_generation_prompt":     {{`"add_generation_prompt":false`, "other", "same"}},
	"continue_final_message":    {{`"continue_final_message":true,"add_generation_prompt":false`, "other", "same"}}, // of a user's message
	"add_special_tokens":        {{`"add_special_tokens":true`, "other", "same"}},
	"truncate_prompt_tokens":    {{`"truncate_prompt_tokens":3`, "refused", "same"}, {`"truncate_prompt_tokens":null`, "same", "same"}},
	"truncation_side":           {{`"truncation_side":"left"`, "same", "same"}},
	"suffix":                    {{`"suffix":"x"`, "refused", "refused"}, {`"suffix":""`, "same", "same"}},
	"echo":                      {{`"echo":true`, "same", "same"}},
	"session_params":            {{`"session_params":{"id":"a"}`, "same", "refused"}},
	"kv_transfer_params":        {{`"kv_transfer_params":{"prompt_token_ids":[1]}`, "refused", "same"}, {`"kv_transfer_params":{"do_remote_prefill":true}`, "same", "same"}},
	"mm_processor_kwargs":       {{`"mm_processor_kwargs":{"a":1}`, "same", "same"}},
	"cache_salt":                {{`"cache_salt":"s"`, "same", "same"}},
	"lora_path":                 {{`"lora_path":"a"`, "same", "same"}},
	"skip_reading_prefix_cache": {{`"skip_reading_prefix_cache":true`, "same", "same"}},
}

// TestExact_EveryField: each field of the table is rendered, without effect or refused, as
// the table says, and a refused one names itself in the prompt's reason.
func TestExact_EveryField(t *testing.T) {
	m := withTemplate(t, "llama3", `{{ '<|begin_of_text|>' if bos else '' }}`+dump+`{{ a }}{{ reasoning_effort }}{{ enable_thinking }}{{ thinking_mode }}`)
	b := localBuilder(t, Config{})
	for _, style := range []Style{StyleVLLM, StyleSGLang} {
		name := fmt.Sprint("style-", style)
		b.cfg.Models.useAtOnce(name, m, style)
		plain, err := m.Tokenize(openai.Chat, []byte(chat("", user)), style)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range fieldRules {
			cases := fieldCases[rule.name]
			if len(cases) == 0 {
				t.Errorf("%s has no case", rule.name)
			}
			for _, c := range cases {
				want := c.vllm
				if style.sglang() {
					want = c.sglang
				}
				body := chat(","+c.field, user)
				if c.field == "" {
					body = chat("", user)
				}
				p := b.Build(context.Background(), parse(t, openai.Chat, body), []byte(body), nil, kv.Namespace{}, name)
				got := "other"
				switch {
				case p.Source != kv.SourceLocal && (strings.HasPrefix(p.Reason, "no local tokens: ") || rule.name == "prompt_embeds") && strings.Contains(p.Reason, c.names(rule.name)):
					got = "refused"
				case p.Source != kv.SourceLocal:
					got = p.Reason
				case idsHash(p.Tokens) == idsHash(plain):
					got = "same"
				}
				if got != want {
					t.Errorf("style %d, %s: %s, want %s", style, c.field, got, want)
				}
			}
		}
	}
}

// TestExact_OldSGLang: what its versions without an endpoint to compare with differ in is
// left alone.
func TestExact_OldSGLang(t *testing.T) {
	m := withTemplate(t, "qwen3", dump)
	for body, want := range map[string]string{
		chat("", user):                                                             "",
		chat(`,"tools":[`+oneTool+`]`, user):                                       "tools: ",
		chat("", user, `{"role":"assistant","content":"y"}`):                       "a reply as the last message: ",
		chat("", user, `{"role":"assistant","content":"y","reasoning":"r"}`, user): "tool calls and reasoning: ",
		chat("", user, `{"role":"tool","tool_call_id":"c","content":"y"}`):         "tool calls and reasoning: ",
	} {
		if got := m.inexact(parse(t, openai.Chat, body), []byte(body), styleSGLangOld); want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

// TestArguments_ArePythons: json.loads takes NaN, and what is beyond this reader's bounds is
// an error rather than none.
func TestArguments_ArePythons(t *testing.T) {
	m := withTemplate(t, "qwen3", `{{ messages[0].tool_calls[0].function.arguments | tojson }}`)
	render := func(arguments string) (string, error) {
		return m.Render(openai.Chat, []byte(chat("", `{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":`+
			string(openai.AppendString(nil, arguments))+`}}]}`)), StyleVLLM)
	}
	for in, want := range map[string]string{
		`{"a": NaN, "b": Infinity, "c": [-Infinity]}`: `{"a": NaN, "b": Infinity, "c": [-Infinity]}`,
		"{\"a\": 1}\u0085":                            `{}`, "{\"a\": 1} \t\r\n": `{"a": 1}`, `{"a": nan}`: `{}`, `{"a": 1`: `{}`, ``: `{}`,
	} {
		if got, err := render(in); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{strings.Repeat("[", 300) + strings.Repeat("]", 300), `{"a": ` + strings.Repeat("9", 5000) + `}`} {
		if got, err := render(in); err == nil {
			t.Errorf("%.20s…: %q", in, got)
		}
	}
}

// TestContinued_IsTrimmedAsPython does it: str.rstrip takes Unicode's white space and the
// four separators.
func TestContinued_IsTrimmedAsPython(t *testing.T) {
	m := withTemplate(t, "qwen3", `{% for m in messages %}{{ m.content | trim }}<|im_end|>{% endfor %}`)
	for _, space := range []string{" ", "\u3000", "\u0085", "\u001c", "\u001f", "\u2028", "\u00a0", "\v"} {
		body := chat(`,"continue_final_message":true,"add_generation_prompt":false`, `{"role":"assistant","content":`+string(openai.AppendString(nil, "a"+space))+`}`)
		if got, err := m.Render(openai.Chat, []byte(body), StyleVLLM); err != nil || got != "a" {
			t.Errorf("%q: %q %v", space, got, err)
		}
	}
	body := chat(`,"continue_final_message":true`, `{"role":"assistant","content":"a\u200b"}`) // no space to Python
	if got, err := m.Render(openai.Chat, []byte(body), StyleVLLM); err != nil || got != "a\u200b" {
		t.Errorf("%q %v", got, err)
	}
}
