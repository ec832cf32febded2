package prompt

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/warmroute/warmroute/internal/openai"
)

// Marks that begin the parts of a canonical form. They are control characters, so
// that text hardly holds them. Lengths have no place in the form: a longer system
// text must share the prefix of a shorter one.
const (
	markMessage = 0x01 // role follows
	markContent = 0x02 // text follows
	markMember  = 0x03 // name of a field follows
	markValue   = 0x04 // canonical JSON follows
	markTool    = 0x06 // canonical JSON follows
	markNonText = 0x07 // an image, audio, video or file stands here
)

// Objects nested deeper or with more members keep the order of their keys. That bounds
// the work: a body of 18 MB can hold an object whose sorting takes seconds.
const (
	sortedLevels  = 8
	sortedMembers = 1024
)

// key is 128 bits over all that may change what an engine renders.
type key [2]uint64

func (k key) xor(o key) key { return key{k[0] ^ o[0], k[1] ^ o[1]} }

// end is a place at which a message ends, and the key of everything before it.
type end struct {
	offset int
	key    key
}

// form is the canonical form of one prompt.
//
// Text holds what is rendered for certain: it is what text blocks are cut from. What
// only may change the rendering (whether content was a string or several parts, what
// tool_choice says, an image's bytes) is in the keys alone: two prompts that differ
// in it share text blocks, where a wrong guess costs one mispredicted prefill, and
// never share tokens.
type form struct {
	text  []byte
	ends  []end
	whole key // of the text and all the rest
	stop  int // offset of the first placeholder, -1 where all is text
	media int // number of placeholders

	keyed   bool // keys are wanted
	tail    key  // key of the fields that have no place in the text
	hash    [2]maphash.Hash
	hashed  int // text before this offset is in hash
	shape   []byte
	aside   []openai.Span // parts of the body that are in the keys only
	scratch []byte
	members []member
	names   []byte
	r       openai.Reader
}

// member is one member of an object that is being sorted; its key is a part of names.
type member struct {
	start, end int
	value      openai.Span
}

func newForm(seeds [2]maphash.Seed) *form {
	f := new(form)
	f.hash[0].SetSeed(seeds[0])
	f.hash[1].SetSeed(seeds[1])
	return f
}

// reset empties the form and keeps its memory, except what a rare large prompt left.
func (f *form) reset() {
	const keep = 4 << 20
	if cap(f.text) > keep || cap(f.names)+cap(f.scratch)+cap(f.shape) > keep || cap(f.members)+cap(f.aside)+cap(f.ends) > keep/64 {
		*f = form{hash: f.hash}
	}
	f.text, f.ends, f.shape, f.aside = f.text[:0], f.ends[:0], f.shape[:0], f.aside[:0]
	f.stop, f.media, f.hashed = -1, 0, 0
	f.hash[0].Reset()
	f.hash[1].Reset()
}

// build writes the form of req, which was parsed from body. keyed asks for keys too;
// domain separates those of models and namespaces.
func (f *form) build(req *openai.Request, body []byte, keyed bool, domain ...string) {
	f.reset()
	f.keyed = keyed
	f.fields(req, body)
	for _, s := range domain {
		f.number(len(s))
		f.shape = append(f.shape, s...)
	}
	f.front(req, body)
	switch {
	case req.Kind == openai.Chat:
		if len(f.text) > 0 {
			f.finish(body)
		}
		for i := range req.Messages {
			f.message(body, &req.Messages[i])
			f.finish(body)
		}
	case len(req.PromptTokens) > 0:
		for _, id := range req.PromptTokens {
			f.text = binary.LittleEndian.AppendUint32(f.text, id)
		}
		f.finish(body)
	default:
		if s := req.Prompt; s.Present() {
			f.text = openai.Unescape(f.text, body[s.Start+1:s.End-1])
		}
		f.finish(body)
	}
	if n := len(f.ends); n > 0 {
		f.whole = f.ends[n-1].key.xor(f.tail)
	}
	f.r.Reset(nil, openai.Span{}) // a pooled form must not keep the body
}

// fields makes the key of the fields that may change the rendering and have no place
// in the text. It is kept apart so that any end of this form can be looked up with it.
func (f *form) fields(req *openai.Request, body []byte) {
	t := &req.Template
	n := 0
	for i, s := range [...]openai.Span{
		t.ToolChoice, t.AddGenerationPrompt, t.ContinueFinalMessage, t.AddSpecialTokens,
		t.ResponseFormat, t.MMProcessor, t.Suffix, t.ParallelToolCalls,
		t.TruncatePromptTokens, t.TruncationSide, t.InputIDs, t.SessionParams,
	} {
		if s.Present() {
			n++
			f.number(i)
			f.setAside(s)
		}
	}
	f.tail = key{}
	if n > 0 && f.keyed {
		f.sum(body)
		f.tail = key{f.hash[0].Sum64(), f.hash[1].Sum64()}
		f.hash[0].Reset()
		f.hash[1].Reset()
	}
}

// front writes what templates render before the messages, or use all through.
func (f *form) front(req *openai.Request, body []byte) {
	t := &req.Template
	f.field(body, "chat_template", t.ChatTemplate)
	f.field(body, "chat_template_kwargs", t.Kwargs)
	f.field(body, "reasoning_effort", t.ReasoningEffort)
	f.field(body, "reasoning", t.Reasoning)
	f.field(body, "thinking", t.Thinking)
	f.field(body, "enable_thinking", t.EnableThinking)
	f.field(body, "documents", t.Documents)
	f.tools(body, t.Tools)
	f.tools(body, t.Functions)
}

