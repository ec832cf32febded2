package tokenizer

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner walks over JSON text. It exists for the vocabulary and the merges, which are
// hundreds of thousands of strings; small parts go to encoding/json.
type scanner struct {
	data []byte
	pos  int
}

func (s *scanner) errorf(format string, args ...any) error {
	return fmt.Errorf("JSON offset %d: %s", s.pos, fmt.Sprintf(format, args...))
}

func (s *scanner) space() {
	for s.pos < len(s.data) && s.data[s.pos] <= ' ' {
		if s.pos++; s.pos+8 <= len(s.data) && s.data[s.pos] == ' ' {
			s.spaces()
		}
	}
}

// peek gives the next byte that is not white space, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) expect(c byte) error {
	if s.peek() != c {
		return s.errorf("expected %q", c)
	}
	s.pos++
	return nil
}

// more reads what stands before the next element of a list or object that close ends:
// true for an element, false when the list is at its end.
func (s *scanner) more(first bool, close byte) (bool, error) {
	switch c := s.peek(); {
	case c == close:
		s.pos++
		return false, nil
	case first:
		return true, nil
	case c == ',':
		s.pos++
		return true, nil
	}
	return false, s.errorf("expected ',' or %q", close)
}

// raw reads a string and gives what stands between the quotes; escaped tells whether it
// holds escapes.
func (s *scanner) raw() (text []byte, escaped bool, err error) {
	if err := s.expect('"'); err != nil {
		return nil, false, err
	}
	start := s.pos
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case '"':
			text = s.data[start:s.pos]
			s.pos++
			return text, escaped, nil
		case '\\':
			escaped = true
			s.pos++
		}
		s.pos++
	}
	return nil, false, errors.New("JSON: a string does not end")
}

// str appends the next string to dst.
func (s *scanner) str(dst []byte) ([]byte, error) {
	text, escaped, err := s.raw()
	if err != nil {
		return dst, err
	}
	if !escaped {
		return append(dst, text...), nil
	}
	return s.unescape(dst, text)
}

func (s *scanner) unescape(dst, text []byte) ([]byte, error) {
	for {
		k := bytes.IndexByte(text, '\\')
		if k < 0 {
			return append(dst, text...), nil
		}
		dst = append(dst, text[:k]...)
		c := text[k+1]
		text = text[k+2:]
		switch c {
		case '"', '\\', '/':
			dst = append(dst, c)
		case 'b', 'f', 'n', 'r', 't':
			dst = append(dst, "\b\f\n\r\t"[bytes.IndexByte([]byte("bfnrt"), c)])
		case 'u':
			r, rest, ok := unicodeEscape(text)
			if !ok {
				return dst, s.errorf("a bad \\u escape in a string")
			}
			dst, text = utf8.AppendRune(dst, r), rest
		default:
			return dst, s.errorf("a bad escape in a string")
		}
	}
}

// unicodeEscape reads what follows \u, with the second half of a surrogate pair.
func unicodeEscape(text []byte) (r rune, rest []byte, ok bool) {
	hex := func(t []byte) (rune, bool) {
		if len(t) < 4 {
			return 0, false
		}
		v, err := strconv.ParseUint(string(t[:4]), 16, 32)
		return rune(v), err == nil
	}
	if r, ok = hex(text); !ok {
		return 0, nil, false
	}
	text = text[4:]
	if !utf16.IsSurrogate(r) {
		return r, text, true
	}
	if len(text) < 2 || text[0] != '\\' || text[1] != 'u' {
		return 0, nil, false
	}
	low, ok := hex(text[2:])
	r = utf16.DecodeRune(r, low)
	if !ok || r == utf8.RuneError {
		return 0, nil, false
	}
	return r, text[6:], true
}

// uint reads a number from 0 to 2^32-1.
func (s *scanner) uint() (uint32, error) {
	s.space()
	start, v := s.pos, uint64(0)
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' && s.pos-start < 11 {
		v = v*10 + uint64(s.data[s.pos]-'0')
		s.pos++
	}
	if s.pos == start || v > 1<<32-1 {
		return 0, s.errorf("expected a number below 2^32")
	}
	return uint32(v), nil
}

// markEvery is the number of elements of a list between two marks.
const markEvery = 1 << 13

// skip passes over one value and gives its text. Nesting is not followed by recursion. Of a
// list it notes in marks, unless that is nil, where in its text the elements begin whose
// number is a multiple of markEvery, so that several can read it.
func (s *scanner) skip(marks *[]int) (json.RawMessage, error) {
	s.space()
	start, depth, elements := s.pos, 0, 0
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		switch c {
		case '"':
			if _, _, err := s.raw(); err != nil {
				return nil, err
			}
			s.pos--
		case '[', '{':
			depth++
		case ',':
			if depth == 0 {
				return s.value(start)
			}
			if depth == 1 && marks != nil {
				if elements++; elements%markEvery == 0 {
					*marks = append(*marks, s.pos+1-start)
				}
			}
		case ']', '}':
			if depth == 0 {
				return s.value(start)
			}
			depth--
		case ' ':
			s.spaces()
			continue
		}
		s.pos++
		if depth == 0 && (c == '"' || c == ']' || c == '}') {
			return s.value(start)
		}
	}
	if depth > 0 {
		return nil, errors.New("JSON: the text ends inside a value")
	}
	return s.value(start)
}

// spaces passes over spaces, of which indented files have many.
func (s *scanner) spaces() {
	for len(s.data)-s.pos >= 8 && binary.LittleEndian.Uint64(s.data[s.pos:]) == 0x2020202020202020 {
		s.pos += 8
	}
	for s.pos < len(s.data) && s.data[s.pos] == ' ' {
		s.pos++
	}
}

func (s *scanner) value(start int) (json.RawMessage, error) {
	v := bytes.TrimSpace(s.data[start:s.pos])
	if len(v) == 0 {
		return nil, s.errorf("expected a value")
	}
	return json.RawMessage(v), nil
}

// file is the text of a tokenizer.json, its values not yet read. Those of the model stand
// beside the others, under "model." and their names.
type file struct {
	values map[string]json.RawMessage
	marks  []int // of the list model.merges, see skip
}

// readFields reads an object into the texts of its values. The last of equal keys counts.
func readFields(data []byte) (*file, error) {
	var valid bool
	var checking sync.WaitGroup
	checking.Go(func() { valid = utf8.Valid(data) })
	f := &file{values: map[string]json.RawMessage{}}
	s := &scanner{data: data}
	err := f.read(s, "")
	if checking.Wait(); !valid {
		return nil, errors.New("the text is not UTF-8")
	}
	if err != nil {
		return nil, err
	}
	if s.peek(); s.pos < len(data) {
		return nil, s.errorf("text after the object")
	}
	return f, nil
}

func (f *file) read(s *scanner, prefix string) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	for first := true; ; first = false {
		if ok, err := s.more(first, '}'); err != nil || !ok {
			return err
		}
		key, err := s.str(nil)
		if err == nil {
			err = s.expect(':')
		}
		if err != nil {
			return err
		}
		name := prefix + string(key)
		switch {
		case name == "model" && s.peek() == '{':
			err = f.read(s, "model.")
		case name == "model.merges":
			f.marks = f.marks[:0]
			f.values[name], err = s.skip(&f.marks)
		default:
			f.values[name], err = s.skip(nil)
		}
		if err != nil {
			return err
		}
	}
}
