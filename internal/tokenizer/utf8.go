package tokenizer

import "unicode/utf8"

// validUTF8 gives s itself when it is UTF-8, else a copy in dst with U+FFFD for every
// maximal part of a broken sequence (The Unicode Standard, section 3.9), as Python's
// bytes.decode("utf-8", "replace") does.
func validUTF8(dst, s []byte) []byte {
	if utf8.Valid(s) {
		return s
	}
	dst = dst[:0]
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			dst = append(dst, s[i])
			i++
			continue
		}
		if r, size := utf8.DecodeRune(s[i:]); r != utf8.RuneError || size > 1 {
			dst = append(dst, s[i:i+size]...)
			i += size
			continue
		}
		dst = append(dst, "\uFFFD"...)
		i += broken(s[i:])
	}
	return dst
}

// broken gives the length of the broken sequence at the start of s: its first byte and the
// following ones as long as they could continue to a character.
func broken(s []byte) int {
	lo, hi, n := byte(0x80), byte(0xBF), 0
	switch c := s[0]; {
	case c >= 0xC2 && c <= 0xDF:
		n = 1
	case c >= 0xE0 && c <= 0xEF:
		n = 2
		if c == 0xE0 {
			lo = 0xA0
		}
		if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		n = 3
		if c == 0xF0 {
			lo = 0x90
		}
		if c == 0xF4 {
			hi = 0x8F
		}
	}
	i := 1
	for ; i <= n && i < len(s) && s[i] >= lo && s[i] <= hi; i++ {
		lo, hi = 0x80, 0xBF
	}
	return i
}
