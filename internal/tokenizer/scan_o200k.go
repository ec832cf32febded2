package tokenizer

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// o200k is the expression of GPT-4o and gpt-oss, and without contractions Mistral's Tekken:
//
//	[^\r\n\p{L}\p{N}]?[{upper}]*[{lower}]+(contraction)?
//	|[^\r\n\p{L}\p{N}]?[{upper}]+[{lower}]*(contraction)?
//	|\p{N}{1,limit}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// {upper} is \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}, {lower} is \p{Ll}\p{Lm}\p{Lo}\p{M}.
type o200k struct {
	limit        int
	contractions bool
}

const (
	caseless  = classOther | classMark
	upperCase = classUpper | caseless
	lowerCase = classLower | caseless
)

func (p *o200k) next(s []byte, i int) int {
	class, size := classAt(s, i)
	c := s[i]
	j := i + size
	if class&classLetter != 0 {
		return p.suffix(s, p.word(s, i))
	}
	if class&classNumber != 0 {
		return digits(s, j, p.limit-1)
	}
	if c != '\n' && c != '\r' && j < len(s) {
		if end := p.word(s, j); end > j {
			if class&classMark != 0 && !endsLower(s, j, end) {
				return p.suffix(s, j) // the mark alone ends a lower-case run
			}
			return p.suffix(s, end)
		}
		if c == ' ' {
			if after, _ := classAt(s, j); after&(classSpace|classNumber) == 0 {
				return p.punctuation(s, j)
			}
		}
	}
	switch {
	case class&classMark != 0:
		return p.suffix(s, j)
	case class&classSpace != 0:
		return spaces(s, i)
	}
	return p.punctuation(s, i)
}

// word gives the end of [{upper}]*[{lower}]+ from s[i], else of [{upper}]+, else i.
func (p *o200k) word(s []byte, i int) int {
	j, free := i, -1 // free: the end of the last character of both cases
	for j < len(s) {
		class, size := classAt(s, j)
		if class&upperCase == 0 {
			if class&classLower != 0 {
				return lower(s, j+size)
			}
			break
		}
		j += size
		if class&caseless != 0 {
			free = j
		}
	}
	if free >= 0 {
		return free // [{upper}]* gives back as little as possible
	}
	return j
}

// endsLower reports whether s[i:end] ends with a character of [{lower}].
func endsLower(s []byte, i, end int) bool {
	_, size := utf8.DecodeLastRune(s[i:end])
	class, _ := classAt(s, end-size)
	return class&lowerCase != 0
}

// lower gives the end of [{lower}]* from s[i].
func lower(s []byte, i int) int {
	for i+8 <= len(s) {
		m := asciiRange(binary.LittleEndian.Uint64(s[i:]), 'a', 'z')
		if m == highs {
			i += 8
			continue
		}
		i += bits.TrailingZeros64(^m&highs) >> 3
		if s[i] < utf8.RuneSelf {
			return i
		}
		for {
			class, size := classAt(s, i)
			if class&lowerCase == 0 {
				return i
			}
			i += size
			if i == len(s) || s[i] < utf8.RuneSelf {
				break
			}
		}
	}
	return run(s, i, lowerCase)
}

func (p *o200k) suffix(s []byte, i int) int {
	if p.contractions {
		return contraction(s, i)
	}
	return i
}

// punctuation is [^\s\p{L}\p{N}]+[\r\n/]* from s[i].
func (p *o200k) punctuation(s []byte, i int) int {
	i = runWithout(s, i, classSpace|classLetter|classNumber)
	for i < len(s) && (s[i] == '\n' || s[i] == '\r' || s[i] == '/') {
		i++
	}
	return i
}
