package tokenizer

import (
	_ "embed"
	"encoding/binary"
	"slices"
	"sync"
	"unicode/utf8"
)

// NFC as Hugging Face's normalizer computes it: with the data of Unicode 9, so that later
// marks are not reordered and later pairs not composed, and without the limit on marks
// in a row of golang.org/x/text, which inserts U+034F.

//go:embed tables/nfc.bin
var nfcData []byte // written by tables/generate.py

type nfcTables struct {
	class     map[rune]uint8 // combining class, if not 0
	decompose map[rune][2]rune
	compose   map[[2]rune]rune
}

var loadNFC = sync.OnceValue(func() *nfcTables {
	t := &nfcTables{map[rune]uint8{}, map[rune][2]rune{}, map[[2]rune]rune{}}
	for d := nfcData; len(d) > 0; d = d[12:] {
		c, x, y := binary.LittleEndian.Uint32(d), binary.LittleEndian.Uint32(d[4:]), binary.LittleEndian.Uint32(d[8:])
		if y == 1<<32-1 {
			t.class[rune(c)] = uint8(x)
			continue
		}
		r, pair := rune(c&^(1<<31)), [2]rune{rune(x), rune(y)}
		t.decompose[r] = pair
		if c>>31 == 0 {
			t.compose[pair] = r
		}
	}
	return t
})

// Hangul syllables are composed by arithmetic (The Unicode Standard, section 3.12).
const (
	hangulS, hangulL, hangulV, hangulT = 0xAC00, 0x1100, 0x1161, 0x11A7
	countL, countV, countT             = 19, 21, 28
	countN                             = countV * countT
)

// mark is a character with its combining class.
type mark struct {
	r     rune
	class uint8
}

// nfc gives s in NFC, in s itself when nothing changes, else in dst's memory. A character
// without classCombine never changes and nothing before it matters after it, so only
// stretches from such a character over characters with the bit are looked at.
func nfc(dst, s []byte) []byte {
	at := combining(s, 0)
	if at == len(s) {
		return s
	}
	t := loadNFC()
	dst = dst[:0]
	var buf [32]mark
	chars := buf[:0]
	for done := 0; ; {
		start := at
		if at > done {
			_, size := utf8.DecodeLastRune(s[done:at])
			start -= size
		}
		end := run(s, at, classCombine)
		dst = append(dst, s[done:start]...)
		chars = t.normalize(chars[:0], s[start:end])
		for _, c := range chars {
			dst = utf8.AppendRune(dst, c.r)
		}
		done = end
		if at = combining(s, done); at == len(s) {
			return append(dst, s[done:]...)
		}
	}
}

// combining gives the place of the next character with classCombine, or len(s).
func combining(s []byte, i int) int {
	for i < len(s) {
		for i+8 <= len(s) && binary.LittleEndian.Uint64(s[i:])&highs == 0 {
			i += 8
		}
		for i < len(s) && s[i] < utf8.RuneSelf {
			i++
		}
		for i < len(s) && s[i] >= utf8.RuneSelf {
			class, size := classAt(s, i)
			if class&classCombine != 0 {
				return i
			}
			i += size
		}
	}
	return i
}

// normalize decomposes s, orders its marks and composes it again.
func (t *nfcTables) normalize(chars []mark, s []byte) []mark {
	for i := 0; i < len(s); {
		r, size := runeAt(s, i)
		chars = t.split(chars, r)
		i += size
	}
	for i := 0; i < len(chars); i++ {
		if chars[i].class == 0 {
			continue
		}
		j := i + 1
		for j < len(chars) && chars[j].class != 0 {
			j++
		}
		slices.SortStableFunc(chars[i:j], func(a, b mark) int { return int(a.class) - int(b.class) })
		i = j
	}
	return t.join(chars)
}

func (t *nfcTables) split(chars []mark, r rune) []mark {
	if d, ok := t.decompose[r]; ok {
		chars = t.split(chars, d[0])
		if d[1] != 0 {
			chars = t.split(chars, d[1])
		}
		return chars
	}
	if s := r - hangulS; s >= 0 && s < countL*countN {
		chars = append(chars, mark{hangulL + s/countN, 0}, mark{hangulV + s%countN/countT, 0})
		if s%countT != 0 {
			chars = append(chars, mark{hangulT + s%countT, 0})
		}
		return chars
	}
	return append(chars, mark{r, t.class[r]})
}

// join composes chars in place.
func (t *nfcTables) join(chars []mark) []mark {
	out := chars[:0]
	starter, last := -1, -1 // last: class of what stands since the starter, -1 for nothing
	for _, c := range chars {
		if starter >= 0 && last < int(c.class) {
			if r, ok := t.pair(out[starter].r, c.r); ok {
				out[starter].r = r
				continue
			}
		}
		out = append(out, c)
		if c.class == 0 {
			starter, last = len(out)-1, -1
		} else {
			last = int(c.class)
		}
	}
	return out
}

func (t *nfcTables) pair(a, b rune) (rune, bool) {
	if l, v := a-hangulL, b-hangulV; l >= 0 && l < countL && v >= 0 && v < countV {
		return hangulS + (l*countV+v)*countT, true
	}
	if s, f := a-hangulS, b-hangulT; s >= 0 && s < countL*countN && s%countT == 0 && f > 0 && f < countT {
		return a + f, true
	}
	r, ok := t.compose[[2]rune{a, b}]
	return r, ok
}
