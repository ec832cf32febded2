package tokenizer

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// A cutter is one pre-tokenizer as a scanner.
type cutter interface {
	// next gives the end of the piece of s that begins at i, i < len(s). s is the piece
	// of the stage before and valid UTF-8; "end of text" of the expression is its end.
	next(s []byte, i int) int
}

// asciiLetters gives the end of the run from s[i] of ASCII letters. Eight bytes are looked
// at together.
func asciiLetters(s []byte, i int) int {
	for i+8 <= len(s) {
		m := asciiRange(binary.LittleEndian.Uint64(s[i:])|0x20*ones, 'a', 'z')
		if m != highs {
			return i + bits.TrailingZeros64(^m&highs)>>3
		}
		i += 8
	}
	for i < len(s) && s[i] < utf8.RuneSelf && ascii[s[i]]&classLetter != 0 {
		i++
	}
	return i
}

// letters gives the end of the run from s[i] of characters with a bit of word, which
// includes all letters.
func letters(s []byte, i int, word uint8) int {
	i = asciiLetters(s, i)
	if i == len(s) || s[i] < utf8.RuneSelf {
		return i
	}
	return run(s, i, word)
}

// digits gives the end of the run of at most limit numbers from s[i].
func digits(s []byte, i, limit int) int {
	for ; limit > 0 && i < len(s); limit-- {
		class, size := classAt(s, i)
		if class&classNumber == 0 {
			break
		}
		i += size
	}
	return i
}

// newlines gives the end of the run [\r\n]* from s[i].
func newlines(s []byte, i int) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}

// spaces is \s*[\r\n]+|\s+(?!\S)|\s+ at a white space.
func spaces(s []byte, i int) int {
	j, last, line := i, i, -1
	for j < len(s) {
		c := s[j]
		if c < utf8.RuneSelf {
			if ascii[c]&classSpace == 0 {
				break
			}
			last = j
			j++
			if c == '\n' || c == '\r' {
				line = j
			}
			continue
		}
		class, size := classAt(s, j)
		if class&classSpace == 0 {
			break
		}
		last = j
		j += size
	}
	switch {
	case line >= 0:
		return line // \s* gives back all up to the last line end
	case j == len(s) || last == i:
		return j
	}
	return last // the last space stays for the next piece
}

// contraction gives the end of (?i:'s|'t|'re|'ve|'m|'ll|'d) at s[i], or i. Without regard
// to case, s is also U+017F.
func contraction(s []byte, i int) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	a, b := s[i+1]|0x20, byte(0)
	if i+2 < len(s) {
		b = s[i+2] | 0x20
	}
	switch {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return i + 2
	case (a == 'r' || a == 'v') && b == 'e', a == 'l' && b == 'l':
		return i + 3
	case s[i+1] == 0xC5 && i+2 < len(s) && s[i+2] == 0xBF:
		return i + 3
	}
	return i
}

// cl100k is the expression of Llama 3 and Qwen, with the parts in which they differ:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?{word}+|\p{N}{1,limit}
//	| ?[^\s{word}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
type cl100k struct {
	word  uint8 // \p{L}, or [\p{L}\p{M}]
	limit int   // numbers in one piece
}

func (p *cl100k) next(s []byte, i int) int {
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		j++
	}
	if c := s[j] | 0x20; c >= 'a' && c <= 'z' { // most words
		return letters(s, j+1, p.word)
	}
	return p.rare(s, i)
}

func (p *cl100k) rare(s []byte, i int) int {
	class, size := classAt(s, i)
	if class&p.word != 0 {
		return letters(s, i+size, p.word)
	}
	if class&classNumber != 0 {
		return digits(s, i+size, p.limit-1)
	}
	c := s[i]
	if c == '\'' {
		if j := contraction(s, i); j > i {
			return j
		}
	}
	j := i + size
	if j < len(s) && c != '\n' && c != '\r' {
		after, n := classAt(s, j)
		if after&p.word != 0 {
			return letters(s, j+n, p.word)
		}
		if c == ' ' && after&(classSpace|classNumber) == 0 {
			return newlines(s, runWithout(s, j+n, classSpace|classNumber|p.word))
		}
	}
	if class&classSpace != 0 {
		return spaces(s, i)
	}
	return newlines(s, runWithout(s, j, classSpace|classNumber|p.word))
}
