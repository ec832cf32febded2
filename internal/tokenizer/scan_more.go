package tokenizer

import "unicode/utf8"

// gpt2 is the expression of ByteLevel with use_regex:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
type gpt2 struct{}

func (gpt2) next(s []byte, i int) int {
	if s[i] == '\'' && i+1 < len(s) && s[i+1] >= 'a' {
		// Only lower-case ASCII counts here.
		if j := contraction(s, i); j == i+2 || j == i+3 && s[i+1] < 0x80 && s[i+2] >= 'a' {
			return j
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		j++
	}
	class, size := classAt(s, j)
	switch {
	case class&classLetter != 0:
		return letters(s, j+size, classLetter)
	case class&classNumber != 0:
		return run(s, j+size, classNumber)
	case class&classSpace == 0:
		return runWithout(s, j+size, classSpace|classLetter|classNumber)
	}
	end := run(s, i, classSpace)
	if end == len(s) {
		return end
	}
	if _, last := utf8.DecodeLastRune(s[i:end]); end-last > i {
		return end - last
	}
	return end
}

// numbers is \p{N}{1,limit} on its own; what lies between the matches is a piece too. It
// is also the pre-tokenizer Digits, with limit 1 for individual digits.
type numbers struct{ limit int }

func (p numbers) next(s []byte, i int) int {
	if j := digits(s, i, p.limit); j > i {
		return j
	}
	return runWithout(s, i, classNumber)
}

// cjk is [一-龥぀-ゟ゠-ヿ]+ on its own.
type cjk struct{}

func isCJK(s []byte, i int) bool {
	if s[i] < 0xE3 || s[i] > 0xE9 {
		return false
	}
	r, _ := runeAt(s, i)
	return r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3040 && r <= 0x30FF
}

func (cjk) next(s []byte, i int) int {
	in := isCJK(s, i)
	for i < len(s) {
		if s[i] < utf8.RuneSelf {
			if in {
				return i
			}
			i++
			continue
		}
		if isCJK(s, i) != in {
			return i
		}
		_, size := runeAt(s, i)
		i += size
	}
	return i
}

// deepseek is the third expression of DeepSeek V3 and R1:
//
//	[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//	| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// It leaves some characters unmatched; a run of them is a piece.
type deepseek struct{}

func (p deepseek) next(s []byte, i int) int {
	if end := p.match(s, i); end > i {
		return end
	}
	for i < len(s) {
		_, size := runeAt(s, i)
		i += size
		if i < len(s) && p.match(s, i) > i {
			break
		}
	}
	return i
}

// match gives the end of the match at s[i], or i.
func (deepseek) match(s []byte, i int) int {
	const word = classLetter | classMark
	class, size := classAt(s, i)
	j := i + size
	switch {
	case class&word != 0:
		return letters(s, j, word)
	case class&classPunct != 0:
		if size == 1 && j < len(s) && s[j] < utf8.RuneSelf && ascii[s[j]]&classLetter != 0 {
			for j < len(s) && s[j] < utf8.RuneSelf && ascii[s[j]]&classLetter != 0 {
				j++
			}
			return j
		}
		return newlines(s, run(s, j, classPunct))
	}
	if j < len(s) && s[i] != '\n' && s[i] != '\r' {
		after, n := classAt(s, j)
		if after&word != 0 {
			return letters(s, j+n, word)
		}
		if s[i] == ' ' && after&classPunct != 0 {
			return newlines(s, run(s, j+n, classPunct))
		}
	}
	if class&classSpace != 0 {
		return spaces(s, i)
	}
	return i
}
