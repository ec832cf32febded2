package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/warmroute/warmroute/internal/jinja"
	"github.com/warmroute/warmroute/internal/openai"
)

// Style says how an engine turns a request's messages into those that its chat template
// reads.
type Style uint8

// The styles of engines.
const (
	// StyleVLLM, also for engines that say nothing of it: parts of a text are joined by a
	// newline, reasoning stands under both of its names, tools are whole and show what
	// they lack as null.
	StyleVLLM Style = iota
	// StyleSGLang, from 0.5.23: parts are joined by a space, tools are whole and their
	// functions show their fields in the order of the body; a trailing reply becomes the
	// user's, or is tokenised apart where it is continued.
	StyleSGLang
	styleSGLang22  // 0.5.12 to 0.5.22: a function's fields in an order of their own
	styleSGLangOld // before 0.5.12: /v1/tokenize takes no messages, so nothing can be compared
)

// StyleOf returns the style of an engine by its name, as of the newest version.
func StyleOf(engine string) Style {
	if engine == "sglang" {
		return StyleSGLang
	}
	return StyleVLLM
}

// At returns the style of a version of the engine, which is like 0.5.22. A version that
// does not read so is the newest.
func (s Style) At(version string) Style {
	if s != StyleSGLang {
		return s
	}
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n < 3 {
		return s
	}
	switch at := [3]int{major, minor, patch}; {
	case slices.Compare(at[:], []int{0, 5, 12}) < 0:
		return styleSGLangOld
	case slices.Compare(at[:], []int{0, 5, 23}) < 0:
		return styleSGLang22
	}
	return s
}

func (s Style) sglang() bool { return s != StyleVLLM }

// converter makes a template's variables of one request. Strings point into the body or
// into its own memory, so it must outlive the rendering.
type converter struct {
	style Style
	parts bool // the template reads content as a list of parts
	body  []byte
	req   *openai.Request
	r     openai.Reader
	text  []byte // what was unescaped; only ever appended to
	tag   bool   // the message ends with continueTag

	prefix string // SGLang: of a reply, tokenised behind the rest
	orjson bool   // JSON is read as SGLang reads a call's arguments
}

// errMedia says that a message holds more than text.
var errMedia = errors.New("a message holds an image, audio or file")

// messages returns the conversation as the template reads it.
func (c *converter) messages() (jinja.Value, error) {
	if c.style.sglang() {
		return c.sglangMessages()
	}
	list := make([]jinja.Value, 0, len(c.req.Messages))
	for i := range c.req.Messages {
		c.tag = i == len(c.req.Messages)-1 && c.continued()
		v, err := c.message(&c.req.Messages[i])
		if err != nil {
			return jinja.Value{}, fmt.Errorf("messages[%d]: %w", i, err)
		}
		list = append(list, v)
	}
	return jinja.List(list), nil
}

// message follows vLLM's parse_chat_messages: which members pass, in which order, and
// what becomes of absent ones.
func (c *converter) message(m *openai.Message) (jinja.Value, error) {
	if m.Media {
		return jinja.Value{}, errMedia
	}
	var o others
	if m.Other {
		o = c.others(m)
	}
	d := jinja.NewDict(7)
	if err := c.into(d, "thinking", o.reasoning); err != nil {
		return jinja.Value{}, err
	}
	d.Set("role", jinja.String(m.Role))
	content, err := c.content(m.Content, c.parts && m.Role != "tool")
	if err != nil {
		return jinja.Value{}, err
	}
	d.Set("content", content)
	if err := c.toolCalls(d, o.calls); err != nil {
		return jinja.Value{}, err
	}
	members := [...]named{{"reasoning", o.reasoning}, {"reasoning_content", o.reasoning}, {"tool_call_id", o.id}, {"name", o.name}, {"tools", o.tools}}
	for _, x := range members {
		if err := c.into(d, x.name, x.value); err != nil {
			return jinja.Value{}, err
		}
	}
	return d.Value(), nil
}

// others are the members of a message beside role and content that engines pass on,
// absent where its role has them not.
type others struct{ calls, reasoning, id, name, tools openai.Span }

func (c *converter) others(m *openai.Message) (o others) {
	var older openai.Span // reasoning under its other name
	r := &c.r
	r.Reset(c.body, m.Span)
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		var to *openai.Span
		switch string(key) {
		case "tool_calls":
			to = &o.calls
		case "reasoning":
			to = &o.reasoning
		case "reasoning_content":
			to = &older
		case "tool_call_id":
			to = &o.id
		case "name":
			to = &o.name
		case "tools":
			to = &o.tools
		}
		null := r.Peek() == 'n'
		if s := r.Skip(); to != nil && !null {
			*to = s
		}
	}
	if !o.reasoning.Present() {
		o.reasoning = older
	}
	if m.Role != "assistant" {
		o.calls, o.reasoning = openai.Span{}, openai.Span{}
	}
	if m.Role != "tool" {
		o.id = openai.Span{}
	}
	if m.Role != "developer" {
		o.tools = openai.Span{}
	}
	if o.name.Present() && c.body[o.name.Start] != '"' {
		o.name = openai.Span{}
	}
	return o
}

// content returns a message's text, as one string or as parts.
func (c *converter) content(s openai.Span, parts bool) (jinja.Value, error) {
	if parts {
		return c.contentParts(s)
	}
	text, err := c.plain(s)
	return jinja.String(text), err
}

// plain returns a message's text as one string.
func (c *converter) plain(s openai.Span) (string, error) {
	if s.Present() && c.body[s.Start] == '"' && !c.tag {
		return c.unescaped(c.body[s.Start+1 : s.End-1]), nil
	}
	sep := byte('\n')
	if c.style.sglang() {
		sep = ' '
	}
	start := len(c.text)
	n := 0
	err := c.eachPart(s, func(raw []byte) {
		if n++; n > 1 {
			c.text = append(c.text, sep)
		}
		c.text = openai.Unescape(c.text, raw)
	})
	if c.tag {
		c.text = append(c.text, continueTag...)
	}
	return asString(c.text[start:]), err
}

