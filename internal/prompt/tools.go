package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/warmroute/warmroute/internal/jinja"
	"github.com/warmroute/warmroute/internal/openai"
)

// toolCalls adds calls with their arguments as objects. An empty list is as if absent for
// vLLM; SGLang passes it.
func (c *converter) toolCalls(d *jinja.Dict, s openai.Span) error {
	if !s.Present() {
		return nil
	}
	call, called, arguments := &callShape, &calledShape, c.arguments
	if c.style.sglang() {
		call, called, arguments = &sglangCallShape, &sglangCalledShape, c.strictArguments
	}
	calls, n, err := c.list(s, "tool_calls", func(r *openai.Reader) (jinja.Value, error) {
		return c.object(r, call, func(r *openai.Reader) (jinja.Value, error) {
			return c.object(r, called, arguments)
		})
	})
	if n > 0 || c.style.sglang() {
		d.Set("tool_calls", calls)
	}
	return err
}

// arguments reads those of a call as vLLM does, which come as JSON in a string. What is
// no JSON to Python's json.loads, or null, counts as none.
func (c *converter) arguments(r *openai.Reader) (jinja.Value, error) {
	switch r.Peek() {
	case '{', '[':
		return c.read(r)
	case '"':
	default:
		r.Skip()
		return emptyDict, r.Err()
	}
	v, valid, err := c.quoted(r)
	if !valid {
		v = emptyDict
	}
	return v, err
}

// strictArguments reads those of a call as SGLang does: orjson's object in a string, or an
// object, or none. Anything else is answered with a 400.
func (c *converter) strictArguments(r *openai.Reader) (jinja.Value, error) {
	switch r.Peek() {
	case '{', 'n':
		return c.read(r)
	case '"':
	default:
		return jinja.Value{}, errArguments
	}
	c.orjson = true
	defer func() { c.orjson = false }()
	v, valid, err := c.quoted(r)
	if !valid && err == nil {
		err = errArguments
	}
	return v, err
}

var errArguments = errors.New("the arguments of a tool call are no JSON object")

// quoted reads the JSON that a string holds and tells whether it is any. The error is of
// JSON that Python reads and this package does not, or not within its bounds.
func (c *converter) quoted(r *openai.Reader) (v jinja.Value, valid bool, err error) {
	raw, _ := r.String()
	if err := r.Err(); err != nil {
		return v, false, err
	}
	text := c.unescaped(raw)
	inner := converter{body: unsafe.Slice(unsafe.StringData(text), len(text)), orjson: c.orjson}
	inner.r.Reset(inner.body, openai.Span{End: len(text)})
	if c.orjson && inner.r.Peek() != '{' {
		return v, false, nil
	}
	v, err = inner.read(&inner.r)
	switch {
	case inner.r.Err() != nil && strings.HasPrefix(inner.r.Err().Error(), "nested deeper"):
		return v, false, errors.New("the arguments of a tool call are nested too deep")
	case inner.r.Err() != nil:
		return v, false, nil
	case err != nil:
		return v, false, err
	}
	return v, len(bytes.Trim(inner.body[inner.r.Pos():], " \t\n\r")) == 0, nil
}

var emptyDict = jinja.NewDict(0).Value()

// tools returns the offered tools as the template reads them, and whether there are any
// or, for vLLM, an empty list of them. bare leaves the functions alone, which SGLang tries
// where a template fails with whole tools.
func (c *converter) tools(bare bool) (list jinja.Value, some bool, err error) {
	s, only := c.req.Template.Tools, ""
	if c.style.sglang() && (!c.req.Tools || string(c.req.Template.ToolChoice.Of(c.body)) == `"none"`) {
		s = openai.Span{} // [] is none to SGLang
	}
	if !s.Present() {
		return jinja.None(), false, nil
	}
	if c.style.sglang() {
		only = c.memberText(c.req.Template.ToolChoice, "function", "name")
	}
	n := 0
	list, _, err = c.list(s, "tools", func(r *openai.Reader) (jinja.Value, error) {
		if here := *r; only != "" && c.memberText(here.Skip(), "function", "name") != only {
			r.Skip()
			return jinja.Value{}, errLeftOut
		}
		n++
		return c.tool(r, bare)
	})
	if err == nil && n == 0 && only != "" {
		err = errors.New("tool_choice names a function that is not among the tools")
	}
	return list, true, err
}

// errLeftOut says that an element has no part in its list.
var errLeftOut = errors.New("left out")

func (c *converter) tool(r *openai.Reader, bare bool) (jinja.Value, error) {
	if !c.style.sglang() {
		return c.object(r, &toolShape, func(r *openai.Reader) (jinja.Value, error) { return c.object(r, &functionShape, nil) })
	}
	var function jinja.Value
	whole, err := c.object(r, &sglangToolShape, func(r *openai.Reader) (v jinja.Value, err error) {
		function, err = c.object(r, &sglangFunctionShapes[c.style], nil)
		return function, err
	})
	if bare {
		return function, err
	}
	return whole, err
}

// memberText returns the text at a path of members in the object at s, "" where there is
// none.
func (c *converter) memberText(s openai.Span, path ...string) (text string) {
	if !s.Present() {
		return ""
	}
	r := new(openai.Reader)
	r.Reset(c.body, s)
	for _, name := range path {
		if r.Peek() != '{' {
			return ""
		}
		var found openai.Span
		r.Object()
		for key, ok := r.Key(); ok; key, ok = r.Key() {
			here := string(key) == name
			if value := r.Skip(); here {
				found = value
			}
		}
		if !found.Present() {
			return ""
		}
		r.Reset(c.body, found)
	}
	if r.Peek() != '"' {
		return ""
	}
	raw, _ := r.String()
	return c.unescaped(raw)
}

