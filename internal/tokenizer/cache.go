package tokenizer

import (
	"encoding/binary"
	"sync/atomic"
)

const (
	keyBytes   = 24      // longer words are not cached
	slotIDs    = 7       // nor are words of more ids
	cacheSlots = 1 << 15 // 2 MiB a tokenizer
)

// key holds a word of at most keyBytes bytes, padded with zeros, and its length.
type key struct{ a, b, c, n uint64 }

// keyOf gives the key of s[i:j].
func keyOf(s []byte, i, j int) key {
	n := j - i
	if i+keyBytes > len(s) {
		var pad [keyBytes]byte
		copy(pad[:], s[i:j])
		return key{
			binary.LittleEndian.Uint64(pad[0:]), binary.LittleEndian.Uint64(pad[8:]),
			binary.LittleEndian.Uint64(pad[16:]), uint64(n),
		}
	}
	w, m := s[i:i+keyBytes], &keyMasks[n]
	return key{
		binary.LittleEndian.Uint64(w) & m[0], binary.LittleEndian.Uint64(w[8:]) & m[1],
		binary.LittleEndian.Uint64(w[16:]) & m[2], uint64(n),
	}
}

// keyMasks[n] keeps the first n bytes of three little-endian words.
var keyMasks = func() (masks [keyBytes + 1][3]uint64) {
	for n := range masks {
		for i := range n {
			masks[n][i/8] |= 0xFF << (i % 8 * 8)
		}
	}
	return masks
}()

// wordCache remembers the ids of words. It is a fixed table, two-way associative, of
// slots of one cache line; readers and writers share it without locks. A slot is
// guarded by its own version (a seqlock of atomics): odd while it is written, and a
// reader that sees two versions has missed. Keys hold whole words, so a hit is exact,
// and nothing can be read out but the ids of a word that the reader brings itself.
type wordCache struct{ slots []slot }

// slot: version, key words 0 to 2, length | count<<8 | first id<<32, six more ids.
type slot [8]atomic.Uint64

func newWordCache() *wordCache { return &wordCache{make([]slot, cacheSlots)} }

// get appends the ids of k, whose hash is h.
func (c *wordCache) get(dst []uint32, k key, h uint64) ([]uint32, bool) {
	at := h & (cacheSlots - 1)
	for range 2 {
		s := &c.slots[at]
		version := s[0].Load()
		if s[1].Load() == k.a && s[2].Load() == k.b && s[3].Load() == k.c {
			meta := s[4].Load()
			if meta&0xFF == k.n && version&1 == 0 {
				n := len(dst)
				dst = append(dst, uint32(meta>>32))
				if count := int(meta >> 8 & 0xFF); count != 1 {
					dst = s.rest(dst[:n], meta, count)
				}
				if s[0].Load() == version {
					return dst, true
				}
				return dst[:n], false
			}
		}
		at ^= 1
	}
	return dst, false
}

// rest appends all ids of a slot that holds not one id.
func (s *slot) rest(dst []uint32, meta uint64, count int) []uint32 {
	if count == 0 {
		return dst
	}
	dst = append(dst, uint32(meta>>32))
	for i := 1; i < count; i++ {
		dst = append(dst, uint32(s[5+(i-1)/2].Load()>>(32*((i-1)%2))))
	}
	return dst
}

// put keeps the ids of k. It gives way when another writer holds the slot.
func (c *wordCache) put(k key, h uint64, ids []uint32) {
	if len(ids) > slotIDs {
		return
	}
	at := h & (cacheSlots - 1)
	if c.slots[at][4].Load() != 0 && (c.slots[at^1][4].Load() == 0 || h>>63 != 0) {
		at ^= 1
	}
	s := &c.slots[at]
	version := s[0].Load()
	if version&1 != 0 || !s[0].CompareAndSwap(version, version+1) {
		return
	}
	var w [4]uint64
	w[0] = k.n | uint64(len(ids))<<8
	for i, id := range ids {
		w[(i+1)/2] |= uint64(id) << (32 * ((i + 1) % 2))
	}
	s[1].Store(k.a)
	s[2].Store(k.b)
	s[3].Store(k.c)
	for i := range w {
		s[4+i].Store(w[i])
	}
	s[0].Store(version + 2)
}
