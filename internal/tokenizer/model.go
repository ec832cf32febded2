package tokenizer

import (
	"encoding/binary"
	"runtime"
	"sync"
	"unicode/utf8"
)

const (
	shortWord = 128 // symbols that mergeShort takes
	window    = 128 // bytes of a long word that are merged together at first
)

// model turns words into ids. A word is merged as a whole and on its own.
type model struct {
	vocab        *vocab
	merges       *merges
	short        *shortCache
	cache        *wordCache
	ignoreMerges bool     // a word that is a token is that token
	whole        []uint64 // bit per id: merging the token's text gives that token
	byteIDs      [256]int64
	allBytes     bool     // every byte is a token, and
	first        []uint32 // the merges of two bytes
	borders      *borders // nil unless byte-level with a token for every byte
	chars        *chars   // nil for a byte-level model
}

// scratch is what one call needs beyond its output.
type scratch struct {
	now, ahead symbols
	merge      [shortWord]uint32
	nodes      []node
	heap       []uint64
	text       []byte // normalized gap
	spare      []byte
	valid      []byte // text made valid UTF-8
	word       []byte
}

// keepScratch is the number of bytes of one buffer that outlive a call.
const keepScratch = 1 << 20

func (sc *scratch) trim() {
	if cap(sc.now.ids)+cap(sc.ahead.ids)+cap(sc.nodes)+cap(sc.heap) > keepScratch/4 {
		sc.now, sc.ahead, sc.nodes, sc.heap = symbols{}, symbols{}, nil, nil
	}
	for _, b := range []*[]byte{&sc.text, &sc.spare, &sc.valid, &sc.word} {
		if cap(*b) > keepScratch {
			*b = nil
		}
	}
}

// words appends the ids of the words that stage cuts text into.
func (m *model) words(sc *scratch, dst []uint32, text []byte, stage cutter) []uint32 {
	for i := 0; i < len(text); {
		j := stage.next(text, i)
		if n := j - i; n <= shortBytes && i+8 <= len(text) {
			x := shortKey(binary.LittleEndian.Uint64(text[i:]), n)
			if id := m.short.get(x); id < 1<<idBits {
				dst = append(dst, uint32(id))
			} else {
				dst = m.shortMiss(sc, dst, text, i, j, x)
			}
		} else {
			dst = m.word(sc, dst, text, i, j)
		}
		i = j
	}
	return dst
}

// shortMiss appends the ids of s[i:j], whose short key x is not in the first slot.
func (m *model) shortMiss(sc *scratch, dst []uint32, s []byte, i, j int, x uint64) []uint32 {
	if id := m.short.second(x); id < 1<<idBits {
		return append(dst, uint32(id))
	}
	at := len(dst)
	if dst = m.word(sc, dst, s, i, j); len(dst) == at+1 {
		m.short.put(x, dst[at])
	}
	return dst
}

// word appends the ids of s[i:j].
func (m *model) word(sc *scratch, dst []uint32, s []byte, i, j int) []uint32 {
	if j-i > keyBytes {
		var h uint64
		if j-i <= m.vocab.longest(s[i]) {
			h = m.vocab.hashBytes(s[i:j])
		}
		return m.miss(sc, dst, s, i, j, h)
	}
	k := keyOf(s, i, j)
	h := m.vocab.hash(k)
	dst, ok := m.cache.get(dst, k, h)
	if ok {
		return dst
	}
	n := len(dst)
	dst = m.miss(sc, dst, s, i, j, h)
	m.cache.put(k, h, dst[n:])
	return dst
}

// miss appends the ids of the word s[i:j], whose hash is h. The word of a character-level
// model may hold spaces that stand for U+2581.
func (m *model) miss(sc *scratch, dst []uint32, s []byte, i, j int, h uint64) []uint32 {
	word := s[i:j]
	if len(word) <= m.vocab.longest(word[0]) {
		token := word
		if m.chars != nil && m.chars.spaceIsMeta {
			token, h = m.meta(sc, word, h)
		}
		if id, ok := m.vocab.findHash(token, h); ok && (m.ignoreMerges || m.isWhole(id)) {
			return append(dst, id)
		}
	}
	if m.borders != nil && len(word) > shortBytes {
		if end := m.borders.next(word, 0); end < len(word) {
			return m.parts(sc, dst, s, i, j, i+end)
		}
	}
	return m.merge(sc, dst, word)
}

// parts appends the ids of the word s[i:j] that borders cut, the first part ending at end. A
// part is looked up like a word, but where merges are ignored for words that are tokens
// they still count for parts.
func (m *model) parts(sc *scratch, dst []uint32, s []byte, i, j, end int) []uint32 {
	for {
		at := len(dst)
		if n := end - i; n <= shortBytes && i+8 <= len(s) {
			x := shortKey(binary.LittleEndian.Uint64(s[i:]), n)
			if id := m.short.get(x); id < 1<<idBits {
				dst = append(dst, uint32(id))
			} else {
				dst = m.shortMiss(sc, dst, s, i, end, x)
			}
		} else {
			dst = m.word(sc, dst, s, i, end)
		}
		if m.ignoreMerges && len(dst) == at+1 && !m.isWhole(dst[at]) {
			dst = m.merge(sc, dst[:at], s[i:end])
		}
		if end == j {
			return dst
		}
		i, end = end, m.borders.next(s[:j], end)
	}
}

