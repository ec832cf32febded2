package tokenizer

import "unicode/utf8"

// borders knows between which characters a byte-level word may be cut into parts that
// are merged on their own: where no merge joins what ends with the one and what begins with
// the other. Chinese, Japanese or Thai words are whole clauses; their parts come back and
// are found in the cache.
//
// A token that ends at a border holds the character before it whole, or only its last
// bytes; the latter is noted by the last byte. A token that begins there holds the character
// behind it whole, or only its first bytes, noted by the first byte. Borders between two
// ASCII characters are not looked at.
type borders struct {
	joined pairSet
	tails  [256]bool // last bytes of tokens that hold no whole character at their end
	heads  [256]bool // first bytes of tokens that hold no whole character at their start
}

// partOf stands for a part of a character, by one byte, among characters.
func partOf(c byte) rune { return 1<<21 | rune(c) }

// join notes that a merge joins a with b.
func (p *borders) join(a, b []byte) {
	left, ok := lastChar(a)
	if !ok {
		return // the border is inside a character
	}
	right, size := utf8.DecodeRune(b)
	if right == utf8.RuneError && size == 1 {
		if b[0] < 0xC0 {
			return // as above
		}
		right = partOf(b[0])
		p.heads[b[0]] = true
	}
	if left >= utf8.RuneSelf || right >= utf8.RuneSelf {
		if left == partOf(a[len(a)-1]) {
			p.tails[a[len(a)-1]] = true
		}
		p.joined.add(left, right)
	}
}

// lastChar gives the character at the end of a token, or partOf its last byte; ok is false
// when the token ends inside a character.
func lastChar(a []byte) (r rune, ok bool) {
	for i := len(a) - 1; i >= 0 && i >= len(a)-utf8.UTFMax; i-- {
		if !utf8.RuneStart(a[i]) {
			continue
		}
		r, size := utf8.DecodeRune(a[i:])
		return r, size == len(a)-i && (r != utf8.RuneError || size > 1)
	}
	return partOf(a[len(a)-1]), true
}

// next gives the end of the part of a word that begins at s[i].
func (p *borders) next(s []byte, i int) int {
	a, size := runeAt(s, i)
	i += size
	for i < len(s) {
		if a < utf8.RuneSelf {
			for i < len(s) && s[i] < utf8.RuneSelf {
				i++
			}
			if i == len(s) {
				return i
			}
			a = rune(s[i-1])
		}
		b, size := runeAt(s, i)
		if b >= utf8.RuneSelf || a >= utf8.RuneSelf {
			if !p.across(a, b, s[i-1], s[i]) {
				return i
			}
		}
		a = b
		i += size
	}
	return i
}

// across reports whether a merge may join tokens at the border between a, whose last byte is
// x, and b, whose first is y.
func (p *borders) across(a, b rune, x, y byte) bool {
	switch {
	case p.joined.has(a, b):
		return true
	case p.tails[x] && p.joined.has(partOf(x), b):
		return true
	case !p.heads[y]:
		return false
	}
	return p.joined.has(a, partOf(y)) || p.tails[x] && p.joined.has(partOf(x), partOf(y))
}
