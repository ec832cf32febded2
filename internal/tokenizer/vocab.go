package tokenizer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"unicode/utf8"
)

// vocab maps the bytes of a token to its id and back. Byte-level tokens are kept as the
// bytes they stand for, not in the printable alphabet of the file.
type vocab struct {
	seed  uint64
	slots []uint64 // open addressing: upper half of the hash, id+1; 0 is free
	spans []span   // by id
	data  []byte
	count int
	twice bool              // a token stands twice, is in odd, or has but a name
	long  int               // bytes of the longest token
	wide  int               // and of the longest that does not begin with ASCII
	odd   map[string]uint32 // tokens that no text can become: outside the byte alphabet
}

type span struct{ off, len uint32 }

func (v *vocab) bytes(id uint32) []byte {
	if int(id) >= len(v.spans) {
		return nil
	}
	s := v.spans[id]
	return v.data[s.off : s.off+s.len]
}

// hash mixes a word that has a key; longer words add the rest of their bytes.
func (v *vocab) hash(k key) uint64 {
	hi, lo := bits.Mul64(k.a^v.seed, k.b^k.n^0x9E3779B97F4A7C15)
	h := hi ^ lo
	if k.c != 0 {
		hi, lo = bits.Mul64(h^k.c, 0xA0761D6478BD642F)
		h = hi ^ lo
	}
	return h
}

func (v *vocab) hashBytes(word []byte) uint64 {
	k := keyOf(word, 0, min(len(word), keyBytes))
	k.n = uint64(len(word))
	h := v.hash(k)
	for i := keyBytes; i < len(word); i += 8 {
		var tail [8]byte
		copy(tail[:], word[i:])
		hi, lo := bits.Mul64(h^binary.LittleEndian.Uint64(tail[:]), 0xE7037ED1A0B428DB)
		h = hi ^ lo
	}
	return h
}

// longest bounds the length of tokens whose first byte is c.
func (v *vocab) longest(c byte) int {
	if c >= utf8.RuneSelf {
		return v.wide
	}
	return v.long
}

// find gives the id of a token's bytes.
func (v *vocab) find(word []byte) (uint32, bool) {
	if len(word) > v.long {
		return 0, false
	}
	return v.findHash(word, v.hashBytes(word))
}

func (v *vocab) findHash(word []byte, h uint64) (uint32, bool) {
	mask := uint64(len(v.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		slot := v.slots[i]
		if slot == 0 {
			return 0, false
		}
		if slot>>32 == h>>32 {
			if id := uint32(slot) - 1; string(v.bytes(id)) == string(word) {
				return id, true
			}
		}
	}
}

// touchSlot and touchWord read what findHash will read, see mergeReader.lookUp.
func (v *vocab) touchSlot(h uint64) uint64 { return v.slots[h&uint64(len(v.slots)-1)] }

func (v *vocab) touchWord(h uint64) uint64 {
	slot := v.touchSlot(h)
	if slot == 0 {
		return 0
	}
	if s := v.spans[uint32(slot)-1]; s.len > 0 {
		return uint64(v.data[s.off])
	}
	return 0
}

// is reports whether id is surely the token of word.
func (v *vocab) is(id uint32, word []byte) bool {
	return !v.twice && string(v.bytes(id)) == string(word) && len(word) > 0
}

// hidden reports whether the bytes of id are those of another token, or of none.
func (v *vocab) hidden(id uint32) bool {
	if !v.twice {
		return false
	}
	known, ok := v.find(v.bytes(id))
	return !ok || known != id
}

// readVocab reads the object of tokens and ids.
func readVocab(data []byte, byteLevel bool) (*vocab, error) {
	entries := bytes.Count(data, []byte(":")) // or fewer
	v := &vocab{seed: rand.Uint64(), slots: make([]uint64, tableSize(min(entries, maxID)))}
	v.spans = make([]span, 0, min(entries, maxID))
	v.data = make([]byte, 0, len(data)/2)
	s := &scanner{data: data}
	if err := s.expect('{'); err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	var text []byte
	for first := true; ; first = false {
		ok, err := s.more(first, '}')
		if err == nil && v.count > maxID {
			err = s.errorf("more than %d tokens are not supported", maxID)
		}
		if err == nil && !ok {
			v.data = bytes.Clone(v.data)
			return v, nil
		}
		var id uint32
		if err == nil {
			text, err = s.str(text[:0])
		}
		if err == nil {
			err = s.expect(':')
		}
		if err == nil {
			id, err = s.uint()
		}
		if err == nil && id >= maxID {
			err = s.errorf("id %d: ids from %d on are not supported", id, maxID)
		}
		if err == nil && int64(id) > 4*int64(entries)+1<<16 {
			err = s.errorf("id %d is too large for %d tokens", id, entries)
		}
		if err != nil {
			return nil, fmt.Errorf("model.vocab: %w", err)
		}
		v.add(text, id, byteLevel)
	}
}

// tableSize gives a power of two that n entries fill to two thirds at most.
func tableSize(n int) int {
	return 1 << bits.Len(uint(n+n/2+8))
}

func (v *vocab) add(text []byte, id uint32, byteLevel bool) {
	off := len(v.data)
	plain := true
	if byteLevel {
		v.data, plain = appendAlphabet(v.data, text)
	} else {
		v.data = append(v.data, text...)
	}
	for int(id) >= len(v.spans) {
		v.spans = append(v.spans, span{})
	}
	word := v.data[off:]
	v.spans[id] = span{uint32(off), uint32(len(word))}
	if !plain {
		v.addOdd(string(text), id)
		return
	}
	v.long = max(v.long, len(word))
	if len(word) > 0 && word[0] >= utf8.RuneSelf {
		v.wide = max(v.wide, len(word))
	}
	h := v.hashBytes(word)
	mask := uint64(len(v.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		slot := v.slots[i]
		if slot == 0 {
			v.count++
		} else if slot>>32 != h>>32 || string(v.bytes(uint32(slot)-1)) != string(word) {
			continue
		}
		v.twice = v.twice || slot != 0
		v.slots[i] = h&^(1<<32-1) | uint64(id+1)
		return
	}
}

func (v *vocab) addOdd(text string, id uint32) {
	if v.odd == nil {
		v.odd = map[string]uint32{}
	}
	if _, again := v.odd[text]; !again {
		v.count++
	}
	v.odd[text], v.twice = id, true
}

// token gives the id of a token by its text in the file.
func (v *vocab) token(text string, byteLevel bool) (id uint32, ok bool) {
	if byteLevel {
		word, plain := appendAlphabet(nil, []byte(text))
		if !plain {
			id, ok = v.odd[text]
			return id, ok
		}
		return v.find(word)
	}
	return v.find([]byte(text))
}

// name gives an id outside the model's vocabulary its text, for decoding.
func (v *vocab) name(text string, id uint32, byteLevel bool) {
	for int(id) >= len(v.spans) {
		v.spans = append(v.spans, span{})
	}
	off := len(v.data)
	if byteLevel {
		v.data, _ = appendAlphabet(v.data, []byte(text))
	} else {
		v.data = append(v.data, text...)
	}
	v.spans[id] = span{uint32(off), uint32(len(v.data) - off)}
	v.twice = true
}

// memory gives the bytes held.
func (v *vocab) memory() int64 {
	return int64(8*cap(v.slots) + 8*cap(v.spans) + cap(v.data) + 64*len(v.odd))
}
