package openai

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// shortEscape holds the letters of the escapes of two bytes.
var shortEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// escapeLen returns the length of the escape that b starts with, 0 for none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	if shortEscape[b[1]] {
		return 2
	}
	if b[1] == 'u' {
		if _, ok := hex4(b[2:]); ok {
			return 6
		}
	}
	return 0
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var v rune
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		v = v<<4 | rune(c)
	}
	return v, true
}

// Unescape appends the text that raw, the inside of a valid JSON string, stands for.
// A lone surrogate keeps its own three bytes, so that distinct strings stay distinct.
func Unescape(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		raw = raw[i:]
		n := escapeLen(raw)
		if n == 0 {
			return append(dst, raw...)
		}
		switch c := raw[1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			v, _ := hex4(raw[2:])
			if utf16.IsSurrogate(v) {
				if low, ok := lowSurrogate(raw[6:]); ok && v < 0xdc00 {
					v, n = utf16.DecodeRune(v, low), 12
				} else {
					dst = append(dst, 0xe0|byte(v>>12), 0x80|byte(v>>6)&0x3f, 0x80|byte(v)&0x3f)
					break
				}
			}
			dst = utf8.AppendRune(dst, v)
		default:
			dst = append(dst, c)
		}
		raw = raw[n:]
	}
}

func lowSurrogate(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	v, ok := hex4(b[2:])
	return v, ok && v >= 0xdc00 && v < 0xe000
}

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			switch {
			case c == '"' || c == '\\':
				dst = append(dst, '\\', c)
			case c == '\n':
				dst = append(dst, '\\', 'n')
			case c == '\r':
				dst = append(dst, '\\', 'r')
			case c == '\t':
				dst = append(dst, '\\', 't')
			case c < 0x20 || c == 0x7f:
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			default:
				dst = append(dst, c)
			}
			i++
			continue
		}
		v, n := utf8.DecodeRuneInString(s[i:])
		if v == utf8.RuneError && n == 1 {
			dst = append(dst, "\ufffd"...)
		} else {
			dst = append(dst, s[i:i+n]...)
		}
		i += n
	}
	return append(dst, '"')
}