// merge appends the ids of a word or part by merging alone.
func (m *model) merge(sc *scratch, dst []uint32, word []byte) []uint32 {
	if len(word) > shortWord {
		return m.long(sc, dst, word)
	}
	return append(dst, m.mergeWord(sc, word)...)
}

// meta writes the spaces of a word as U+2581.
func (m *model) meta(sc *scratch, word []byte, h uint64) ([]byte, uint64) {
	for i, c := range word {
		if c != ' ' {
			continue
		}
		sc.word = append(sc.word[:0], word[:i]...)
		sc.word = appendMeta(sc.word, word[i:])
		return sc.word, m.vocab.hashBytes(sc.word)
	}
	return word, h
}

func (m *model) isWhole(id uint32) bool {
	return int(id>>6) < len(m.whole) && m.whole[id>>6]>>(id&63)&1 != 0
}

// mergeWord gives the ids of a word of at most shortWord bytes, in sc.
func (m *model) mergeWord(sc *scratch, word []byte) []uint32 {
	if m.chars != nil || !m.allBytes {
		sc.now.reset()
		m.symbolsOf(&sc.now, word)
		ids := sc.now.ids
		m.merges.pairsOf(ids, sc.merge[:])
		return ids[:m.merges.mergeShort(ids, sc.merge[:], nil)]
	}
	ids := sc.now.ids[:0]
	for i, c := range word {
		ids = append(ids, uint32(m.byteIDs[c]))
		if i > 0 {
			sc.merge[i-1] = m.first[int(word[i-1])<<8|int(c)]
		}
	}
	sc.now.ids = ids
	return ids[:m.merges.mergeShort(ids, sc.merge[:], nil)]
}

// symbolsOf appends the symbols of a part of a word before merging.
func (m *model) symbolsOf(s *symbols, part []byte) {
	if m.chars != nil {
		m.chars.symbols(s, part)
		return
	}
	for i, c := range part {
		if id := m.byteIDs[c]; id >= 0 {
			s.add(uint32(id), int32(i)+1)
		}
	}
}

// findWhole sets the bits of whole, on several cores. Nearly all tokens have them; it makes
// a word that is a token cheap also where merges may not be ignored.
func (m *model) findWhole() {
	m.whole = make([]uint64, len(m.vocab.spans)/64+1)
	parts := max(1, min(4, runtime.GOMAXPROCS(0), len(m.whole)/64))
	size := (len(m.whole) + parts - 1) / parts
	var wg sync.WaitGroup
	for from := 0; from < len(m.whole); from += size {
		wg.Go(func() { m.findWholeIn(from, min(from+size, len(m.whole))) })
	}
	wg.Wait()
}

// findWholeIn sets the bits of whole[from:to].
func (m *model) findWholeIn(from, to int) {
	sc := &scratch{}
	for id := from * 64; id < min(to*64, len(m.vocab.spans)); id++ {
		word := m.vocab.bytes(uint32(id))
		if len(word) == 0 || len(word) > shortWord || m.chars != nil && !utf8.Valid(word) {
			continue
		}
		if ids := m.mergeWord(sc, word); len(ids) == 1 && ids[0] == uint32(id) {
			m.whole[id>>6] |= 1 << (id & 63)
		}
	}
}

// newCaches makes the caches and puts tokens into them, those with low ids last, which
// are the most frequent: a new tokenizer knows common words.
func (m *model) newCaches() {
	m.cache, m.short = newWordCache(), new(shortCache)
	for id := len(m.vocab.spans) - 1; id >= 0; id-- {
		word := m.vocab.bytes(uint32(id))
		if len(word) == 0 || len(word) > keyBytes || !m.ignoreMerges && !m.isWhole(uint32(id)) {
			continue
		}
		if m.vocab.hidden(uint32(id)) {
			continue // no text becomes this token
		}
		var text [keyBytes]byte
		n := len(word)
		if m.chars != nil && m.chars.spaceIsMeta {
			n = len(appendSpaces(text[:0], word))
		} else {
			copy(text[:], word)
		}
		if n <= shortBytes {
			m.short.put(shortKey(binary.LittleEndian.Uint64(text[:]), n), uint32(id))
			continue
		}
		k := keyOf(text[:], 0, n)
		m.cache.put(k, m.vocab.hash(k), []uint32{uint32(id)})
	}
}

// memory gives the bytes held.
func (m *model) memory() int64 {
	n := m.vocab.memory() + 8*int64(cap(m.merges.slots)+cap(m.whole)) + 4*int64(cap(m.merges.result)+cap(m.first))
	if m.chars != nil {
		n += m.chars.memory()
	}
	if m.borders != nil {
		n += 8 * int64(cap(m.borders.joined.slots))
	}
	return n + 64*cacheSlots + 8*2<<bucketBits
}
