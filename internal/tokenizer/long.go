package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

// long appends the ids of a word of any length, in time that grows with its length.
//
// A sequence of ids is the result of merging a text exactly when each two neighbours are
// the result of merging their own text: the first merge across a border in the whole
// text would also be made with those two alone. So the results for two overlapping
// windows that share one id at one place may be joined at it. Without such an id the
// windows grow, in the end to the whole word.
func (m *model) long(sc *scratch, dst []uint32, word []byte) []uint32 {
	base, size := len(dst), window
	if m.chars != nil && m.chars.delays {
		size = len(word)
	}
	start, from := 0, 0 // of the window in sc.now, and its first symbol not yet in dst
	end := m.window(sc, &sc.now, word, start, size)
	for end < len(word) {
		if border := sc.now.lastBorder(from, word[start:end]); border > 0 {
			at := int(sc.now.ends[border-1])
			aheadEnd := end + at
			ahead := &sc.now // when the text goes on as it began
			if aheadEnd > len(word) || !bytes.Equal(word[start+at:aheadEnd], word[start:end]) {
				ahead = &sc.ahead
				aheadEnd = m.window(sc, ahead, word, start+at, size)
			}
			if i, j := join(&sc.now, ahead, border, int32(at)); i > 0 {
				dst = append(dst, sc.now.ids[from:i]...)
				start, from, end = start+at, j, aheadEnd
				if ahead == &sc.ahead {
					sc.now, sc.ahead = sc.ahead, sc.now
				}
				continue
			}
		}
		size *= 2
		kept, begin, stop := uint32(0), int32(0), int32(-1)
		if from < len(sc.now.ids) {
			kept, begin, stop = sc.now.ids[from], sc.now.begin(from), sc.now.ends[from]
		}
		end = m.window(sc, &sc.now, word, start, size)
		if from = sc.now.find(kept, begin, stop); from < 0 || len(dst) == base {
			dst, start, from = dst[:base], 0, 0
			end = m.window(sc, &sc.now, word, start, size)
		}
	}
	return append(dst, sc.now.ids[from:]...)
}

// window merges about size bytes of word from start into s, and gives where it ended.
func (m *model) window(sc *scratch, s *symbols, word []byte, start, size int) (end int) {
	end = len(word)
	if size < end-start {
		for end = start + size; !utf8.RuneStart(word[end]); {
			end--
		}
	}
	s.reset()
	m.symbolsOf(s, word[start:end])
	if len(s.ids) > shortWord {
		sc.nodes, sc.heap = m.merges.mergeLong(s, sc.nodes, sc.heap)
		return end
	}
	m.merges.pairsOf(s.ids, sc.merge[:])
	n := m.merges.mergeShort(s.ids, sc.merge[:], s.ends)
	s.ids, s.ends = s.ids[:n], s.ends[:n]
	return end
}

// lastBorder gives the last symbol that begins in the first three quarters of the text and
// after from, at the start of a character; 0 when there is none.
func (s *symbols) lastBorder(from int, text []byte) int {
	limit := int32(len(text) / 4 * 3)
	for i := len(s.ids) - 1; i > from; i-- {
		if at := s.ends[i-1]; at <= limit && utf8.RuneStart(text[at]) {
			return i
		}
	}
	return 0
}

// join finds the first symbol that a, from its symbol i, and b share; b's text begins at
// offset of a's. It gives 0, 0 when there is none.
func join(a, b *symbols, i int, offset int32) (int, int) {
	for j := 0; i < len(a.ids) && j < len(b.ids); {
		switch end := b.ends[j] + offset; {
		case a.ends[i] < end:
			i++
		case a.ends[i] > end:
			j++
		case a.ids[i] == b.ids[j] && a.begin(i) == b.begin(j)+offset:
			return i, j
		default:
			i, j = i+1, j+1
		}
	}
	return 0, 0
}

// find gives the index of the symbol id from begin to end, or -1.
func (s *symbols) find(id uint32, begin, end int32) int {
	for i := range s.ids {
		if s.ends[i] == end && s.ids[i] == id && s.begin(i) == begin {
			return i
		}
	}
	return -1
}
