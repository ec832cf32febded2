package jinja

import (
	"strconv"
	"unicode"
	"unicode/utf8"
)

// appendStr appends str(v).
func (st *state) appendStr(dst []byte, v Value) []byte {
	switch v.k {
	case kString:
		return append(dst, v.str()...)
	case kUndefined:
		return dst
	}
	return st.appendRepr(dst, v, 0)
}

// strOf returns str(v).
func (st *state) strOf(v Value) string {
	switch v.k {
	case kString:
		return v.str()
	case kUndefined:
		return ""
	}
	return st.build(func(b []byte) []byte { return st.appendStr(b, v) })
}

func (st *state) appendRepr(dst []byte, v Value, depth int) []byte {
	checkNesting(depth)
	st.bound(len(dst))
	switch v.k {
	case kUndefined:
		return append(dst, "Undefined"...)
	case kNone:
		return append(dst, "None"...)
	case kBool:
		if v.n != 0 {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case kInt, kBig:
		return appendInt(dst, v)
	case kFloat:
		return appendFloat(dst, v.float())
	case kString:
		if v.isMarkup() {
			return append(appendQuoted(append(dst, "Markup("...), v.str()), ')')
		}
		return appendQuoted(dst, v.str())
	case kList:
		return append(st.appendItems(append(dst, '['), v.items(), depth), ']')
	case kTuple:
		dst = st.appendItems(append(dst, '('), v.items(), depth)
		if v.n == 1 {
			dst = append(dst, ',')
		}
		return append(dst, ')')
	case kDict:
		return st.appendDict(dst, v.dict(), depth)
	}
	return st.appendObject(dst, v, depth)
}

func (st *state) appendItems(dst []byte, items []Value, depth int) []byte {
	for i, item := range items {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = st.appendRepr(dst, item, depth+1)
	}
	return dst
}

func (st *state) appendDict(dst []byte, d *Dict, depth int) []byte {
	dst = append(dst, '{')
	for i := range d.entries {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = append(st.appendRepr(dst, d.entries[i].key, depth+1), ": "...)
		dst = st.appendRepr(dst, d.entries[i].val, depth+1)
	}
	return append(dst, '}')
}

// appendObject appends the repr of values that have one without an address.
func (st *state) appendObject(dst []byte, v Value, depth int) []byte {
	switch v.k {
	case kRange:
		return v.rng().appendRepr(dst)
	case kView:
		dst = append(append(dst, v.typeName()...), "(["...)
		for i := range v.dict().entries {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = st.appendRepr(dst, viewItem(st, v, i), depth+1)
		}
		return append(dst, "])"...)
	case kNamespace:
		dst = st.appendDict(append(dst, "<Namespace "...), v.dict(), depth+1)
		return append(dst, '>')
	case kMacro:
		return append(appendQuoted(append(dst, "<Macro "...), v.macro().def.name), '>')
	case kLoop:
		l := v.loop()
		dst = strconv.AppendInt(append(dst, "<LoopContext "...), int64(l.index0)+1, 10)
		dst = strconv.AppendInt(append(dst, '/'), int64(l.length(st)), 10)
		return append(dst, '>')
	}
	failf("not supported: the text of a %s, which is an address in Python", v.typeName())
	return dst
}

// appendQuoted appends repr of a str: single quotes unless only they occur inside.
func appendQuoted(dst []byte, s string) []byte {
	quote := byte('\'')
	if containsByte(s, '\'') && !containsByte(s, '"') {
		quote = '"'
	}
	dst = append(dst, quote)
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			dst = appendQuotedByte(dst, c, quote)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = appendHex(append(dst, `\udc`...), uint32(c), 2) // as surrogateescape reads it
		case unicode.IsPrint(r):
			dst = append(dst, s[i:i+size]...)
		case r < 0x100:
			dst = appendHex(append(dst, `\x`...), uint32(r), 2)
		case r < 0x10000:
			dst = appendHex(append(dst, `\u`...), uint32(r), 4)
		default:
			dst = appendHex(append(dst, `\U`...), uint32(r), 8)
		}
		i += size
	}
	return append(dst, quote)
}

func appendQuotedByte(dst []byte, c, quote byte) []byte {
	switch {
	case c == quote || c == '\\':
		return append(dst, '\\', c)
	case c == '\n':
		return append(dst, `\n`...)
	case c == '\r':
		return append(dst, `\r`...)
	case c == '\t':
		return append(dst, `\t`...)
	case c < ' ' || c == 0x7f:
		return appendHex(append(dst, `\x`...), uint32(c), 2)
	}
	return append(dst, c)
}

// appendHex appends v as width lower-case hexadecimal digits.
func appendHex(dst []byte, v uint32, width int) []byte {
	for shift := 4 * (width - 1); shift >= 0; shift -= 4 {
		dst = append(dst, "0123456789abcdef"[v>>shift&15])
	}
	return dst
}

func containsByte(s string, c byte) bool {
	for i := range len(s) {
		if s[i] == c {
			return true
		}
	}
	return false
}
