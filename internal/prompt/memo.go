package prompt

import (
	"sync"

	"github.com/warmroute/warmroute/router/kv"
)

// rememberedBytes is what one prompt takes beside its token ids, keys, places and block
// hashes: itself and its kv.Chains with a few block sizes.
const rememberedBytes = 400

// heldBytes is what n bytes in slices take where each is an allocation of its own.
func heldBytes(n int64) int64 { return n + n/8 }

// memo remembers the prompts of conversations: for each prefix that ends with a segment,
// the tokens of it and the chains of block hashes. The next turn starts from there. What
// was used least recently goes first. All that it holds counts: a block size that a router
// asks for later makes a prompt longer.
type memo struct {
	max     int64
	evicted func()
	mu      struct {
		sync.Mutex
		places table[place]
		ring   remembered // ring.next is the most recently used
		bytes  int64      // of the prompts
	}
}

// place is a prefix of a remembered prompt.
type place struct {
	of     *remembered
	tokens int
}

// remembered is one prompt. Places of prefixes that a later prompt has too belong to that
// one; a prompt without places is forgotten.
type remembered struct {
	tokens     []uint32
	chains     *kv.Chains
	keys       []key // of the places that were made for it
	owned      int
	bytes      int64
	prev, next *remembered // nil once it is forgotten
}

func newMemo(max int64, evicted func()) *memo {
	m := &memo{max: max, evicted: evicted}
	m.mu.places = newTable[place]()
	m.mu.ring.prev, m.mu.ring.next = &m.mu.ring, &m.mu.ring
	return m
}

// longest returns the longest known prefix among keys, which ascend: its index, its
// tokens, which must not be changed, and its chains. The index is -1 where none is known.
func (m *memo) longest(keys []key) (at int, tokens []uint32, chains *kv.Chains) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at = len(keys) - 1; at >= 0; at-- {
		if p, ok := m.mu.places.get(keys[at]); ok {
			p.of.unlink()
			m.mu.ring.push(p.of)
			return at, p.of.tokens[:p.tokens:p.tokens], p.of.chains.Prefix(p.tokens)
		}
	}
	return -1, nil, nil
}

// add remembers a prompt: ends[i] is the number of tokens of the prefix keys[i]. Of the
// first known the memo knew the ends already. The caller must not change keys or tokens
// any more, and asks chains for hashes only after it.
func (m *memo) add(keys []key, ends []int, known int, tokens []uint32, chains *kv.Chains) {
	r := &remembered{tokens: tokens, chains: chains, keys: keys}
	r.bytes = rememberedBytes + heldBytes(int64(16*cap(keys)+4*cap(tokens))+chains.Bytes())
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.bytes+int64(len(keys))*m.mu.places.entryBytes() > m.max {
		m.evicted()
		return
	}
	chains.Changed = func(n int64) { m.changed(r, n) }
	m.mu.ring.push(r)
	m.mu.bytes += r.bytes
	for i, k := range keys {
		p, ok := m.mu.places.get(k)
		end := ends[i]
		if i < known {
			if !ok {
				continue // evicted since
			}
			end = p.tokens
		}
		if p.of != r {
			r.owned++
		}
		m.mu.places.set(k, place{r, end})
		if ok && p.of != r {
			if p.of.owned--; p.of.owned == 0 {
				m.dropLocked(p.of)
			}
		}
	}
	if r.owned == 0 {
		m.dropLocked(r)
	}
	m.trimLocked()
}

// changed counts block hashes of a prompt that were made since it was added.
func (m *memo) changed(r *remembered, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.next == nil {
		return
	}
	r.bytes += heldBytes(bytes)
	m.mu.bytes += heldBytes(bytes)
	if r.bytes > m.max { // it alone is too much
		m.dropLocked(r)
		m.evicted()
	}
	m.trimLocked()
}

// bytesLocked is the memory of all that is remembered.
func (m *memo) bytesLocked() int64 { return m.mu.bytes + m.mu.places.bytes() }

func (m *memo) bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytesLocked()
}

func (m *memo) trimLocked() {
	for m.bytesLocked() > m.max && m.mu.ring.prev != &m.mu.ring {
		m.dropLocked(m.mu.ring.prev)
		m.evicted()
	}
}

// dropLocked forgets a prompt and the places that are its own.
func (m *memo) dropLocked(r *remembered) {
	r.unlink()
	m.mu.bytes -= r.bytes
	if r.owned == 0 {
		return
	}
	for _, k := range r.keys {
		if p, _ := m.mu.places.get(k); p.of == r {
			m.mu.places.remove(k)
		}
	}
}

func (r *remembered) unlink() {
	r.prev.next, r.next.prev = r.next, r.prev
	r.prev, r.next = nil, nil
}

func (ring *remembered) push(r *remembered) {
	r.prev, r.next = ring, ring.next
	ring.next.prev = r
	ring.next = r
}
