package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

const (
	meta    = '\u2581' // stands for a space in SentencePiece vocabularies
	metaStr = "\u2581"
)

// chars is what a character-level model knows about single characters and about pairs
// of them.
type chars struct {
	ascii       [utf8.RuneSelf]int64 // id, or -1
	ids         runeTable
	bytes       [256]uint32 // <0x00> to <0xFF>
	byteKnown   [256]bool
	fallback    bool // byte_fallback
	allBytes    bool // byte_fallback with all 256 tokens: no character is unknown
	hasUnknown  bool
	unknown     uint32
	fuse        bool // several unknown characters are one unknown token
	delays      bool // an unknown token may stand behind bytes that follow its character
	spaceIsMeta bool // a space in a word stands for U+2581

	// A border between characters a and b that no merge crosses cuts a text into words
	// that are merged on their own. wide holds the pairs that some merge joins,
	// joined the same for ASCII.
	cuts      bool
	joined    [utf8.RuneSelf][2]uint64 // by left, bits by right, both ASCII
	wide      pairSet
	cutAtMeta bool // always cut before U+2581
}

// runeTable is a hash table of characters.
type runeTable struct {
	keys []rune // 0 is free; U+0000 is ASCII
	ids  []uint32
}

func newRuneTable(n int) runeTable {
	size := tableSize(n)
	return runeTable{make([]rune, size), make([]uint32, size)}
}

func (t *runeTable) at(r rune) int {
	mask := uint32(len(t.keys) - 1)
	i := uint32(r) * 0x9E3779B1 >> 7 & mask
	for t.keys[i] != 0 && t.keys[i] != r {
		i = (i + 1) & mask
	}
	return int(i)
}

// id gives the id of a character, or -1.
func (c *chars) id(r rune) int64 {
	if r < utf8.RuneSelf {
		return c.ascii[r]
	}
	if i := c.ids.at(r); c.ids.keys[i] == r {
		return int64(c.ids.ids[i])
	}
	return -1
}

func (c *chars) char(s []byte, i int) (rune, int) {
	r, size := runeAt(s, i)
	if r == ' ' && c.spaceIsMeta {
		r = meta
	}
	return r, size
}

// symbols appends the symbols of text before merging.
func (c *chars) symbols(s *symbols, text []byte) {
	pending := int32(0) // end of unknown characters not yet written
	for i := 0; i < len(text); {
		r, size := c.char(text, i)
		end := int32(i + size)
		if id := c.id(r); id >= 0 {
			if pending > 0 {
				s.add(c.unknown, pending)
				pending = 0
			}
			s.add(uint32(id), end)
		} else if c.fallback && c.bytesKnown(r) {
			c.addBytes(s, r, int32(i), end)
		} else if c.hasUnknown {
			if pending > 0 && !c.fuse {
				s.add(c.unknown, pending)
			}
			pending = end
		}
		i += size
	}
	if pending > 0 {
		s.add(c.unknown, pending)
	}
}

func (c *chars) bytesKnown(r rune) bool {
	if c.allBytes {
		return true
	}
	var buf [4]byte
	for _, b := range buf[:utf8.EncodeRune(buf[:], r)] {
		if !c.byteKnown[b] {
			return false
		}
	}
	return true
}

// addBytes appends the bytes of r; the last ends where the character ends.
func (c *chars) addBytes(s *symbols, r rune, start, end int32) {
	var buf [4]byte
	n := utf8.EncodeRune(buf[:], r)
	for k, b := range buf[:n-1] {
		s.add(c.bytes[b], min(start+int32(k)+1, end))
	}
	s.add(c.bytes[buf[n-1]], end)
}

// next gives the end of the word that begins at s[i]. It does not look for a cut between
// two ASCII letters: leaving one out is exact too.
func (c *chars) next(s []byte, i int) int {
	a, size := runeAt(s, i)
	i += size
	for i < len(s) {
		for a < utf8.RuneSelf && s[i] < utf8.RuneSelf {
			if c.joined[a][s[i]>>6]>>(s[i]&63)&1 == 0 {
				return i
			}
			a = rune(s[i])
			i++
			if b := a | 0x20; b >= 'a' && b <= 'z' {
				i = asciiLetters(s, i)
				a = rune(s[i-1])
			}
			if i == len(s) {
				return i
			}
		}
		b, size := runeAt(s, i)
		if c.separate(a, b) {
			return i
		}
		a = b
		i += size
	}
	return i
}

