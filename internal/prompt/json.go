package prompt

import (
	"bytes"
	"slices"

	"github.com/warmroute/warmroute/internal/openai"
)

// value writes the JSON value at s without spacing, every string escaped in one way
// and, in the outer levels levels, the keys of objects sorted.
func (f *form) value(body []byte, s openai.Span, levels int) {
	r := &openai.Reader{}
	r.Reset(body, s)
	f.json(r, body, levels)
}

func (f *form) json(r *openai.Reader, body []byte, levels int) {
	switch r.Peek() {
	case '{':
		if levels > 0 {
			f.sorted(r, body, levels)
			return
		}
		f.text = append(f.text, '{')
		first := len(f.text)
		r.Object()
		for name, ok := r.Key(); ok; name, ok = r.Key() {
			if len(f.text) > first {
				f.text = append(f.text, ',')
			}
			f.quote(name)
			f.text = append(f.text, ':')
			f.json(r, body, 0)
		}
		f.text = append(f.text, '}')
	case '[':
		f.text = append(f.text, '[')
		first := len(f.text)
		r.Array()
		for r.Elem() {
			if len(f.text) > first {
				f.text = append(f.text, ',')
			}
			f.json(r, body, max(levels-1, 0))
		}
		f.text = append(f.text, ']')
	case '"':
		raw, escaped := r.String()
		if !escaped {
			f.text = append(f.text, '"')
			f.text = append(f.text, raw...)
			f.text = append(f.text, '"')
			return
		}
		f.scratch = openai.Unescape(f.scratch[:0], raw)
		f.quote(f.scratch)
	default: // numbers stay as written: 1 and 1.0 print differently
		f.text = append(f.text, r.Skip().Of(body)...)
	}
}

// sorted writes an object by ascending key; equal keys keep their order, and so do all
// keys of an object with more than sortedMembers.
func (f *form) sorted(r *openai.Reader, body []byte, levels int) {
	first, names := len(f.members), len(f.names)
	r.Object()
	for name, ok := r.Key(); ok; name, ok = r.Key() {
		start := len(f.names)
		f.names = append(f.names, name...)
		f.members = append(f.members, member{start, len(f.names), r.Skip()})
	}
	if len(f.members)-first <= sortedMembers {
		slices.SortStableFunc(f.members[first:], func(a, b member) int {
			return bytes.Compare(f.names[a.start:a.end], f.names[b.start:b.end])
		})
	}
	f.text = append(f.text, '{')
	for i := first; i < len(f.members); i++ {
		m := f.members[i]
		if i > first {
			f.text = append(f.text, ',')
		}
		f.quote(f.names[m.start:m.end])
		f.text = append(f.text, ':')
		f.value(body, m.value, levels-1)
	}
	f.text = append(f.text, '}')
	f.members, f.names = f.members[:first], f.names[:names]
}

// quote writes b as a JSON string, escaping only what must be.
func (f *form) quote(b []byte) {
	const hex = "0123456789abcdef"
	f.text = append(f.text, '"')
	for len(b) > 0 {
		n := 0
		for n < len(b) && b[n] >= 0x20 && b[n] != '"' && b[n] != '\\' {
			n++
		}
		f.text = append(f.text, b[:n]...)
		if n == len(b) {
			break
		}
		if c := b[n]; c >= 0x20 {
			f.text = append(f.text, '\\', c)
		} else {
			f.text = append(f.text, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		b = b[n+1:]
	}
	f.text = append(f.text, '"')
}
