package tokenizer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
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

// newMerges makes the table of a list, whose order is that of the ranks.
func newMerges(list []merge) *merges {
	size := tableSize(len(list))
	m := &merges{slots: make([]uint64, size), shift: uint(64 - bits.TrailingZeros(uint(size))), result: make([]uint32, len(list))}
	for rank, e := range list {
		if e.left != none {
			m.set(e.left, e.right, uint32(rank))
			m.result[rank] = e.result
		}
	}
	return m
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

// merge joins two tokens. Of one that no text gets to, left is none.
type merge struct{ left, right, result uint32 }

// mergeReader reads "a b" or ["a","b"], the two spellings of a merge, a batch at a time.
type mergeReader struct {
	scanner
	vocab     *vocab
	byteLevel bool
	out       []merge
	text      []byte // of one merge, and
	cut       int    // where its second part begins
	batch     []pair
	words     []byte // of the batch
	last      uint32 // result of the merge before
	touched   uint64
}

// pair is a merge of a batch: the bytes of its parts are words[at:mid] and words[mid:end].
type pair struct {
	at, mid, end int
	left, right  uint64 // their hashes
	odd          bool   // a part is outside the byte alphabet, no text gets there
	skip         bool   // it is no merge
}

// mergeBatch is the number of merges whose parts are looked up together.
const mergeBatch = 16

// readMerges reads the list of merges in order of rank, on several cores: marks say where
// to begin in data, see skip.
func readMerges(data []byte, marks []int, v *vocab, byteLevel bool) ([]merge, error) {
	s := &scanner{data: data}
	if err := s.expect('['); err != nil {
		return nil, fmt.Errorf("model.merges: %w", err)
	}
	if len(marks) > maxRank/markEvery {
		return nil, fmt.Errorf("model.merges: more than %d merges are not supported", maxRank)
	}
	from := append([]int{s.pos}, marks...)
	parts, errs := make([][]merge, len(from)), make([]error, len(from))
	inParallel(len(from), func(i int) {
		end := len(data)
		if i+1 < len(from) {
			end = from[i+1]
		}
		r := &mergeReader{scanner: scanner{data: data[:end], pos: from[i]}, vocab: v, byteLevel: byteLevel}
		r.out = make([]merge, 0, min(markEvery, (end-from[i])/4+1))
		errs[i] = r.read(i * markEvery)
		parts[i] = r.out
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return slices.Concat(parts...), nil
}

// inParallel calls f with the numbers below n, on the cores that there are.
func inParallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// read reads a part of the list whose first merge has a number. It ends behind the comma
// before the next part, or with the list.
func (r *mergeReader) read(number int) error {
	for first := true; ; first = false {
		var err error
		ok := true
		if !first || number == 0 {
			ok, err = r.more(first, ']')
		}
		if err == nil && (!ok || !first && r.peek() == 0) {
			return r.lookUp(number)
		}
		if err == nil {
			err = r.next()
		}
		if err != nil {
			return cmp.Or(r.lookUp(number), fmt.Errorf("model.merges[%d]: %w", number+len(r.batch), err))
		}
		if len(r.batch) == mergeBatch {
			if err := r.lookUp(number); err != nil {
				return err
			}
			number += mergeBatch
			r.batch, r.words = r.batch[:0], r.words[:0]
		}
	}
}

// next reads a merge into the batch.
func (r *mergeReader) next() error {
	skip, err := r.parts()
	if err != nil {
		return err
	}
	p := pair{at: len(r.words), mid: len(r.words) + r.cut, skip: skip}
	if skip {
		p.mid, p.end = p.at, p.at
		r.batch = append(r.batch, p)
		return nil
	}
	plain, plainToo := true, true
	if !r.byteLevel {
		r.words = append(r.words, r.text...)
	} else {
		r.words, plain = appendAlphabet(r.words, r.text[:r.cut])
		p.mid = len(r.words)
		r.words, plainToo = appendAlphabet(r.words, r.text[r.cut:])
	}
	if p.end = len(r.words); !plain || !plainToo {
		if !r.known(r.text[:r.cut]) || !r.known(r.text[r.cut:]) || !r.known(r.text) {
			return errNoPart
		}
		p.odd = true
	}
	r.batch = append(r.batch, p)
	return nil
}

var errNoPart = errors.New("a part is not in the vocabulary")

// lookUp appends the merges of the batch, whose first has a number. The places of the
// vocabulary that it needs are touched first, which lets the processor wait for several at a
// time: they are seldom in its caches.
func (r *mergeReader) lookUp(number int) error {
	v := r.vocab
	for i := range r.batch {
		p := &r.batch[i]
		p.left, p.right = v.hashBytes(r.words[p.at:p.mid]), v.hashBytes(r.words[p.mid:p.end])
		r.touched += v.touchSlot(p.left) + v.touchSlot(p.right)
	}
	for i := range r.batch {
		r.touched += v.touchWord(r.batch[i].left) + v.touchWord(r.batch[i].right)
	}
	for i, p := range r.batch {
		if err := r.add(p); err != nil {
			return fmt.Errorf("model.merges[%d]: %w", number+i, err)
		}
	}
	return nil
}

func (r *mergeReader) add(p pair) error {
	if p.skip {
		return nil
	}
	if p.odd {
		r.out = append(r.out, merge{left: none})
		return nil
	}
	left, okLeft := r.vocab.findHash(r.words[p.at:p.mid], p.left)
	right, okRight := r.vocab.findHash(r.words[p.mid:p.end], p.right)
	if !okLeft || !okRight {
		return errNoPart
	}
	joined := r.words[p.at:p.end]
	id, ok := r.last, r.vocab.is(r.last, joined)
	if !ok { // files list merges in the order of their results
		id, ok = r.last+1, r.vocab.is(r.last+1, joined)
	}
	if !ok {
		id, ok = r.vocab.find(joined)
	}
	r.last = id
	if !ok {
		return errors.New("the merged token is not in the vocabulary")
	}
	r.out = append(r.out, merge{left, right, id})
	return nil
}

// parts reads the text of one merge. A "#version" line is skipped without a rank.
func (r *mergeReader) parts() (skip bool, err error) {
	if r.peek() == '"' {
		if r.text, err = r.str(r.text[:0]); err != nil || bytes.HasPrefix(r.text, []byte("#version")) {
			return true, err
		}
		r.cut = bytes.IndexByte(r.text, ' ')
		if r.cut < 0 || bytes.IndexByte(r.text[r.cut+1:], ' ') >= 0 {
			return false, errors.New("expected two parts with one space between them")
		}
		r.text = slices.Delete(r.text, r.cut, r.cut+1)
		return false, nil
	}
	err = r.expect('[')
	if err == nil {
		r.text, err = r.str(r.text[:0])
	}
	r.cut = len(r.text)
	if err == nil {
		err = r.expect(',')
	}
	if err == nil {
		r.text, err = r.str(r.text)
	}
	if err == nil {
		err = r.expect(']')
	}
	return false, err
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