// separate reports whether a text may be cut between a and b.
func (c *chars) separate(a, b rune) bool {
	if a < utf8.RuneSelf && b < utf8.RuneSelf {
		return c.joined[a][b>>6]>>(b&63)&1 == 0
	}
	return !c.together(a, b)
}

// together is separate without the table of ASCII pairs.
func (c *chars) together(a, b rune) bool {
	if c.spaceIsMeta {
		a, b = spaceToMeta(a), spaceToMeta(b)
	}
	switch {
	case b == meta && c.cutAtMeta:
		return false
	case !c.cuts:
		return true
	case !c.allBytes && (c.id(a) < 0 || c.id(b) < 0):
		return true // an unknown character may fuse, or leave its neighbours side by side
	}
	return c.wide.has(a, b)
}

func spaceToMeta(r rune) rune {
	if r == ' ' {
		return meta
	}
	return r
}

// fillASCII sets the table of ASCII pairs when all else is known.
func (c *chars) fillASCII() {
	for a := range rune(utf8.RuneSelf) {
		for b := range rune(utf8.RuneSelf) {
			if c.together(a, b) {
				c.joined[a][b>>6] |= 1 << (b & 63)
			}
		}
	}
}

// pairSet is a hash set of pairs of characters.
type pairSet struct {
	slots []uint64
	used  int
}

func pairKey(a, b rune) uint64 { return uint64(a)<<32 | uint64(b) | 1<<63 }

func (p *pairSet) has(a, b rune) bool {
	if p.used == 0 {
		return false
	}
	k, mask := pairKey(a, b), uint64(len(p.slots)-1)
	for i := pairHash(k) >> 32 & mask; ; i = (i + 1) & mask {
		if p.slots[i] == k {
			return true
		}
		if p.slots[i] == 0 {
			return false
		}
	}
}

func (p *pairSet) add(a, b rune) {
	if 3*p.used >= 2*len(p.slots) {
		old := p.slots
		p.slots, p.used = make([]uint64, max(64, 2*len(old))), 0
		for _, k := range old {
			if k != 0 {
				p.insert(k)
			}
		}
	}
	p.insert(pairKey(a, b))
}

func (p *pairSet) insert(k uint64) {
	mask := uint64(len(p.slots) - 1)
	for i := pairHash(k) >> 32 & mask; ; i = (i + 1) & mask {
		if p.slots[i] == k {
			return
		}
		if p.slots[i] == 0 {
			p.slots[i] = k
			p.used++
			return
		}
	}
}

// join notes that a merge joins text a with text b.
func (c *chars) join(a, b []byte) {
	left, _ := utf8.DecodeLastRune(a)
	right, _ := utf8.DecodeRune(b)
	c.wide.add(left, right)
}

// newChars collects the single characters of a vocabulary.
func newChars(v *vocab, fallback bool) *chars {
	c := &chars{cuts: true, fallback: fallback}
	for i := range c.ascii {
		c.ascii[i] = -1
	}
	n := 0
	for id := range v.spans {
		if word := v.bytes(uint32(id)); len(word) > 1 && len(word) <= 4 && utf8.RuneCount(word) == 1 {
			n++
		}
	}
	c.ids = newRuneTable(n)
	for id := range v.spans {
		word := v.bytes(uint32(id))
		r, size := utf8.DecodeRune(word)
		if size == 0 || size != len(word) {
			continue
		}
		if v.hidden(uint32(id)) {
			continue // the last of equal tokens counts
		}
		if r < utf8.RuneSelf {
			c.ascii[r] = int64(id)
			continue
		}
		i := c.ids.at(r)
		c.ids.keys[i], c.ids.ids[i] = r, uint32(id)
	}
	c.allBytes = fallback
	for b := range 256 {
		name := []byte{'<', '0', 'x', "0123456789ABCDEF"[b>>4], "0123456789ABCDEF"[b&15], '>'}
		c.bytes[b], c.byteKnown[b] = v.find(name)
		c.allBytes = c.allBytes && c.byteKnown[b]
	}
	return c
}

// appendMeta appends text with its spaces as U+2581.
func appendMeta(dst, text []byte) []byte {
	for {
		i := bytes.IndexByte(text, ' ')
		if i < 0 {
			return append(dst, text...)
		}
		dst = append(append(dst, text[:i]...), metaStr...)
		text = text[i+1:]
	}
}

func (c *chars) memory() int64 {
	return int64(8*cap(c.ids.keys) + 8*cap(c.wide.slots) + 8192)
}
