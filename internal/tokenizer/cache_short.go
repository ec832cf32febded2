package tokenizer

import "sync/atomic"

// shortCache remembers the words of at most shortBytes bytes that are one id. A word and
// its length are shortBits bits, which mixShort permutes: the upper bits choose a
// bucket of two slots, and the others stand in the slot beside the id, so that the place
// and the slot together are the whole word and a hit is exact. A slot is one atomic
// word: no locks, 256 KiB.
type shortCache [2 << bucketBits]atomic.Uint64

const (
	shortBytes = 7
	shortBits  = 59 // seven bytes, and three bits of length
	bucketBits = 14
	tagBits    = shortBits - bucketBits
	idBits     = 64 - tagBits // a slot holds tag<<idBits | id+1, 0 is free
)

// shortKey gives the bits of a word of n bytes, 1 to 7, from the eight bytes at its start.
func shortKey(eight uint64, n int) uint64 {
	x := eight&(1<<(n*8&63)-1) | uint64(n)<<56
	x ^= x >> 29 // this and the product permute the numbers of shortBits bits
	return x * 0x5851F42D4C957F2D & (1<<shortBits - 1)
}

// get gives the id of x in the first slot of its bucket, or 1<<idBits or more.
func (c *shortCache) get(x uint64) uint64 {
	return c[x>>tagBits<<1&(2<<bucketBits-1)].Load() ^ x<<idBits - 1
}

// second does the same with the second slot.
func (c *shortCache) second(x uint64) uint64 {
	return c[x>>tagBits<<1&(2<<bucketBits-1)|1].Load() ^ x<<idBits - 1
}

// put keeps a word in the first slot of its bucket and moves what stands there to the second.
func (c *shortCache) put(x uint64, id uint32) {
	if id >= 1<<idBits-1 {
		return
	}
	at := x >> tagBits << 1
	if first := c[at].Load(); first != 0 {
		c[at|1].Store(first)
	}
	c[at].Store(x<<idBits | uint64(id+1))
}