func (c *converter) contentParts(s openai.Span) (jinja.Value, error) {
	var texts []string
	err := c.eachPart(s, func(raw []byte) { texts = append(texts, c.unescaped(raw)) })
	if n := len(texts); c.tag && n > 0 {
		texts[n-1] += continueTag
	}
	list := make([]jinja.Value, len(texts))
	for i, text := range texts {
		d := jinja.NewDict(2)
		d.Set("type", textType)
		d.Set("text", jinja.String(text))
		list[i] = d.Value()
	}
	return jinja.List(list), err
}

var textType = jinja.String("text")

// eachPart calls f with the raw text of each part of a content: of a string, which is one,
// or of a list.
func (c *converter) eachPart(s openai.Span, f func(raw []byte)) error {
	if !s.Present() {
		return nil
	}
	if c.body[s.Start] == '"' {
		f(c.body[s.Start+1 : s.End-1])
		return nil
	}
	r := &c.r
	r.Reset(c.body, s)
	if r.Peek() != '[' {
		return errMedia
	}
	r.Array()
	for r.Elem() {
		if r.Peek() == '"' {
			raw, _ := r.String()
			if f(raw); c.style.sglang() {
				return errPart
			}
			continue
		}
		var text []byte
		found, typed := false, false
		r.Object()
		for key, ok := r.Key(); ok; key, ok = r.Key() {
			switch string(key) {
			case "type":
				here := r.Skip()
				typed = string(here.Of(c.body)) == `"text"`
				continue
			case "text", "refusal", "thinking":
				if r.Peek() == '"' {
					text, _ = r.String()
					found = true
					continue
				}
			}
			r.Skip()
		}
		if c.style.sglang() && (!typed || !found) {
			return errPart
		}
		if found {
			f(text)
		}
	}
	return r.Err()
}

// into sets a variable unless its field is absent.
func (c *converter) into(d *jinja.Dict, name string, s openai.Span) error {
	if !s.Present() {
		return nil
	}
	v, err := c.value(s)
	d.Set(name, v)
	return err
}

// members sets a variable for each member of an object.
func (c *converter) members(d *jinja.Dict, s openai.Span) error {
	if !s.Present() {
		return nil
	}
	r := new(openai.Reader)
	r.Reset(c.body, s)
	if r.Peek() != '{' {
		return errors.New("chat_template_kwargs is no object")
	}
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name := string(key)
		if name == "reasoning_effort" && c.style.sglang() && r.Null() {
			continue // SGLang takes it out
		}
		v, err := c.read(r)
		if err != nil {
			return err
		}
		d.Set(name, v)
	}
	return r.Err()
}

// value reads the JSON at s.
func (c *converter) value(s openai.Span) (jinja.Value, error) {
	r := new(openai.Reader)
	r.Reset(c.body, s)
	return c.read(r)
}

// read reads any JSON value, with the order of its keys and the text of its numbers.
func (c *converter) read(r *openai.Reader) (jinja.Value, error) {
	switch r.Peek() {
	case '{':
		d := jinja.NewDict(4)
		r.Object()
		for key, ok := r.Key(); ok; key, ok = r.Key() {
			name := string(key)
			v, err := c.read(r)
			if err != nil {
				return v, err
			}
			d.Set(name, v)
		}
		return d.Value(), r.Err()
	case '[':
		var list []jinja.Value
		r.Array()
		for r.Elem() {
			v, err := c.read(r)
			if err != nil {
				return v, err
			}
			list = append(list, v)
		}
		return jinja.List(list), r.Err()
	case '"':
		raw, _ := r.String()
		return jinja.String(c.unescaped(raw)), r.Err()
	case 't', 'f':
		return jinja.Bool(r.Bool()), r.Err()
	case 'n':
		r.Null()
		return jinja.None(), r.Err()
	}
	raw := r.Skip().Of(c.body)
	if err := r.Err(); err != nil {
		return jinja.Value{}, err
	}
	return c.number(string(raw))
}

// number reads a number as Python's json.loads does, or orjson.
func (c *converter) number(raw string) (jinja.Value, error) {
	switch raw {
	case "NaN":
		return jinja.Float(math.NaN()), c.notOrjson()
	case "Infinity":
		return jinja.Float(math.Inf(1)), c.notOrjson()
	case "-Infinity":
		return jinja.Float(math.Inf(-1)), c.notOrjson()
	}
	if c.orjson {
		if f, err := strconv.ParseFloat(raw, 64); err != nil || !fits64(raw) {
			if err != nil {
				err = errArguments
			}
			return jinja.Float(f), err
		}
	}
	return jinja.Number(raw)
}

func (c *converter) notOrjson() error {
	if c.orjson {
		return errArguments
	}
	return nil
}

// fits64 tells whether a number is a fraction or fits 64 bits: orjson makes a float of
// another int.
func fits64(raw string) bool {
	if strings.ContainsAny(raw, ".eE") {
		return true
	}
	_, err := strconv.ParseInt(raw, 10, 64)
	_, uerr := strconv.ParseUint(raw, 10, 64)
	return err == nil || uerr == nil
}

// unescaped returns the text of a raw JSON string.
func (c *converter) unescaped(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return asString(raw)
	}
	start := len(c.text)
	c.text = openai.Unescape(c.text, raw)
	return asString(c.text[start:])
}

// asString is b as a string without a copy: b must not change while it is in use.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// named is a member of a message and where it stands.
type named struct {
	name  string
	value openai.Span
}
