package jinja

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// jsonFormat holds the arguments of Hugging Face's tojson, which are those of
// Python's json.dumps.
type jsonFormat struct {
	ascii     bool
	indented  bool
	indent    string // one level
	item, key string // separators
	sortKeys  bool
}

var jsonDefault = jsonFormat{item: ", ", key: ": "}

// appendJSON appends json.dumps(v). at is the level of indentation.
func (st *state) appendJSON(dst []byte, v Value, f *jsonFormat, at int) []byte {
	checkNesting(at)
	st.bound(len(dst))
	switch v.k {
	case kNone:
		return append(dst, "null"...)
	case kBool:
		if v.n != 0 {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case kInt, kBig:
		return appendInt(dst, v)
	case kFloat:
		return appendJSONFloat(dst, v.float())
	case kString:
		return appendJSONString(dst, v.str(), f.ascii)
	case kList, kTuple:
		return st.appendJSONList(dst, v.items(), f, at)
	case kDict:
		return st.appendJSONDict(dst, v.dict(), f, at)
	}
	failf("Object of type %s is not JSON serializable", v.typeName())
	return dst
}

func (st *state) appendJSONList(dst []byte, items []Value, f *jsonFormat, at int) []byte {
	if len(items) == 0 {
		return append(dst, "[]"...)
	}
	dst = append(dst, '[')
	for i, item := range items {
		dst = st.appendJSONGap(dst, f, i > 0, at+1)
		dst = st.appendJSON(dst, item, f, at+1)
	}
	return append(st.appendJSONLine(dst, f, at), ']')
}

func (st *state) appendJSONDict(dst []byte, d *Dict, f *jsonFormat, at int) []byte {
	if len(d.entries) == 0 {
		return append(dst, "{}"...)
	}
	entries := d.entries
	if f.sortKeys {
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, func(a, b entry) int { return st.order(a.key, b.key, "<") })
	}
	dst = append(dst, '{')
	for i := range entries {
		dst = st.appendJSONGap(dst, f, i > 0, at+1)
		dst = st.appendJSONKey(dst, entries[i].key, f)
		dst = append(dst, f.key...)
		dst = st.appendJSON(dst, entries[i].val, f, at+1)
	}
	return append(st.appendJSONLine(dst, f, at), '}')
}

func (st *state) appendJSONGap(dst []byte, f *jsonFormat, comma bool, at int) []byte {
	if comma {
		dst = append(dst, f.item...)
	}
	return st.appendJSONLine(dst, f, at)
}

func (st *state) appendJSONLine(dst []byte, f *jsonFormat, at int) []byte {
	if !f.indented {
		return dst
	}
	st.bound(len(dst) + at*len(f.indent))
	dst = append(dst, '\n')
	for range at {
		dst = append(dst, f.indent...)
	}
	return dst
}

func (st *state) appendJSONKey(dst []byte, key Value, f *jsonFormat) []byte {
	switch key.k {
	case kString:
		return appendJSONString(dst, key.str(), f.ascii)
	case kNone, kBool, kInt, kBig, kFloat:
		return append(st.appendJSON(append(dst, '"'), key, f, 0), '"')
	}
	failf("keys must be str, int, float, bool or None, not %s", key.typeName())
	return dst
}

func appendJSONFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	return appendFloat(dst, f)
}

// jsonPlain tells the ASCII bytes that a JSON string holds as they are.
var jsonPlain = func() (plain [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		plain[c] = c != '"' && c != '\\'
	}
	return plain
}()

func appendJSONString(dst []byte, s string, ascii bool) []byte {
	dst = append(dst, '"')
	for len(s) > 0 {
		i := 0
		for i < len(s) && (jsonPlain[s[i]] || s[i] >= utf8.RuneSelf && !ascii) {
			i++
		}
		dst = append(dst, s[:i]...)
		if s = s[i:]; s == "" {
			break
		}
		size := 1
		if s[0] < utf8.RuneSelf {
			dst = appendJSONEscape(dst, s[0], ascii)
		} else {
			dst, size = appendJSONRune(dst, s)
		}
		s = s[size:]
	}
	return append(dst, '"')
}

func appendJSONEscape(dst []byte, c byte, ascii bool) []byte {
	const named = "\"\\\n\r\t\b\f"
	if i := strings.IndexByte(named, c); i >= 0 {
		return append(dst, '\\', `"\nrtbf`[i])
	}
	if c == 0x7f && !ascii {
		return append(dst, c)
	}
	return appendHex(append(dst, `\u`...), uint32(c), 4)
}

// appendJSONRune appends the first character of s as one or two \uXXXX and returns
// its size. A byte that is not UTF-8 is written as Python's surrogateescape reads it.
func appendJSONRune(dst []byte, s string) ([]byte, int) {
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case r == utf8.RuneError && size == 1:
		r = 0xdc00 + rune(s[0])
	case r >= 0x10000:
		r -= 0x10000
		dst = appendHex(append(dst, `\u`...), uint32(0xd800+r>>10), 4)
		r = 0xdc00 + r&0x3ff
	}
	return appendHex(append(dst, `\u`...), uint32(r), 4), size
}
