package tokenizer

import "unicode/utf8"

// long appends the ids of a word of any length, in time that grows with its length.
//
// A sequence of ids is the result of merging a text exactly when each two neighbours are
// the result of merging their own text: the first merge across a border in the whole
// text would also be made with those two alone. So the results for two overlapping
// windows that share one id at one place may be joined at it. Without such an id the
// windows grow, in the end to the whole word.
func (m *model) long(sc *scratch, dst []uint32, word []byte) []uint32 {
	base, size := len(dst), window
	start, from := 0, 0 // of the window in sc.symbols, and its first symbol not yet in dst
	end := m.window(sc, &sc.symbols, word, start, size)
	for end < len(word) {
		if border := lastBorder(sc.symbols, from, word[start:end]); border > 0 {
			at := int(sc.symbols[border-1].end)
			aheadEnd := m.window(sc, &sc.ahead, word, start+at, size)
			if i, j := join(sc.symbols, sc.ahead, border, int32(at)); i > 0 {
				dst = appendIDs(dst, sc.symbols[from:i])
				sc.symbols, sc.ahead = sc.ahead, sc.symbols
				start, from, end = start+at, j, aheadEnd
				continue
			}
		}
		size *= 2
		kept, before := symbol{}, int32(0)
		if from < len(sc.symbols) {
			kept, before = sc.symbols[from], endBefore(sc.symbols, from)
		}
		end = m.window(sc, &sc.symbols, word, start, size)
		if from = find(sc.symbols, kept, before); from < 0 || len(dst) == base {
			dst, start, from = dst[:base], 0, 0
			end = m.window(sc, &sc.symbols, word, start, size)
		}
	}
	return appendIDs(dst, sc.symbols[from:])
}

// window merges about size bytes of word from start, and gives where it ended.
func (m *model) window(sc *scratch, symbols *[]symbol, word []byte, start, size int) (end int) {
	end = len(word)
	if size < end-start {
		for end = start + size; !utf8.RuneStart(word[end]); {
			end--
		}
	}
	*symbols = m.symbolsOf((*symbols)[:0], word[start:end])
	*symbols, sc.heap = m.merges.mergeLong(*symbols, sc.heap)
	return end
}

// lastBorder gives the last symbol that begins in the first three quarters of the text and
// after from, at the start of a character; 0 when there is none.
func lastBorder(symbols []symbol, from int, text []byte) int {
	limit := int32(len(text) / 4 * 3)
	for i := len(symbols) - 1; i > from; i-- {
		if at := symbols[i-1].end; at <= limit && utf8.RuneStart(text[at]) {
			return i
		}
	}
	return 0
}

// endBefore gives where symbol i begins.
func endBefore(symbols []symbol, i int) int32 {
	if i == 0 {
		return 0
	}
	return symbols[i-1].end
}

// join finds the first symbol that a, from its symbol i, and b share; b's text begins at
// offset of a's. It gives 0, 0 when there is none.
func join(a, b []symbol, i int, offset int32) (int, int) {
	for j := 0; i < len(a) && j < len(b); {
		switch end := b[j].end + offset; {
		case a[i].end < end:
			i++
		case a[i].end > end:
			j++
		case a[i].id == b[j].id && endBefore(a, i) == endBefore(b, j)+offset:
			return i, j
		default:
			i, j = i+1, j+1
		}
	}
	return 0, 0
}

// find gives the index of the symbol that equals s and begins at before, or -1.
func find(symbols []symbol, s symbol, before int32) int {
	for i := range symbols {
		if symbols[i].end == s.end && symbols[i].id == s.id && endBefore(symbols, i) == before {
			return i
		}
	}
	return -1
}

func appendIDs(dst []uint32, symbols []symbol) []uint32 {
	for i := range symbols {
		dst = append(dst, symbols[i].id)
	}
	return dst
}
