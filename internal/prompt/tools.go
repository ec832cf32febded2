package prompt

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"github.com/warmroute/warmroute/internal/jinja"
	"github.com/warmroute/warmroute/internal/openai"
)

// toolCalls adds calls with their arguments as objects; an empty list is as if absent.
func (c *converter) toolCalls(d *jinja.Dict, s openai.Span) error {
	if !s.Present() {
		return nil
	}
	calls, n, err := c.list(s, "tool_calls", func(r *openai.Reader) (jinja.Value, error) {
		return c.object(r, &callShape, func(r *openai.Reader) (jinja.Value, error) {
			return c.object(r, &calledShape, c.arguments)
		})
	})
	if n > 0 {
		d.Set("tool_calls", calls)
	}
	return err
}

// arguments reads those of a call, which come as JSON in a string. What is no JSON, or
// null, counts as none.
func (c *converter) arguments(r *openai.Reader) (jinja.Value, error) {
	switch r.Peek() {
	case '{', '[':
		return c.read(r)
	case '"':
	default:
		r.Skip()
		return emptyDict, r.Err()
	}
	raw, _ := r.String()
	text := c.unescaped(raw)
	inner := converter{body: unsafe.Slice(unsafe.StringData(text), len(text))}
	inner.r.Reset(inner.body, openai.Span{End: len(text)})
	v, err := inner.read(&inner.r)
	if err != nil || len(bytes.TrimSpace(inner.body[inner.r.Pos():])) > 0 {
		return emptyDict, r.Err()
	}
	return v, r.Err()
}

var emptyDict = jinja.NewDict(0).Value()

// tools returns the offered tools as the template reads them, None where there are none.
func (c *converter) tools() (jinja.Value, error) {
	s := c.req.Template.Tools
	if !s.Present() || c.style == StyleSGLang && string(c.req.Template.ToolChoice.Of(c.body)) == `"none"` {
		return jinja.None(), nil
	}
	list, _, err := c.list(s, "tools", func(r *openai.Reader) (jinja.Value, error) {
		var function jinja.Value
		whole, err := c.object(r, &toolShape, func(r *openai.Reader) (v jinja.Value, err error) {
			function, err = c.object(r, &functionShapes[c.style], nil)
			return function, err
		})
		if c.style == StyleSGLang {
			return function, err
		}
		return whole, err
	})
	return list, err
}

// list reads a list of objects and tells how many there are.
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
}

type field struct {
	name   string
	absent *jinja.Value // what stands for an absent one; nil leaves it out
}

var (
	null         = jinja.None()
	no           = jinja.Bool(false)
	functionType = jinja.String("function")

	callShape   = shape{inner: "function"}
	calledShape = shape{inner: "arguments", absent: &field{"arguments", &emptyDict}}
	toolShape   = shape{inner: "function", fields: []field{{"type", &functionType}, {"function", nil}}}

	// functionShapes are vLLM's FunctionDefinition and SGLang's Function.
	functionShapes = [...]shape{
		StyleVLLM:   {fields: []field{{"name", nil}, {"description", &null}, {"parameters", &null}}},
		StyleSGLang: {fields: []field{{"description", &null}, {"name", nil}, {"parameters", &null}, {"strict", &no}}, strict: true},
	}
)

const maxFields = 4

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
	var rest []other
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		at := slices.IndexFunc(s.fields, func(f field) bool { return f.name == string(key) })
		if at < 0 && s.strict {
			r.Skip()
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
		} else {
			known[at], present[at] = v, true
		}
	}
	d := jinja.NewDict(len(s.fields) + len(rest) + 1)
	for i, f := range s.fields {
		if present[i] {
			d.Set(f.name, known[i])
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
