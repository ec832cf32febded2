package tokenizer

import "unicode/utf8"

// Byte-level tokens are written in the printable alphabet of GPT-2: printable Latin-1
// bytes stand for themselves, the others, in order, for U+0100 and up.
var (
	fromAlphabet = alphabet() // character to byte, -1 outside
	alphabetSize = rune(len(fromAlphabet))
)

func alphabet() (table [0x144]int16) {
	for i := range table {
		table[i] = -1
	}
	next := 0x100
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			table[b] = int16(b)
			continue
		}
		table[next] = int16(b)
		next++
	}
	return table
}

// appendAlphabet appends the bytes that text stands for. A text with a character outside
// the alphabet stands for itself, and ok is false.
func appendAlphabet(dst, text []byte) (_ []byte, ok bool) {
	start := len(dst)
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(text[i:])
		}
		if r >= alphabetSize || fromAlphabet[r] < 0 {
			return append(dst[:start], text...), false
		}
		dst = append(dst, byte(fromAlphabet[r]))
		i += size
	}
	return dst, true
}
