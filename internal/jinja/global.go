package jinja

import (
	"slices"
	"strings"
	"unsafe"
)

// globals are the names that a template finds if the request has none of that name.
var globals = map[string]Value{
	"range":           newFunc("range", func(_ *state, a args) Value { a.want(0, 3); return newRange(a.pos) }),
	"dict":            newFunc("dict", func(st *state, a args) Value { return st.newDict(a).Value() }),
	"namespace":       newFunc("namespace", newNamespace),
	"cycler":          newFunc("cycler", newCycler),
	"joiner":          newFunc("joiner", newJoiner),
	"raise_exception": newFunc("raise_exception", raise),
	"strftime_now":    newFunc("strftime_now", strftimeNow),
	"lipsum":          newFunc("lipsum", func(*state, args) Value { fail("lipsum is not supported"); return Value{} }),
}

// raise is Hugging Face's raise_exception: a template's own refusal.
func raise(st *state, a args) Value {
	var room [1]Value
	msg := bindArgs(room[:0], a, []string{"message"}, 1)[0]
	panic(&Error{Message: strings.Clone(st.strOf(msg)), Raised: true})
}

func strftimeNow(st *state, a args) Value {
	var room [1]Value
	format := wantString(bindArgs(room[:0], a, []string{"format"}, 1)[0])
	if len(format) > 1<<12 {
		failLimit("time format is too long")
	}
	return String(st.build(func(b []byte) []byte { return appendTime(b, format, st.now()) }))
}

// newDict is dict(mapping or pairs, **kwargs).
func (st *state) newDict(a args) *Dict {
	if len(a.pos) > 1 {
		failf("dict expected at most 1 argument, got %d", len(a.pos))
	}
	d := NewDict(len(a.kw))
	if len(a.pos) == 1 {
		if src := a.pos[0]; src.k == kDict {
			d.entries = slices.Grow(d.entries, len(src.dict().entries))
			for _, e := range src.dict().entries {
				st.setKey(d, e.key, e.val)
			}
		} else {
			st.addPairs(d, src)
		}
	}
	for _, kw := range a.kw {
		d.Set(kw.name, kw.v)
	}
	st.charge(len(d.entries) / 8)
	return d
}

func (st *state) addPairs(d *Dict, pairs Value) {
	it := st.iterate(pairs)
	for {
		pair, ok := it.next(st)
		if !ok {
			return
		}
		kv := st.collect(pair)
		if len(kv) != 2 {
			fail("dictionary update sequence element must have length 2")
		}
		st.setKey(d, kv[0], kv[1])
	}
}

func newNamespace(st *state, a args) Value {
	src := st.newDict(a)
	d := NewDict(len(src.entries) + 2)
	for _, e := range src.entries {
		setNamespace(d, e.key, e.val)
	}
	return Value{k: kNamespace, p: unsafe.Pointer(d)}
}

// setNamespace sets an attribute. transformers refuses names that start with "_".
func setNamespace(d *Dict, name, v Value) {
	if name.k == kString && strings.HasPrefix(name.str(), "_") {
		fail("cannot store underscore-prefixed attributes on a namespace")
	}
	d.setValue(name, v)
}

// newJoiner is jinja2's Joiner: nothing at the first call, then a separator.
func newJoiner(st *state, a args) Value {
	var room [1]Value
	sep := opt(bindArgs(room[:0], a, []string{"sep"}, 0)[0], String(", "))
	used := false
	return newFunc("joiner", func(_ *state, a args) Value {
		a.want(0, 0)
		if !used {
			used = true
			return String("")
		}
		return sep
	})
}
