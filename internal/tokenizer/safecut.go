package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Frame gives the ids that EncodeSpecial puts before and after a text. The caller must not
// change them.
func (t *Tokenizer) Frame() (before, after []uint32) { return t.post.before, t.post.after }

// SafeCut gives the first place at or behind from at which a gap may be cut, whatever comes
// before and behind it in the gap: EncodeGap of the part before the cut and EncodeInside of
// the rest are EncodeGap of the whole. -1 where there is none. gap may be the beginning of a
// longer one.
//
// No known expression has a match that goes across such a place or that looks at it from the
// left, NFC does not compose over it, and a character-level model is asked for its merges.
func (t *Tokenizer) SafeCut(gap []byte, from int) int {
	for i := max(from, 1); i < len(gap); i++ {
		if t.cuts.allowed(gap[i-1], gap[i]) && t.safeAt(gap, i) {
			return i
		}
	}
	return -1
}

// safeAt tells whether a gap may be cut at i, where cuts allows it.
func (t *Tokenizer) safeAt(gap []byte, i int) bool {
	a, before := utf8.DecodeLastRune(gap[:i])
	b, behind := utf8.DecodeRune(gap[i:])
	if a == utf8.RuneError && before == 1 || b == utf8.RuneError && behind == 1 {
		return false // inside a character
	}
	if c := t.model.chars; c != nil && !c.separate(t.cuts.normal(a), t.cuts.normal(b)) {
		return false
	}
	switch {
	case t.cuts.anywhere:
		return true
	case a == '\n':
		x, size := utf8.DecodeLastRune(gap[:i-1])
		return size > 0 && classOf(x)&classSpace == 0 && classOf(b)&(classLetter|classNumber|classPunct) != 0 && classOf(b)&classCombine == 0
	case b == ' ':
		return classOf(a)&classSpace == 0
	case a < utf8.RuneSelf:
		return true
	}
	return ideographic(a) && slices.Contains(widePunctuation, b)
}

// widePunctuation ends the words of Chinese and Japanese, which have no spaces.
var widePunctuation = []rune("、。！，：；？")

func ideographic(r rune) bool {
	return r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3041 && r <= 0x3096 || r >= 0x30A1 && r <= 0x30FA
}

// cuts holds the pairs of characters between which SafeCut looks. All that are not ASCII
// count as one, wide.
type cuts struct {
	pairs    [wide + 1][wide + 1]bool // by the one before and the one behind
	anywhere bool                     // there is no expression: the merges alone decide
	meta     bool                     // the normalizer writes spaces as U+2581
}

const wide = utf8.RuneSelf

func (c *cuts) allowed(a, b byte) bool { return c.pairs[min(a, wide)][min(b, wide)] }

// normal gives a character as the model sees it.
func (c *cuts) normal(r rune) rune {
	if c.meta {
		return spaceToMeta(r)
	}
	return r
}

// findCuts sets the pairs; late are the added tokens that are looked for in the normalized
// text of a gap.
func (t *Tokenizer) findCuts(late []addedToken) {
	c := &t.cuts
	*c = cuts{meta: t.normalizer.noSpaces()}
	nfc, known := t.normalizer.keepsASCII()
	if !known || t.model.chars == nil && !t.pre.cutsWords() {
		return
	}
	c.anywhere = t.model.chars != nil && len(t.pre.stages) == 0 && !nfc
	for a := range rune(wide + 1) {
		for b := range rune(wide + 1) {
			c.pairs[a][b] = c.anywhere || endsWord(a, b)
		}
	}
	for i := range late {
		c.forbid(&late[i])
	}
}

// endsWord reports whether every known expression has the end of a match between a and b,
// which safeAt looks at again where one of them is wide or a is a line break.
//
// A space, and what is no letter, behind a letter, or no number behind a number, begins a
// match. A contraction may go on with an apostrophe, a run of punctuation with line breaks
// and slashes.
func endsWord(a, b rune) bool {
	visible := a > ' ' && a <= '~'
	switch {
	case a == wide:
		return b == ' ' || b == wide
	case a == '\n':
		return b > ' ' && b <= '~' && b != '/' || b == wide
	case b == wide:
		return false
	case b == ' ':
		return visible
	case ascii[a]&classLetter != 0:
		return ascii[b]&classLetter == 0 && b != '\''
	}
	return ascii[a]&classNumber != 0 && ascii[b]&classNumber == 0
}

// forbid takes the pairs away between which an added token may lie on both sides, take
// white space from the other side, or look there for the end of a word.
func (c *cuts) forbid(a *addedToken) {
	for _, text := range []string{string(a.text), strings.ReplaceAll(string(a.text), metaStr, " ")} {
		for k := 1; k < len(text); k++ {
			c.pairs[min(text[k-1], wide)][min(text[k], wide)] = false
		}
		first, last := min(text[0], wide), min(text[len(text)-1], wide)
		for other := range rune(wide + 1) {
			space := other == wide || ascii[other]&classSpace != 0
			word := other == wide || isWord(other)
			if a.LStrip && space || a.SingleWord && word {
				c.pairs[other][first] = false
			}
			if a.RStrip && space || a.SingleWord && word {
				c.pairs[last][other] = false
			}
		}
	}
}

// EncodeInside appends the ids of a part of a gap that begins behind a SafeCut.
func (t *Tokenizer) EncodeInside(dst []uint32, part []byte) []uint32 {
	if len(part) == 0 {
		return dst
	}
	sc := t.scratch()
	part, sc.valid = t.valid(sc, part)
	text := t.normalizer.apply(sc, part, true)
	if t.plain || t.late == nil {
		dst = t.cut(sc, dst, text, t.pre.stages)
	} else {
		t.late.split(text, func(lo, hi int, token *addedToken) bool {
			switch {
			case token != nil:
				dst = append(dst, token.id)
			case lo == 0:
				dst = t.cut(sc, dst, text[:hi], t.pre.stages)
			default:
				dst = t.pieces(sc, dst, text[lo:hi], false)
			}
			return true
		})
	}
	t.release(sc)
	return dst
}
