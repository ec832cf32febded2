package prompt

import (
	"bytes"
	"errors"
	"strings"

	"github.com/warmroute/warmroute/internal/openai"
)

// effect is what a request field that may change the prompt's tokens does to them.
type effect uint8

const (
	noEffect effect = iota // the engine has no such field, or does not read it for the prompt
	inTokens               // it is rendered as the engine does
	barred                 // where its rule finds a reason, no tokens are made here
)

// fieldRules are the fields of chat and completion requests that change the prompt's
// tokens in vLLM or SGLang, or look as if they did, and what becomes of them here. Sources:
// vLLM's entrypoints/openai/{chat_completion,completion}/protocol.py, renderers/{params,
// online_renderer,hf}.py; SGLang's entrypoints/openai/{protocol,serving_chat}.py, 0.5.12 to
// 0.5.23. Fields of sampling and output are not listed.
var fieldRules = [...]struct {
	name         string
	vllm, sglang effect
	why          func(q *question) string // says why a refused one is, "" where it need not be
}{
	{"messages", inTokens, inTokens, nil}, // images, audio and files end the identity: errMedia
	{"prompt", inTokens, inTokens, nil},   // the first of several
	{"prompt_embeds", barred, noEffect, whereTrue(func(q *question) bool { return q.req.PromptEmbeds }, "embeddings have no tokens")},
	{"input_ids", noEffect, barred, wherePresent(func(t *openai.Request) openai.Span { return t.Template.InputIDs }, "the request brings its own tokens")},
	{"tools", inTokens, barred, (*question).types},
	{"functions", noEffect, noEffect, nil},
	{"tool_choice", barred, inTokens, (*question).noTool},
	{"parallel_tool_calls", noEffect, noEffect, nil},
	{"response_format", noEffect, noEffect, nil},
	{"documents", inTokens, noEffect, nil},
	{"chat_template", barred, noEffect, wherePresent(func(t *openai.Request) openai.Span { return t.Template.ChatTemplate }, "the request brings its own chat template")},
	{"chat_template_kwargs", barred, barred, (*question).kwargs},
	{"reasoning_effort", barred, barred, (*question).effort},
	{"reasoning", noEffect, barred, wherePresent(func(t *openai.Request) openai.Span { return t.Template.Reasoning }, "versions of SGLang differ in what they make of it")},
	{"thinking", noEffect, barred, (*question).thinking},
	{"enable_thinking", noEffect, noEffect, nil},
	{"add_generation_prompt", inTokens, noEffect, nil},
	{"continue_final_message", inTokens, inTokens, nil},
	{"add_special_tokens", inTokens, noEffect, nil},
	{"truncate_prompt_tokens", barred, noEffect, wherePresent(func(t *openai.Request) openai.Span { return t.Template.TruncatePromptTokens }, "the engine cuts the prompt by its own length")},
	{"truncation_side", noEffect, noEffect, nil}, // read with the one above
	{"suffix", barred, barred, (*question).suffix},
	{"echo", noEffect, noEffect, nil},
	{"session_params", noEffect, barred, wherePresent(func(t *openai.Request) openai.Span { return t.Template.SessionParams }, "the prompt goes on with a session's")},
	{"kv_transfer_params", barred, noEffect, (*question).transferred},
	{"mm_processor_kwargs", noEffect, noEffect, nil}, // of media
	{"cache_salt", noEffect, noEffect, nil},          // in the hashes
	{"lora_path", noEffect, noEffect, nil},           // other weights, the same tokens
	{"skip_reading_prefix_cache", noEffect, noEffect, nil},
}

// question is one request that wants local tokens.
type question struct {
	m     *Model
	req   *openai.Request
	body  []byte
	style Style
}

// inexact says why tokens that are made here might not be those of the engine, "" where
// nothing speaks against them.
func (m *Model) inexact(req *openai.Request, body []byte, style Style) string {
	q := &question{m, req, body, style}
	for i := range fieldRules {
		f := &fieldRules[i]
		effect := f.vllm
		if style.sglang() {
			effect = f.sglang
		}
		if effect != barred {
			continue
		}
		if why := f.why(q); why != "" {
			return f.name + ": " + why
		}
	}
	if style == styleSGLangOld {
		return q.uncertain()
	}
	return ""
}

// Exact returns why this process would not make the tokens of a request itself, nil where
// it would.
func (m *Model) Exact(kind openai.Kind, body []byte, style Style) error {
	var req openai.Request
	if err := openai.ParseRequest(kind, body, &req); err != nil {
		return err
	}
	if why := m.inexact(&req, body, style); why != "" {
		return errors.New(why)
	}
	return nil
}

func whereTrue(is func(q *question) bool, why string) func(q *question) string {
	return func(q *question) string {
		if is(q) {
			return why
		}
		return ""
	}
}

func wherePresent(at func(req *openai.Request) openai.Span, why string) func(q *question) string {
	return whereTrue(func(q *question) bool { return at(q.req).Present() }, why)
}

// noTool: vLLM keeps the tools of a request that may call none, unless it was started with
// --exclude-tools-when-tool-choice-none.
func (q *question) noTool() string {
	if q.req.Template.Tools.Present() && string(q.req.Template.ToolChoice.Of(q.body)) == `"none"` {
		return "whether the tools stay is a flag of the engine"
	}
	return ""
}

// engineNames are arguments of transformers' apply_chat_template and of its rendering that
// engines set themselves: one in chat_template_kwargs replaces theirs, or loses to it, or
// is an error, by version.
var engineNames = [...]string{
	"chat_template", "messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "tokenize", "padding",
	"truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs",
}

