package openai

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
)

// maxDepth bounds the nesting of a body, so that its reader's stack is bounded.
const maxDepth = 256

// Span is a half-open range of offsets into a body. The zero Span is "absent".
type Span struct{ Start, End int }

// Present tells whether the span exists.
func (s Span) Present() bool { return s.End > 0 }

// Of returns the bytes of the span.
func (s Span) Of(body []byte) []byte { return body[s.Start:s.End] }

// Reader walks JSON text in place: it validates what it passes, allocates nothing and
// copies nothing. After the first error every method returns zero values and Err says
// what is wrong, so callers may check once at the end of a loop.
//
//	r.Object()
//	for key, ok := r.Key(); ok; key, ok = r.Key() {
//		switch string(key) { …one value is read or skipped… }
//	}
//
// NaN and Infinity are taken as numbers, as Python's json does: engines send them.
type Reader struct {
	data  []byte
	pos   int
	depth int
	first bool // just after an opening bracket: no comma may come
	err   error

	keyStart  int    // offset of the last key's opening quote
	commaPos  int    // offset of the comma before that key, -1 for the first
	unescaped []byte // the last key, where it was written with escapes
}

// Reset makes the reader start at the first value in at, a part of data.
func (r *Reader) Reset(data []byte, at Span) {
	*r = Reader{data: data[:at.End], pos: at.Start, unescaped: r.unescaped[:0]}
}

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Pos returns the offset of the next byte to read.
func (r *Reader) Pos() int { return r.pos }

func (r *Reader) fail(what string) {
	if r.err != nil {
		return
	}
	if r.pos >= len(r.data) {
		r.err = fmt.Errorf("%s, but the text ends at byte %d", what, len(r.data))
		return
	}
	r.err = fmt.Errorf("%s at byte %d, got %q", what, r.pos, r.data[r.pos:min(r.pos+1, len(r.data))])
}

func (r *Reader) space() {
	for r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ' ', '\n', '\t', '\r':
			r.pos++
		default:
			return
		}
	}
}

// Peek returns what the next value is: '{', '[', '"', '0' for a number, 't' for a
// boolean, 'n' for null, 0 for none of them.
func (r *Reader) Peek() byte {
	if r.err != nil {
		return 0
	}
	r.space()
	if r.pos < len(r.data) {
		switch c := r.data[r.pos]; c {
		case '{', '[', '"', 'n':
			return c
		case 't', 'f':
			return 't'
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'N', 'I':
			return '0'
		}
	}
	r.fail("expected a value")
	return 0
}

// Object enters an object; Key then reads its members.
func (r *Reader) Object() bool { return r.open('{', "expected an object") }

// Array enters an array; Elem then reads its elements.
func (r *Reader) Array() bool { return r.open('[', "expected an array") }

func (r *Reader) open(c byte, want string) bool {
	if r.Peek() != c {
		r.fail(want)
		return false
	}
	if r.depth++; r.depth > maxDepth {
		r.err = fmt.Errorf("nested deeper than %d levels at byte %d", maxDepth, r.pos)
		return false
	}
	r.pos++
	r.first = true
	return true
}

// more moves to the next member or element, or past the closing bracket.
func (r *Reader) more(closing byte) bool {
	if r.err != nil {
		return false
	}
	r.space()
	if r.pos < len(r.data) {
		c := r.data[r.pos]
		if c == closing {
			r.pos++
			r.depth--
			r.first = false
			return false
		}
		if r.first {
			r.first = false
			r.commaPos = -1
			return true
		}
		if c == ',' {
			r.commaPos = r.pos
			r.pos++
			return true
		}
	}
	if closing == '}' {
		r.fail("expected ',' or '}'")
	} else {
		r.fail("expected ',' or ']'")
	}
	return false
}

// Elem tells whether the array entered last has another element to read, and leaves
// the array when it has not.
func (r *Reader) Elem() bool { return r.more(']') }

// Key reads the next key of the object entered last, unescaped and valid until the
// next call, and leaves the object when there is none.
func (r *Reader) Key() (key []byte, ok bool) {
	raw, escaped, ok := r.rawKey()
	if escaped {
		r.unescaped = Unescape(r.unescaped[:0], raw)
		return r.unescaped, ok
	}
	return raw, ok
}

func (r *Reader) rawKey() (raw []byte, escaped, ok bool) {
	if !r.more('}') {
		return nil, false, false
	}
	r.space()
	if r.pos >= len(r.data) || r.data[r.pos] != '"' {
		r.fail("expected a key in double quotes")
		return nil, false, false
	}
	r.keyStart = r.pos
	raw, escaped = r.str()
	r.space()
	if r.err == nil && (r.pos >= len(r.data) || r.data[r.pos] != ':') {
		r.fail("expected ':'")
	}
	if r.err != nil {
		return nil, false, false
	}
	r.pos++
	return raw, escaped, true
}

// String reads a string and returns the bytes between its quotes as written;
// escaped says that Unescape would change them.
func (r *Reader) String() (raw []byte, escaped bool) {
	if r.Peek() != '"' {
		r.fail("expected a string")
		return nil, false
	}
	return r.str()
}

