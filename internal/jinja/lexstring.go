package jinja

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// quoted reads a string literal.
func (lx *lexer) quoted(rest string, quote byte) {
	escaped := false
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			escaped = true
			i++
		case quote:
			text := rest[1:i]
			if escaped {
				text = lx.unescape(text)
			}
			lx.add(tokString, text)
			lx.to(lx.pos + i + 1)
			return
		}
	}
	lx.fail("unexpected quote: the string has no end")
}

// unescape reads the escapes of a Python string. Unknown ones stay as they are.
func (lx *lexer) unescape(s string) string {
	b := make([]byte, 0, len(s))
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 || i+1 >= len(s) {
			return string(append(b, s...))
		}
		b = append(b, s[:i]...)
		c, from := s[i+1], s[i+1:]
		s = s[i+2:]
		if at := strings.IndexByte(`\'"abfnrtv`, c); at >= 0 {
			b = append(b, "\\'\"\a\b\f\n\r\t\v"[at])
			continue
		}
		switch {
		case c == '\n':
		case c >= '0' && c <= '7':
			n := 0
			for n < 2 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
				n++
			}
			b = lx.appendCode(b, string(rune(c))+s[:n], 8)
			s = s[n:]
		case c == 'x' || c == 'u' || c == 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if len(s) < n {
				lx.fail("truncated escape in a string")
			}
			b = lx.appendCode(b, s[:n], 16)
			s = s[n:]
		case c == 'N':
			lx.fail(`\N{name} in a string is not supported`)
		case c < utf8.RuneSelf:
			b = append(b, '\\', c)
		default:
			// jinja2 first writes the character as an escape, whose backslash the
			// one before it then escapes.
			r, size := utf8.DecodeRuneInString(from)
			b = appendBackslashed(b, r)
			s = s[size-1:]
		}
	}
}

func appendBackslashed(b []byte, r rune) []byte {
	switch {
	case r < 0x100:
		return appendHex(append(b, `\x`...), uint32(r), 2)
	case r < 0x10000:
		return appendHex(append(b, `\u`...), uint32(r), 4)
	}
	return appendHex(append(b, `\U`...), uint32(r), 8)
}

func (lx *lexer) appendCode(b []byte, digits string, base int) []byte {
	n, err := strconv.ParseUint(digits, base, 32)
	if err != nil || !utf8.ValidRune(rune(n)) {
		lx.fail("invalid escape in a string")
	}
	return utf8.AppendRune(b, rune(n))
}
