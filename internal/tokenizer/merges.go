package tokenizer

import (
	"bytes"
	"fmt"
	"math/bits"
)

// none stands for "these two do not merge" where the rank of a merge is expected. The lowest
// rank comes first.
const none = ^uint32(0)

const (
	pairBits = 20 // of an id
	rankBits = 24
	maxID    = 1<<pairBits - 1
	maxRank  = 1<<rankBits - 2
)

// merges maps a pair of ids to the rank of its merge, by open addressing. A slot holds
// the pair above and rank+1 in its lowest 24 bits; 0 is free.
type merges struct {
	slots  []uint64
	shift  uint
	result []uint32 // id by rank
}

func newMerges(n int) *merges {
	size := tableSize(n)
	return &merges{slots: make([]uint64, size), shift: uint(64 - bits.TrailingZeros(uint(size))), result: make([]uint32, 0, n)}
}

func (m *merges) get(left, right uint32) (rank uint32) {
	k := uint64(left)<<pairBits | uint64(right)
	mask := uint64(len(m.slots) - 1)
	for i := pairHash(k) >> m.shift; ; i++ {
		v := m.slots[i&mask]
		if d := v ^ k<<rankBits - 1; d < 1<<rankBits-1 {
			return uint32(d)
		}
		if v == 0 {
			return none
		}
	}
}

// pairHash spreads both halves into the upper bits.
func pairHash(k uint64) uint64 { return (k ^ k>>17) * 0x9E3779B97F4A7C15 }

// set keeps the next merge; the last of equal pairs counts.
func (m *merges) set(left, right, rank uint32) {
	k := uint64(left)<<pairBits | uint64(right)
	mask := uint64(len(m.slots) - 1)
	i := pairHash(k) >> m.shift
	for v := m.slots[i&mask]; v != 0 && v>>rankBits != k; v = m.slots[i&mask] {
		i++
	}
	m.slots[i&mask] = k<<rankBits | uint64(rank+1)
}

// mergeReader reads "a b" or ["a","b"], the two spellings of a merge.
type mergeReader struct {
	scanner
	vocab       *vocab
	byteLevel   bool
	rank        uint32
	text        []byte
	left, right []byte
	joined      []byte
	last        uint32 // result of the merge before
}

// readMerges reads the list of merges and calls each with the ids and texts of the two
// parts, in order of rank.
func readMerges(data []byte, v *vocab, byteLevel bool, each func(left, right uint32, a, b []byte)) (*merges, error) {
	r := &mergeReader{scanner: scanner{data: data}, vocab: v, byteLevel: byteLevel}
	m := newMerges(min(countMerges(data), maxRank+1))
	if err := r.expect('['); err != nil {
		return nil, fmt.Errorf("model.merges: %w", err)
	}
	for index := 0; ; index++ {
		ok, err := r.more(index == 0, ']')
		if err == nil && !ok {
			return m, nil
		}
		if err == nil {
			err = r.next(m, each)
		}
		if err != nil {
			return nil, fmt.Errorf("model.merges[%d]: %w", index, err)
		}
	}
}

// countMerges bounds the number of merges from above.
func countMerges(data []byte) int {
	if i := bytes.IndexByte(data, '['); i >= 0 && bytes.IndexByte(data[i+1:min(len(data), i+200)], '[') >= 0 {
		return bytes.Count(data, []byte("["))
	}
	return bytes.Count(data, []byte(`"`))/2 + 1
}

func (r *mergeReader) next(m *merges, each func(left, right uint32, a, b []byte)) error {
	a, b, skip, err := r.parts()
	if err != nil || skip {
		return err
	}
	rank := r.rank
	if rank > maxRank {
		return fmt.Errorf("more than %d merges are not supported", maxRank)
	}
	r.rank++
	m.result = append(m.result, 0)
	left, okLeft := r.id(a, &r.left)
	right, okRight := r.id(b, &r.right)
	if !okLeft || !okRight {
		if r.byteLevel && r.known(a) && r.known(b) && r.known(append(bytes.Clone(a), b...)) {
			return nil // a part outside the byte alphabet: no text gets there
		}
		return fmt.Errorf("a part is not in the vocabulary")
	}
	r.joined = append(append(r.joined[:0], r.left...), r.right...)
	joined, ok := r.last, r.vocab.is(r.last, r.joined)
	if !ok { // files list merges in the order of their results
		joined, ok = r.last+1, r.vocab.is(r.last+1, r.joined)
	}
	if !ok {
		joined, ok = r.vocab.find(r.joined)
	}
	r.last = joined
	if !ok {
		return fmt.Errorf("the merged token is not in the vocabulary")
	}
	m.set(left, right, rank)
	m.result[rank] = joined
	if each != nil {
		each(left, right, r.left, r.right)
	}
	return nil
}

// parts reads one merge. A "#version" line is skipped without a rank.
func (r *mergeReader) parts() (a, b []byte, skip bool, err error) {
	if r.peek() == '"' {
		if r.text, err = r.str(r.text[:0]); err != nil {
			return nil, nil, false, err
		}
		if bytes.HasPrefix(r.text, []byte("#version")) {
			return nil, nil, true, nil
		}
		a, b, ok := bytes.Cut(r.text, []byte(" "))
		if !ok || bytes.IndexByte(b, ' ') >= 0 {
			return nil, nil, false, fmt.Errorf("expected two parts with one space between them")
		}
		return a, b, false, nil
	}
	err = r.expect('[')
	if err == nil {
		r.text, err = r.str(r.text[:0])
	}
	cut := len(r.text)
	if err == nil {
		err = r.expect(',')
	}
	if err == nil {
		r.text, err = r.str(r.text)
	}
	if err == nil {
		err = r.expect(']')
	}
	if err != nil {
		return nil, nil, false, err
	}
	return r.text[:cut], r.text[cut:], false, nil
}

// id looks a part up and leaves its bytes in buf.
func (r *mergeReader) id(text []byte, buf *[]byte) (uint32, bool) {
	plain := true
	if r.byteLevel {
		*buf, plain = appendAlphabet((*buf)[:0], text)
	} else {
		*buf = append((*buf)[:0], text...)
	}
	if !plain {
		return 0, false
	}
	return r.vocab.find(*buf)
}

// known reports whether the vocabulary has a token with this text.
func (r *mergeReader) known(text []byte) bool {
	if _, odd := r.vocab.odd[string(text)]; odd {
		return true
	}
	bytes, plain := appendAlphabet(nil, text)
	if !plain {
		return false
	}
	_, ok := r.vocab.find(bytes)
	return ok
}
