package index

import "sync/atomic"

// budget counts the bytes of all exact indexes of a Set against one cap.
type budget struct {
	max     int64
	used    atomic.Int64
	refused atomic.Int64 // blocks not taken because of the cap
}

// take reserves n bytes; it fails where that would exceed the cap unless force is set.
func (b *budget) take(n int64, force bool) bool {
	if b.used.Add(n) > b.max && !force {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

const (
	chunkShift = 13
	chunkWords = 1 << chunkShift
	chunkBytes = chunkWords * 8
	noChunk    = -1
)

// classWords are the sizes of extents. Neighbours differ by 4/3 or 3/2, so an extent
// that just fits wastes 17 % on average.
var classWords = [...]int{2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192}

// classOf maps a length of at most 1,024 words to the smallest class that holds it.
var classOf = func() (t [maxRun + 1]uint8) {
	c := 0
	for n := range t {
		if n > classWords[c] {
			c++
		}
		t[n] = uint8(c)
	}
	return t
}()

// classFor returns the smallest class that holds n words; ok is false where none does.
func classFor(n int) (class uint8, ok bool) {
	if n <= maxRun {
		return classOf[n], true
	}
	for c := int(classOf[maxRun]); c < len(classWords); c++ {
		if n <= classWords[c] {
			return uint8(c), true
		}
	}
	return 0, false
}

// arena hands out extents of words from chunks without pointers, so that the garbage
// collector sees one object per 64 KiB instead of one per run. A chunk serves one
// class at a time and goes back to the runtime when its last extent is freed.
type arena struct {
	budget *budget
	chunks []*[chunkWords]uint64
	meta   []chunkMeta
	// partial is the head of each class's list of chunks with room, noChunk if none.
	partial [len(classWords)]int32
	// vacant are chunk numbers without memory.
	vacant []int32
	// spare is a chunk kept with its memory, so that a class that empties and fills
	// one chunk does not allocate each time; noChunk if none.
	spare int32
}

type chunkMeta struct {
	class      uint8
	used       uint16 // extents handed out
	bump       uint16 // extents ever handed out since the class was set
	free       uint16 // 1 + word offset of the first freed extent, 0 if none
	prev, next int32  // neighbours in the class's list of chunks with room
	listed     bool
}

func (a *arena) init(b *budget) {
	a.budget = b
	a.spare = noChunk
	for c := range a.partial {
		a.partial[c] = noChunk
	}
}

// words returns the n words from address addr on.
func (a *arena) words(addr uint32, n int) []uint64 {
	off := addr & (chunkWords - 1)
	return a.chunks[addr>>chunkShift][off:][:n:n]
}

// allocUp returns an extent of the class or, at the bytes cap, of a larger one that is
// free; with force it exceeds the cap rather than fail.
func (a *arena) allocUp(class uint8, force bool) (addr uint32, got uint8, ok bool) {
	if addr, ok = a.alloc(class, false); ok {
		return addr, class, true
	}
	for up := class + 1; int(up) < len(a.partial); up++ {
		if a.partial[up] != noChunk {
			addr, ok = a.alloc(up, false)
			return addr, up, ok
		}
	}
	addr, ok = a.alloc(class, force)
	return addr, class, ok
}

// alloc returns the address of an extent of the class. With force it exceeds the
// bytes cap rather than fail.
func (a *arena) alloc(class uint8, force bool) (addr uint32, ok bool) {
	c := a.partial[class]
	if c == noChunk {
		if c, ok = a.newChunk(force); !ok {
			return 0, false
		}
		a.meta[c] = chunkMeta{class: class, prev: noChunk, next: noChunk}
		a.link(c)
	}
	m := &a.meta[c]
	var off uint32
	if m.free != 0 {
		off = uint32(m.free - 1)
		m.free = uint16(a.chunks[c][off])
	} else {
		off = uint32(m.bump) * uint32(classWords[class])
		m.bump++
	}
	m.used++
	if m.free == 0 && (int(m.bump)+1)*classWords[class] > chunkWords {
		a.unlink(c)
	}
	return uint32(c)<<chunkShift | off, true
}

// release gives an extent back.
func (a *arena) release(addr uint32) {
	c := int32(addr >> chunkShift)
	m := &a.meta[c]
	m.used--
	if m.used == 0 {
		if m.listed {
			a.unlink(c)
		}
		a.dropChunk(c)
		return
	}
	off := addr & (chunkWords - 1)
	a.chunks[c][off] = uint64(m.free)
	m.free = uint16(off + 1)
	if !m.listed {
		a.link(c)
	}
}

func (a *arena) newChunk(force bool) (int32, bool) {
	if c := a.spare; c != noChunk {
		a.spare = noChunk
		return c, true
	}
	if len(a.vacant) == 0 && len(a.chunks) == 1<<(32-chunkShift) {
		return 0, false // addresses are 32 bits: 32 GiB
	}
	if !a.budget.take(chunkBytes, force) {
		return 0, false
	}
	mem := new([chunkWords]uint64)
	if n := len(a.vacant); n > 0 {
		c := a.vacant[n-1]
		a.vacant = a.vacant[:n-1]
		a.chunks[c] = mem
		return c, true
	}
	a.chunks = append(a.chunks, mem)
	a.meta = append(a.meta, chunkMeta{})
	return int32(len(a.chunks) - 1), true
}

func (a *arena) dropChunk(c int32) {
	if a.spare == noChunk {
		a.spare = c
		return
	}
	a.chunks[c] = nil
	a.vacant = append(a.vacant, c)
	a.budget.give(chunkBytes)
}

func (a *arena) link(c int32) {
	m := &a.meta[c]
	head := a.partial[m.class]
	m.prev, m.next, m.listed = noChunk, head, true
	if head != noChunk {
		a.meta[head].prev = c
	}
	a.partial[m.class] = c
}

func (a *arena) unlink(c int32) {
	m := &a.meta[c]
	if m.prev != noChunk {
		a.meta[m.prev].next = m.next
	} else {
		a.partial[m.class] = m.next
	}
	if m.next != noChunk {
		a.meta[m.next].prev = m.prev
	}
	m.listed = false
}
