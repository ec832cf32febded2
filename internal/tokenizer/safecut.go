package tokenizer

import "bytes"

// Frame gives the ids that EncodeSpecial puts before and after a text. The caller must not
// change them.
func (t *Tokenizer) Frame() (before, after []uint32) { return t.post.before, t.post.after }

// SafeCut gives the first place at or behind from at which a gap may be cut, whatever comes
// before and behind it in the gap: EncodeGap of the part before the cut and EncodeInside of
// the rest are EncodeGap of the whole. -1 where there is none.
//
// It is a line break between a visible ASCII character and an ASCII letter. No known
// expression has a match that goes across it or that looks at it from the left, NFC does
// not compose over it, and a character-level model is asked for its merges.
func (t *Tokenizer) SafeCut(gap []byte, from int) int {
	if !t.cuttable {
		return -1
	}
	for i := max(from-1, 1); i < len(gap)-1; i++ {
		n := bytes.IndexByte(gap[i:len(gap)-1], '\n')
		if n < 0 {
			return -1
		}
		i += n
		before, behind := gap[i-1], gap[i+1]
		if before <= ' ' || before > '~' || !isLetter(behind) {
			continue
		}
		if c := t.model.chars; c == nil || c.separate('\n', rune(behind)) {
			return i + 1
		}
	}
	return -1
}

func isLetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

// goesAcross reports whether a token may lie on both sides of a SafeCut, take a space from
// the other side, or look there for the end of a word.
func goesAcross(a addedToken) bool {
	for k := 0; k+1 < len(a.text); k++ {
		if a.text[k] == '\n' && isLetter(a.text[k+1]) {
			return true
		}
	}
	return a.LStrip && isLetter(a.text[0]) || a.SingleWord && a.text[len(a.text)-1] == '\n'
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
