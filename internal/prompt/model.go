package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/warmroute/warmroute/internal/jinja"
	"github.com/warmroute/warmroute/internal/openai"
	"github.com/warmroute/warmroute/internal/tokenizer"
)

// Model is the tokenizer and the chat template of one model, read from its directory. It
// renders and tokenises like the engines do. Safe for concurrent use.
type Model struct {
	// Now is the clock of templates that print the date; nil is time.Now.
	Now func() time.Time

	dir      string
	id       uint64 // tells models apart in the caches
	tok      *tokenizer.Tokenizer
	template *jinja.Template
	tools    *jinja.Template // for requests with tools, where the model has another
	parts    bool            // SGLang hands lists of parts to the template
	before   []uint32        // what the post-processor puts before a text: BOS
	after    []uint32        // and behind it
}

// LoadModel reads tokenizer.json, the chat template and what belongs to them from dir.
// Errors name the component that is not supported.
func LoadModel(dir string) (*Model, error) {
	tok, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	m := &Model{dir: dir, id: maphash.String(modelSeed, dir), tok: tok}
	c := tok.Config()
	for _, t := range c.ChatTemplates {
		parsed, err := jinja.Parse(t.Source)
		if err != nil {
			return nil, fmt.Errorf("chat template %q of %s: %w", t.Name, dir, err)
		}
		switch t.Name {
		case "default":
			m.template, m.parts = parsed, sglangParts(t.Source, parsed)
		case "tool_use":
			m.tools = parsed
		}
	}
	m.before, m.after = tok.Frame()
	return m, nil
}

var modelSeed = maphash.MakeSeed()

var errNoTemplate = errors.New("the model has no chat template")

// rendering is the memory of one rendering.
type rendering struct {
	c    converter
	text []byte
	stop func() bool // ends a rendering that takes too long; nil is never
}

var renderings = sync.Pool{New: func() any { return new(rendering) }}

// keepRendered bounds what a rendering keeps for the next request.
const keepRendered = 4 << 20

func (r *rendering) free() {
	if cap(r.text)+cap(r.c.text) > keepRendered {
		return
	}
	r.c = converter{text: r.c.text[:0]}
	r.text, r.stop = r.text[:0], nil
	renderings.Put(r)
}

// grow makes room for a text of about n bytes at once: what grows by and by takes five
// times its bytes.
func (r *rendering) grow(n int, body []byte) {
	r.text = slices.Grow(r.text, n+n/16+4096)
	if bytes.IndexByte(body, '\\') >= 0 {
		r.c.text = slices.Grow(r.c.text, n)
	}
}

// render appends the prompt's text to r.text.
func (m *Model) render(r *rendering, req *openai.Request, body []byte, style Style) error {
	err := m.renderText(r, req, body, style)
	if err == nil && (!utf8.Valid(r.text) || !utf8.ValidString(r.c.prefix)) {
		err = errNotUTF8
	}
	return err
}

// errNotUTF8 is what engines say of lone surrogates too, in their own words.
var errNotUTF8 = errors.New("the prompt is not valid UTF-8")

func (m *Model) renderText(r *rendering, req *openai.Request, body []byte, style Style) error {
	if req.Kind == openai.Completions {
		s := req.Prompt
		if !s.Present() {
			return errors.New("the prompt is no text")
		}
		r.text = openai.Unescape(r.text, body[s.Start+1:s.End-1])
		return nil
	}
	r.c.style, r.c.body, r.c.req = style, body, req
	tools, some, err := r.c.tools(false)
	if err != nil {
		return err
	}
	template := m.template
	if some && m.tools != nil {
		template = m.tools
	}
	if template == nil {
		return errNoTemplate
	}
	if r.c.parts = template.ReadsParts(); style.sglang() {
		r.c.parts = m.parts
	}
	vars, err := m.vars(&r.c, tools)
	if err != nil {
		return err
	}
	env := &jinja.Env{Now: m.Now, MaxSteps: maxSteps, MaxOutput: maxOutput(body), Stop: r.stop}
	text, err := template.Render(r.text, vars, env)
	if err != nil && some && style.sglang() { // SGLang tries it again with bare functions
		if tools, _, err = r.c.tools(true); err != nil {
			return err
		}
		vars.Set("tools", tools)
		text, err = template.Render(r.text, vars, env)
	}
	if r.text = text; err == nil && r.c.continued() && !style.sglang() {
		r.text, err = cutContinued(r.text)
	}
	return err
}

// maxSteps bounds a rendering. A thousand messages take about 15,000 steps, in the two real
// templates whose work is quadratic about 550,000; a step takes 60 to 300 ns.
const maxSteps = 600_000

// maxOutput bounds a rendering's text: templates print little beside what a body holds.
func maxOutput(body []byte) int { return 4*len(body) + 1<<20 }

