package prompt

import (
	"sync"

	"github.com/warmroute/warmroute/router/kv"
)

// What the memo keeps of one prompt beside its token ids, in bytes: the prompt itself, one
// place for each of its segments, and block hashes, one for 16 tokens at two block sizes.
const (
	rememberedBytes = 200
	placeBytes      = 64
	hashShare       = 4 // bytes of token ids to one of hashes
)

// memo remembers the prompts of conversations: for each prefix that ends with a segment,
// the tokens of it and the chains of block hashes. The next turn starts from there. What
// was used least recently goes first.
type memo struct {
	max     int64
	evicted func()
	mu      struct {
		sync.Mutex
		places map[key]place
		ring   remembered // ring.next is the most recently used
		bytes  int64
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
	prev, next *remembered
}

func newMemo(max int64, evicted func()) *memo {
	m := &memo{max: max, evicted: evicted}
	m.mu.places = make(map[key]place)
	m.mu.ring.prev, m.mu.ring.next = &m.mu.ring, &m.mu.ring
	return m
}

// longest returns the longest known prefix among keys, which ascend: its index, its
// tokens, which must not be changed, and its chains. The index is -1 where none is known.
func (m *memo) longest(keys []key) (at int, tokens []uint32, chains *kv.Chains) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at = len(keys) - 1; at >= 0; at-- {
		if p, ok := m.mu.places[keys[at]]; ok {
			p.of.unlink()
			m.mu.ring.push(p.of)
			return at, p.of.tokens[:p.tokens:p.tokens], p.of.chains.Prefix(p.tokens)
		}
	}
	return -1, nil, nil
}

// add remembers a prompt: ends[i] is the number of tokens of the prefix keys[i]. Of the
// first known the memo knew the ends already. The caller must not change keys or tokens
// any more. It returns the bytes of all that is remembered.
func (m *memo) add(keys []key, ends []int, known int, tokens []uint32, chains *kv.Chains) (bytes int64) {
	r := &remembered{tokens: tokens, chains: chains, keys: keys}
	r.bytes = rememberedBytes + int64(placeBytes*len(keys)) + int64(4*cap(tokens))*(hashShare+1)/hashShare
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.bytes > m.max {
		m.evicted()
		return m.mu.bytes
	}
	m.mu.ring.push(r)
	m.mu.bytes += r.bytes
	for i, k := range keys {
		p, ok := m.mu.places[k]
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
		m.mu.places[k] = place{r, end}
		if ok && p.of != r {
			if p.of.owned--; p.of.owned == 0 {
				m.dropLocked(p.of)
			}
		}
	}
	if r.owned == 0 {
		m.dropLocked(r)
	}
	for m.mu.bytes > m.max {
		m.dropLocked(m.mu.ring.prev)
		m.evicted()
	}
	return m.mu.bytes
}

// dropLocked forgets a prompt and the places that are its own.
func (m *memo) dropLocked(r *remembered) {
	r.unlink()
	m.mu.bytes -= r.bytes
	if r.owned == 0 {
		return
	}
	for _, k := range r.keys {
		if m.mu.places[k].of == r {
			delete(m.mu.places, k)
		}
	}
}

func (r *remembered) unlink() { r.prev.next, r.next.prev = r.next, r.prev }

func (ring *remembered) push(r *remembered) {
	r.prev, r.next = ring, ring.next
	ring.next.prev = r
	ring.next = r
}
