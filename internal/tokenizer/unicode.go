package tokenizer

import (
	_ "embed"
	"encoding/binary"
	"unicode/utf8"
)

// Class bits of a code point: general categories of Unicode 16, which the regular
// expressions of Hugging Face's tokenizers know (Go's unicode package is older).
const (
	classUpper   uint8 = 1 << iota // Lu, Lt
	classLower                     // Ll
	classOther                     // Lm, Lo
	classMark                      // M
	classNumber                    // N
	classSpace                     // White_Space
	classPunct                     // P, S
	classCombine                   // may change under NFC together with what stands before it
)

const (
	classLetter = classUpper | classLower | classOther
	classPages  = 156
	planePages  = 0x110000 >> 8
)

// Written by tables/generate.py; the formats are described there.
var (
	//go:embed tables/classes.bin
	classData []byte
	//go:embed tables/words.bin
	wordData []byte

	pageIndex = (*[planePages]uint8)(classData[:planePages])
	pages     = (*[classPages << 8]uint8)(classData[planePages:])
	ascii     = (*[utf8.RuneSelf]uint8)(pages[:]) // page 0 stands first
)

func classOf(r rune) uint8 {
	return pages[uint32(pageIndex[r>>8])<<8|uint32(r&0xFF)]
}

// runeAt decodes the character at s[i] of valid UTF-8.
func runeAt(s []byte, i int) (r rune, size int) {
	c := s[i]
	switch {
	case c < 0x80:
		return rune(c), 1
	case c < 0xE0:
		return rune(c&0x1F)<<6 | rune(s[i+1]&0x3F), 2
	case c < 0xF0:
		return rune(c&0x0F)<<12 | rune(s[i+1]&0x3F)<<6 | rune(s[i+2]&0x3F), 3
	}
	return rune(c&0x07)<<18 | rune(s[i+1]&0x3F)<<12 | rune(s[i+2]&0x3F)<<6 | rune(s[i+3]&0x3F), 4
}

// classAt gives the class bits and the length of the character at s[i] of valid UTF-8.
func classAt(s []byte, i int) (class uint8, size int) {
	if c := s[i]; c < utf8.RuneSelf {
		return ascii[c], 1
	}
	r, size := runeAt(s, i)
	return classOf(r), size
}

// run gives the end of the longest run from s[i] of characters with a bit of mask.
func run(s []byte, i int, mask uint8) int {
	for i < len(s) {
		if c := s[i]; c < utf8.RuneSelf {
			if ascii[c]&mask == 0 {
				return i
			}
			i++
			continue
		}
		class, size := classAt(s, i)
		if class&mask == 0 {
			return i
		}
		i += size
	}
	return i
}

// runWithout gives the end of the longest run from s[i] without any bit of mask.
func runWithout(s []byte, i int, mask uint8) int {
	for i < len(s) {
		if c := s[i]; c < utf8.RuneSelf {
			if ascii[c]&mask != 0 {
				return i
			}
			i++
			continue
		}
		class, size := classAt(s, i)
		if class&mask != 0 {
			return i
		}
		i += size
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// asciiRange marks with 0x80 the bytes of x within lo..hi, both below 0x80.
func asciiRange(x uint64, lo, hi uint64) uint64 {
	low := x &^ highs
	return (low + (0x80-lo)*ones) &^ (low + (0x7F-hi)*ones) &^ x & highs
}

// isWord reports whether r matches \w of Rust's regex crate.
func isWord(r rune) bool {
	lo, hi := 0, len(wordData)/8
	for lo < hi {
		mid := (lo + hi) / 2
		first := rune(binary.LittleEndian.Uint32(wordData[mid*8:]))
		last := rune(binary.LittleEndian.Uint32(wordData[mid*8+4:]))
		switch {
		case r < first:
			hi = mid
		case r > last:
			lo = mid + 1
		default:
			return true
		}
	}
	return false
}