// vars are the template's variables in the order of transformers' apply_chat_template.
func (m *Model) vars(c *converter, tools jinja.Value) (*jinja.Dict, error) {
	t := &c.req.Template
	d := jinja.NewDict(16)
	for _, s := range m.tok.Config().SpecialTokens {
		d.Set(s.Name, jinja.String(s.Text))
	}
	if err := c.into(d, "reasoning_effort", t.ReasoningEffort); err != nil {
		return nil, err
	}
	if err := c.members(d, t.Kwargs); err != nil {
		return nil, err
	}
	messages, err := c.messages()
	if err != nil {
		return nil, err
	}
	d.Set("messages", messages)
	d.Set("tools", tools)
	if _, ok := d.Get("documents"); !ok {
		d.Set("documents", jinja.None())
	}
	if c.style.sglang() { // its chat requests have neither documents nor this
		d.Set("add_generation_prompt", jinja.Bool(true))
		return d, nil
	}
	if err := c.into(d, "documents", t.Documents); err != nil {
		return nil, err
	}
	generate := string(t.AddGenerationPrompt.Of(c.body)) != "false"
	d.Set("add_generation_prompt", jinja.Bool(generate && !c.continued()))
	return d, nil
}

// continued tells whether the reply goes on with the last message.
func (c *converter) continued() bool {
	return string(c.req.Template.ContinueFinalMessage.Of(c.body)) == "true"
}

// continueTag marks where the last message's text ends, as transformers does it: the
// prompt is cut there, whatever the template puts behind a message.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// cutContinued cuts a rendering at its tag. A template that trims the message lost the
// space at the tag's end, and with it what else it trims.
func cutContinued(text []byte) ([]byte, error) {
	bare := bytes.TrimRight([]byte(continueTag), " ")
	at := bytes.LastIndex(text, bare)
	if at < 0 {
		return text, errors.New("continue_final_message: the template does not print the last message")
	}
	if bytes.HasPrefix(text[at:], []byte(continueTag)) {
		return text[:at], nil
	}
	return bytes.TrimRightFunc(text[:at], pythonSpace), nil
}

// pythonSpace tells what Python's str.strip removes: Unicode's white space and the four
// separators U+001C to U+001F.
func pythonSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// Tokenize returns the token ids of a request's prompt as an engine of that style has
// them. Errors do not quote the prompt, except what a template raises.
func (m *Model) Tokenize(kind openai.Kind, body []byte, style Style) ([]uint32, error) {
	var ids []uint32
	err := m.rendered(kind, body, style, func(req *openai.Request, text []byte, prefix string) {
		before, after := m.frame(req, body, style)
		ids = append(m.tok.Encode(append(ids, before...), text), after...)
		ids = m.appendPrefix(ids, prefix)
	})
	return ids, err
}

// Render returns the text of a request's prompt.
func (m *Model) Render(kind openai.Kind, body []byte, style Style) (text string, err error) {
	err = m.rendered(kind, body, style, func(_ *openai.Request, b []byte, prefix string) { text = string(b) + prefix })
	return text, err
}

// rendered calls f with a request and its prompt's text, which is valid during the call;
// prefix is the part of it that is tokenised apart.
func (m *Model) rendered(kind openai.Kind, body []byte, style Style, f func(req *openai.Request, text []byte, prefix string)) error {
	var req openai.Request
	if err := openai.ParseRequest(kind, body, &req); err != nil {
		return err
	}
	r := renderings.Get().(*rendering)
	defer r.free()
	if err := m.render(r, &req, body, style); err != nil {
		return err
	}
	f(&req, r.text, r.c.prefix)
	return nil
}

// Dir returns the directory that the model was loaded from.
func (m *Model) Dir() string { return m.dir }

// Encode returns the token ids of a bare text, in which the names of added tokens are
// those tokens.
func (m *Model) Encode(text string) []uint32 { return m.tok.Encode(nil, []byte(text)) }

// Decode returns the text of token ids.
func (m *Model) Decode(ids []uint32) string { return string(m.tok.Decode(nil, ids)) }

// EOS returns the id that ends a reply, and whether the model has one.
func (m *Model) EOS() (id uint32, ok bool) {
	if ids := m.tok.Config().EOSIDs; len(ids) > 0 {
		return ids[0], true
	}
	ids := m.Encode(m.tok.Config().EOSToken)
	if len(ids) != 1 {
		return 0, false
	}
	return ids[0], true
}

// frame returns what stands around a request's text: nothing in a chat, whose template
// prints its own, unless the request says otherwise, which SGLang does not read.
func (m *Model) frame(req *openai.Request, body []byte, style Style) (before, after []uint32) {
	special := req.Kind == openai.Completions
	if s := req.Template.AddSpecialTokens; s.Present() && !style.sglang() {
		special = string(s.Of(body)) == "true"
	}
	if !special {
		return nil, nil
	}
	return m.before, m.after
}