func (q *question) kwargs() string {
	for _, name := range engineNames {
		if q.hasKwarg(name) {
			return name + " in it is the engine's own"
		}
	}
	t := &q.req.Template
	if q.style.sglang() {
		return ""
	}
	if t.Documents.Present() && q.hasKwarg("documents") || t.ReasoningEffort.Present() && q.hasKwarg("reasoning_effort") {
		return "it repeats a field of the request: versions of vLLM differ in which wins"
	}
	return ""
}

func (q *question) hasKwarg(name string) bool {
	s := q.req.Template.Kwargs
	if !s.Present() || !bytes.Contains(s.Of(q.body), []byte(name)) && bytes.IndexByte(s.Of(q.body), '\\') < 0 {
		return false
	}
	var r openai.Reader
	r.Reset(q.body, s)
	if r.Peek() != '{' {
		return false
	}
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		if string(key) == name {
			return true
		}
		r.Skip()
	}
	return false
}

// types: newer SGLang rewrites types such as "int" and "varchar" in a tool's schema, older
// ones refuse or pass them.
func (q *question) types() string {
	s := q.req.Template.Tools
	if !s.Present() {
		return ""
	}
	var r openai.Reader
	r.Reset(q.body, s)
	if r.Peek() == '[' {
		r.Array()
		for r.Elem() {
			if err := standardTypes(&r, true); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}

// standardTypes fails where a schema, or the tool around it, may hold a type that is none
// of JSON Schema's.
func standardTypes(r *openai.Reader, tool bool) error {
	switch r.Peek() {
	case '{':
		r.Object()
		for key, ok := r.Key(); ok; key, ok = r.Key() {
			if kind := string(key); kind == "type" && !tool && (r.Peek() == '"' || r.Peek() == '[') {
				if err := standardType(r); err != nil {
					return err
				}
			} else if err := standardTypes(r, false); err != nil {
				return err
			}
		}
	case '[':
		r.Array()
		for r.Elem() {
			if err := standardTypes(r, false); err != nil {
				return err
			}
		}
	default:
		r.Skip()
	}
	return r.Err()
}

// standardType reads one type or a list of them. What is no list of types, an enum's
// values say, fails too.
func standardType(r *openai.Reader) error {
	if r.Peek() == '[' {
		r.Array()
		for r.Elem() {
			if err := standardType(r); err != nil {
				return err
			}
		}
		return r.Err()
	}
	if r.Peek() == '"' {
		switch raw, _ := r.String(); string(raw) {
		case "string", "number", "integer", "boolean", "object", "array", "null":
			return r.Err()
		}
	}
	return errors.New("a tool's parameters have a type that is none of JSON Schema's")
}

// effort: newer versions of both engines also switch thinking on or off by the effort.
func (q *question) effort() string {
	if !q.req.Template.ReasoningEffort.Present() {
		return ""
	}
	for _, name := range [...]string{"enable_thinking", "thinking", "low_effort"} {
		if !q.style.sglang() && name != "enable_thinking" {
			continue
		}
		if !q.hasKwarg(name) && q.m.reads(name) {
			return "whether it also sets the template's " + name + " depends on the engine's version"
		}
	}
	return ""
}

func (q *question) thinking() string {
	if q.req.Template.Thinking.Present() && q.m.reads("thinking_mode") {
		return "it may set the template's thinking_mode"
	}
	return ""
}

func (q *question) suffix() string {
	if s := q.req.Template.Suffix; s.Present() && string(s.Of(q.body)) != `""` {
		return "how the prompt is made of it is the engine's"
	}
	return ""
}

// transferred: vLLM takes a prefill's tokens for the prompt's own.
func (q *question) transferred() string {
	if s := q.req.Template.KVTransfer; s.Present() && (bytes.Contains(s.Of(q.body), []byte(`"prompt_token_ids"`)) || bytes.IndexByte(s.Of(q.body), '\\') >= 0) {
		return "the request brings its own tokens"
	}
	return ""
}

// uncertain says what versions of SGLang that cannot be compared do in ways of their own.
func (q *question) uncertain() string {
	const why = ": versions of SGLang before 0.5.12 differ in it, and have no endpoint to compare with"
	if q.req.Kind == openai.Completions {
		return ""
	}
	last := &q.req.Messages[len(q.req.Messages)-1]
	switch {
	case q.req.Tools:
		return "tools" + why
	case strings.EqualFold(last.Role, "assistant"):
		return "a reply as the last message" + why
	case q.m.reads("reasoning_effort"):
		return "reasoning_effort" + why
	}
	for i := range q.req.Messages {
		if m := &q.req.Messages[i]; m.Role == "tool" || m.Role == "assistant" && m.Other {
			return "tool calls and reasoning" + why
		}
	}
	return ""
}

// reads tells whether a chat template may read a variable of that name: it holds the name,
// but not as a part of a longer one, a member or a string.
func (m *Model) reads(name string) bool {
	for _, t := range m.tok.Config().ChatTemplates {
		for rest := t.Source; ; {
			at := strings.Index(rest, name)
			if at < 0 {
				break
			}
			var before, after byte
			if at > 0 {
				before = rest[at-1]
			}
			if rest = rest[at+len(name):]; rest != "" {
				after = rest[0]
			}
			if !wordByte(before) && !strings.ContainsRune(`.'"`, rune(before)) && !wordByte(after) {
				return true
			}
		}
	}
	return false
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