// list reads a list of objects and tells how many there are. Those are not in it for which
// element returns errLeftOut.
func (c *converter) list(s openai.Span, what string, element func(r *openai.Reader) (jinja.Value, error)) (jinja.Value, int, error) {
	r := new(openai.Reader)
	r.Reset(c.body, s)
	if r.Peek() != '[' {
		return jinja.Value{}, 0, fmt.Errorf("%s is no list", what)
	}
	var list []jinja.Value
	r.Array()
	for r.Elem() {
		if r.Peek() != '{' {
			return jinja.Value{}, 0, fmt.Errorf("%s holds something else than objects", what)
		}
		v, err := element(r)
		if err == errLeftOut {
			continue
		}
		if err != nil {
			return v, 0, err
		}
		list = append(list, v)
	}
	return jinja.List(list), len(list), r.Err()
}

// shape is how an engine's own type prints an object: its fields first, in their order,
// then the other members as they came.
type shape struct {
	fields []field
	inner  string // member that is read by the caller
	absent *field // a member that is added at the end where it is absent
	strict bool   // other members are dropped
	asSent bool   // the fields that are there come first, in the order of the body
}

type field struct {
	name   string
	absent *jinja.Value // what stands for an absent one; nil leaves it out
	unless bool         // null is as if absent
}

var (
	null         = jinja.None()
	no           = jinja.Bool(false)
	functionType = jinja.String("function")

	callShape   = shape{inner: "function"}
	calledShape = shape{inner: "arguments", absent: &field{name: "arguments", absent: &emptyDict}}
	// toolShape and functionShape are vLLM's ChatCompletionToolsParam and FunctionDefinition.
	toolShape     = shape{inner: "function", fields: []field{{name: "type", absent: &functionType}, {name: "function"}}}
	functionShape = shape{fields: []field{{name: "name"}, {name: "description", absent: &null}, {name: "parameters", absent: &null}}}

	// SGLang's ToolCall, FunctionResponse, Tool and Function (entrypoints/openai/protocol.py).
	sglangCallShape = shape{inner: "function", strict: true, fields: []field{
		{name: "id", absent: &null}, {name: "index", absent: &null}, {name: "type", absent: &functionType}, {name: "function"}}}
	sglangCalledShape = shape{inner: "arguments", strict: true, fields: []field{{name: "name", absent: &null}, {name: "arguments", absent: &null}}}
	sglangToolShape   = shape{inner: "function", strict: true, fields: []field{
		{name: "type", absent: &functionType}, {name: "function"}, {name: "defer_loading", absent: &null}}}
	sglangFunctionShapes = [...]shape{
		StyleSGLang: {strict: true, asSent: true, fields: []field{
			{name: "description", absent: &null}, {name: "name"}, {name: "parameters", absent: &null},
			{name: "strict", unless: true}, {name: "defer_loading", unless: true}}},
		styleSGLang22:  {strict: true, fields: sglangOwnOrder},
		styleSGLangOld: {strict: true, fields: sglangOwnOrder},
	}
	sglangOwnOrder = []field{{name: "description", absent: &null}, {name: "name"}, {name: "parameters", absent: &null},
		{name: "strict", absent: &no}, {name: "defer_loading", unless: true}}
)

const maxFields = 5

// other is a member that a shape does not know.
type other struct {
	name  string
	value jinja.Value
}

// object reads an object in a shape; inner reads the member that is marked so.
func (c *converter) object(r *openai.Reader, s *shape, inner func(r *openai.Reader) (jinja.Value, error)) (jinja.Value, error) {
	if r.Peek() != '{' {
		return c.read(r)
	}
	var known [maxFields]jinja.Value
	var present [maxFields]bool
	var sent [maxFields]int // indices of fields in the order of the body
	var rest []other
	n := 0
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		at := slices.IndexFunc(s.fields, func(f field) bool { return f.name == string(key) })
		if at < 0 && s.strict {
			r.Skip()
			continue
		}
		if at >= 0 && s.fields[at].unless && r.Null() {
			continue
		}
		read := c.read
		if string(key) == s.inner {
			read = inner
		}
		if at < 0 {
			rest = append(rest, other{name: string(key)})
		}
		v, err := read(r)
		if err != nil {
			return v, err
		}
		if at < 0 {
			rest[len(rest)-1].value = v
			continue
		}
		if known[at] = v; !present[at] {
			present[at], sent[n] = true, at
			n++
		}
	}
	d := jinja.NewDict(len(s.fields) + len(rest) + 1)
	if s.asSent {
		for _, i := range sent[:n] {
			d.Set(s.fields[i].name, known[i])
		}
	}
	for i, f := range s.fields {
		if present[i] {
			d.Set(f.name, known[i]) // Set keeps the place of what is there
		} else if f.absent != nil {
			d.Set(f.name, *f.absent)
		}
	}
	for _, m := range rest {
		d.Set(m.name, m.value)
	}
	if f := s.absent; f != nil {
		if _, ok := d.Get(f.name); !ok {
			d.Set(f.name, *f.absent)
		}
	}
	return d.Value(), r.Err()
}