// Skip reads one value of any kind and returns where it stands.
func (r *Reader) Skip() Span {
	kind := r.Peek()
	start := r.pos
	switch kind {
	case '"':
		r.str()
	case '{':
		r.Object()
		for _, _, ok := r.rawKey(); ok; _, _, ok = r.rawKey() {
			r.Skip()
		}
	case '[':
		r.Array()
		for r.Elem() {
			r.Skip()
		}
	case '0':
		r.number()
	case 't':
		r.Bool()
	case 'n':
		r.literal("null")
	}
	if r.err != nil {
		return Span{}
	}
	return Span{start, r.pos}
}

// Bool reads true or false.
func (r *Reader) Bool() bool {
	if r.Peek() != 't' {
		r.fail("expected true or false")
		return false
	}
	if r.data[r.pos] == 't' {
		return r.literal("true")
	}
	r.literal("false")
	return false
}

// Null reads null where it comes next and tells whether it did.
func (r *Reader) Null() bool { return r.Peek() == 'n' && r.literal("null") }

func (r *Reader) literal(s string) bool {
	if !bytes.HasPrefix(r.data[r.pos:], []byte(s)) {
		r.fail("expected " + s)
		return false
	}
	r.pos += len(s)
	return true
}

// Int reads a number that is a whole one, 2e3 and 7.0 included; ok is false for any
// other number. Values beyond ±1<<53 come back as that.
func (r *Reader) Int() (n int64, ok bool) {
	if r.Peek() != '0' {
		r.fail("expected a number")
		return 0, false
	}
	start := r.pos
	for r.pos < len(r.data) && r.data[r.pos]-'0' <= 9 && r.pos-start < 15 {
		n = 10*n + int64(r.data[r.pos]-'0')
		r.pos++
	}
	if r.pos > start && (r.pos == len(r.data) || endsNumber[r.data[r.pos]]) && (r.data[start] != '0' || r.pos == start+1) {
		return n, true
	}
	r.pos = start
	r.number()
	if r.err != nil {
		return 0, false
	}
	const limit = 1 << 53
	f, err := strconv.ParseFloat(string(r.data[start:r.pos]), 64)
	switch {
	case f >= limit:
		return limit, true
	case f <= -limit:
		return -limit, true
	case err != nil || f != float64(int64(f)): // NaN is equal to nothing
		return 0, false
	}
	return int64(f), true
}

// endsNumber holds the bytes that may follow the digits of a plain integer.
var endsNumber = [256]bool{',': true, ']': true, '}': true, ' ': true, '\n': true, '\t': true, '\r': true}

func (r *Reader) number() {
	start := r.pos
	if r.data[r.pos] == '-' {
		r.pos++
	}
	switch {
	case r.pos == start && r.data[r.pos] == 'N':
		r.literal("NaN")
		return
	case r.pos < len(r.data) && r.data[r.pos] == 'I':
		r.literal("Infinity")
		return
	case r.pos < len(r.data) && r.data[r.pos] == '0':
		r.pos++
	default:
		if !r.digits() {
			return
		}
	}
	if r.pos < len(r.data) && r.data[r.pos] == '.' {
		r.pos++
		if !r.digits() {
			return
		}
	}
	if r.pos < len(r.data) && (r.data[r.pos] == 'e' || r.data[r.pos] == 'E') {
		r.pos++
		if r.pos < len(r.data) && (r.data[r.pos] == '+' || r.data[r.pos] == '-') {
			r.pos++
		}
		r.digits()
	}
}

func (r *Reader) digits() bool {
	start := r.pos
	for r.pos < len(r.data) && r.data[r.pos]-'0' <= 9 {
		r.pos++
	}
	if r.pos == start {
		r.fail("expected a digit")
		return false
	}
	return true
}

// str reads a string whose opening quote is the next byte.
func (r *Reader) str() (raw []byte, escaped bool) {
	d, i := r.data, r.pos+1
	start := i
	for {
		if i = plainEnd(d, i); i >= len(d) {
			r.pos = len(d)
			r.fail("expected the end of a string")
			return nil, false
		}
		switch d[i] {
		case '"':
			r.pos = i + 1
			return d[start:i], escaped
		case '\\':
			escaped = true
			if i+1 < len(d) && shortEscape[d[i+1]] {
				i += 2
				continue
			}
			n := escapeLen(d[i:])
			if n == 0 {
				r.pos = i
				r.fail("expected a valid escape")
				return nil, false
			}
			i += n
		default:
			r.pos = i
			r.fail("expected no control character in a string")
			return nil, false
		}
	}
}

// plainEnd returns the index of the first quote, backslash or control character of d
// at or after i, len(d) where there is none. Eight bytes at a time: the lowest marked
// byte of the sum below is exact, those above it may be false (Mycroft's trick).
func plainEnd(d []byte, i int) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	for ; i+8 <= len(d); i += 8 {
		x := binary.LittleEndian.Uint64(d[i:])
		quote := x ^ ones*'"'
		slash := x ^ ones*'\\'
		if m := ((x-ones*0x20)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for ; i < len(d); i++ {
		if c := d[i]; c < 0x20 || c == '"' || c == '\\' {
			break
		}
	}
	return i
}
