package tokenizer

import (
	"bytes"
	"sort"
	"unicode/utf8"
)

// addedToken is an entry of added_tokens. Its id in the file is ignored: Hugging Face
// takes the vocabulary's id, or counts on from the end of the vocabulary.
type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`

	id       uint32
	text     []byte // what is looked for
	override bool   // read beside the file: replaces the flags of a token of the file
}

// matcher finds added tokens, the leftmost and there the longest.
type matcher struct {
	tokens []addedToken // sorted by text
	first  [256]bool    // first bytes
	single bool         // the only first byte is lead
	lead   byte
	pairs  []uint64 // bits of first two bytes; nil when a token of one byte exists
}

func newMatcher(tokens []addedToken) *matcher {
	if len(tokens) == 0 {
		return nil
	}
	m := &matcher{tokens: tokens, single: true, lead: tokens[0].text[0], pairs: make([]uint64, 1<<16/64)}
	sort.SliceStable(tokens, func(i, j int) bool { return bytes.Compare(tokens[i].text, tokens[j].text) < 0 })
	for i := range tokens {
		text := tokens[i].text
		m.first[text[0]] = true
		m.single = m.single && text[0] == m.lead
		if len(text) == 1 {
			m.pairs = nil
		} else if m.pairs != nil {
			p := uint(text[0])<<8 | uint(text[1])
			m.pairs[p>>6] |= 1 << (p & 63)
		}
	}
	return m
}

// find gives the first token at or after s[i].
func (m *matcher) find(s []byte, i int) (lo, hi int, t *addedToken) {
	for {
		if i = m.candidate(s, i); i < 0 {
			return 0, 0, nil
		}
		if t := m.at(s[i:]); t != nil {
			return i, i + len(t.text), t
		}
		i++
	}
}

// candidate gives the next place where a token may begin, or -1.
func (m *matcher) candidate(s []byte, i int) int {
	for ; i < len(s); i++ {
		if m.single {
			k := bytes.IndexByte(s[i:], m.lead)
			if k < 0 {
				return -1
			}
			i += k
		} else if !m.first[s[i]] {
			continue
		}
		if m.pairs == nil {
			return i
		}
		if i+1 == len(s) {
			return -1
		}
		if p := uint(s[i])<<8 | uint(s[i+1]); m.pairs[p>>6]>>(p&63)&1 != 0 {
			return i
		}
	}
	return -1
}

// at gives the longest token that s begins with.
func (m *matcher) at(s []byte) (best *addedToken) {
	lo, hi := 0, len(m.tokens)
	for depth := 0; lo < hi; depth++ {
		// All of tokens[lo:hi] begin with s[:depth]; the one that ends here stands first.
		if len(m.tokens[lo].text) == depth {
			best = &m.tokens[lo]
			for lo < hi && len(m.tokens[lo].text) == depth {
				lo++
			}
		}
		if depth == len(s) {
			break
		}
		c := s[depth]
		part := m.tokens[lo:hi]
		from := sort.Search(len(part), func(i int) bool { return part[i].text[depth] >= c })
		to := from + sort.Search(len(part)-from, func(i int) bool { return part[from+i].text[depth] > c })
		lo, hi = lo+from, lo+to
	}
	return best
}

// split yields the gaps (token nil) and tokens of s in order, as offsets. It gives false when
// yield did. As in Hugging Face's code a token of white space may lie inside the white
// space that the token before took along.
func (m *matcher) split(s []byte, yield func(lo, hi int, t *addedToken) bool) bool {
	start := 0
	for i := 0; m != nil; {
		lo, hi, t := m.find(s, i)
		if t == nil {
			break
		}
		i = hi
		if t.SingleWord && (wordBefore(s, lo) || wordAfter(s, hi)) {
			continue
		}
		if t.LStrip {
			lo = max(spaceBefore(s, lo), start)
		}
		if t.RStrip {
			hi = run(s, hi, classSpace)
		}
		if lo >= hi { // nothing is left of it, or Hugging Face panics
			continue
		}
		if start < lo && !yield(start, lo, nil) {
			return false
		}
		if !yield(lo, hi, t) {
			return false
		}
		start = hi
	}
	return start >= len(s) || yield(start, len(s), nil)
}

func wordBefore(s []byte, i int) bool {
	r, size := utf8.DecodeLastRune(s[:i])
	return size > 0 && isWord(r)
}

func wordAfter(s []byte, i int) bool {
	r, size := utf8.DecodeRune(s[i:])
	return size > 0 && isWord(r)
}

// spaceBefore gives the start of the white space that ends at s[i].
func spaceBefore(s []byte, i int) int {
	for i > 0 {
		r, size := utf8.DecodeLastRune(s[:i])
		if classOf(r)&classSpace == 0 {
			break
		}
		i -= size
	}
	return i
}

// assignIDs gives the tokens their ids as Hugging Face does and drops empty and repeated
// ones.
func assignIDs(tokens []addedToken, v *vocab, byteLevel bool) []addedToken {
	seen := map[string]int{}
	kept := tokens[:0]
	size, last := uint32(v.count), -1
	for _, t := range tokens {
		if t.Content == "" {
			continue
		}
		if at, again := seen[t.Content]; again {
			t.id = kept[at].id
			kept[at] = t
			continue
		}
		id, known := v.token(t.Content, byteLevel)
		if !known {
			id = size
			if last >= int(size) {
				id = uint32(last) + 1
			}
		}
		t.id = id
		last = max(last, int(id))
		seen[t.Content] = len(kept)
		kept = append(kept, t)
	}
	return kept
}