// field writes one named value unless it is absent or empty.
func (f *form) field(body []byte, name string, s openai.Span) {
	if !s.Present() {
		return
	}
	start := len(f.text)
	f.text = append(f.text, markMember)
	f.text = append(f.text, name...)
	f.text = append(f.text, markValue)
	at := len(f.text)
	f.value(body, s, sortedLevels)
	if v := string(f.text[at:]); v == "{}" || v == "[]" {
		f.text = f.text[:start]
	}
}

// tools writes definitions with the order of their keys: templates print them as they
// came.
func (f *form) tools(body []byte, s openai.Span) {
	if !s.Present() {
		return
	}
	r := &openai.Reader{}
	r.Reset(body, s)
	if r.Peek() != '[' {
		f.text = append(f.text, markTool)
		f.value(body, s, 0)
		return
	}
	r.Array()
	for r.Elem() {
		f.text = append(f.text, markTool)
		f.json(r, body, 0)
	}
}

// message writes one message.
func (f *form) message(body []byte, m *openai.Message) {
	f.text = append(f.text, markMessage)
	f.text = append(f.text, m.Role...)
	f.text = append(f.text, markContent)
	f.content(body, m.Content)
	if m.Other {
		f.others(body, m)
	}
}

// content writes text whatever shape it has: a string and its pieces are equal.
func (f *form) content(body []byte, s openai.Span) {
	if !s.Present() {
		f.number(0)
		return
	}
	before := len(f.text)
	if body[s.Start] == '"' {
		f.text = openai.Unescape(f.text, body[s.Start+1:s.End-1])
		f.number(1)
		f.number(len(f.text) - before)
		return
	}
	f.number(2)
	r := &f.r
	r.Reset(body, s)
	r.Array()
	for r.Elem() {
		before := len(f.text)
		f.part(r, body)
		f.number(len(f.text) - before)
	}
}

func (f *form) part(r *openai.Reader, body []byte) {
	if r.Peek() == '"' {
		f.unescaped(r)
		return
	}
	start := r.Pos()
	before := len(f.text)
	plain, typed, hasText := false, false, false
	r.Object()
	for name, ok := r.Key(); ok; name, ok = r.Key() {
		switch string(name) {
		case "type":
			typed = true
			raw, _ := r.String()
			plain = openai.TextPart(raw)
			continue
		case "text", "refusal", "thinking":
			hasText = hasText || string(name) == "text"
			if r.Peek() == '"' {
				f.unescaped(r)
				continue
			}
		}
		r.Skip()
	}
	if plain || !typed && hasText {
		return
	}
	f.text = append(f.text[:before], markNonText)
	f.setAside(openai.Span{Start: start, End: r.Pos()})
	if f.stop < 0 {
		f.stop = before
	}
	f.media++
}

func (f *form) unescaped(r *openai.Reader) {
	raw, escaped := r.String()
	if escaped {
		f.text = openai.Unescape(f.text, raw)
	} else {
		f.text = append(f.text, raw...)
	}
}

// rendered are the members of a message, beside role and content, that chat templates
// read, in the order of the form. Engines drop the others or no template prints them
// (refusal, annotations, ids of a user interface, cache_control), so they count for
// the keys only.
var rendered = [...]string{"name", "reasoning", "reasoning_content", "tools", "tool_calls", "function_call", "tool_call_id"}

func (f *form) others(body []byte, m *openai.Message) {
	var values [len(rendered)]openai.Span
	r := &f.r
	r.Reset(body, m.Span)
	r.Object()
next:
	for name, ok := r.Key(); ok; name, ok = r.Key() {
		if string(name) == "role" || string(name) == "content" || r.Peek() == 'n' {
			r.Skip()
			continue
		}
		for i := range rendered {
			if string(name) == rendered[i] {
				values[i] = r.Skip()
				continue next
			}
		}
		f.number(len(name))
		f.shape = append(f.shape, name...)
		f.setAside(r.Skip())
	}
	for i, s := range values {
		f.field(body, rendered[i], s)
	}
}

// finish ends a message: what has been written so far gets its key.
func (f *form) finish(body []byte) {
	e := end{offset: len(f.text)}
	if f.keyed {
		f.sum(body)
		e.key = key{f.hash[0].Sum64(), f.hash[1].Sum64()}
	}
	f.ends = append(f.ends, e)
}

// sum moves everything not hashed yet into the hashes.
func (f *form) sum(body []byte) {
	f.number(len(f.text) - f.hashed)
	for i := range f.hash {
		h := &f.hash[i]
		h.Write(f.text[f.hashed:])
		for _, s := range f.aside {
			h.Write(s.Of(body))
		}
		h.Write(f.shape)
	}
	f.hashed, f.shape, f.aside = len(f.text), f.shape[:0], f.aside[:0]
}

func (f *form) setAside(s openai.Span) {
	f.number(s.End - s.Start)
	f.aside = append(f.aside, s)
}

func (f *form) number(n int) { f.shape = binary.AppendUvarint(f.shape, uint64(n)) }
