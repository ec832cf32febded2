package prefill

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	headBlock  = kv.DefaultBlockSize // tokens; heads end at multiples of it
	minHead    = 256                 // tokens; a shorter one is not worth a request
	maxHeads   = 256                 // kept at once
	headShare  = 4                   // heads take at most this part of the bytes that may be held
	headProof  = 3                   // first turns that make a head of a prefix they share
	headMemory = 10 * time.Minute    // e-folding time of a head's count
	headLife   = time.Hour           // from the last first turn that began with it to its end
	headCold   = 0.25                // a head whose count is below is not hot any more
	seenHashes = 1 << 16             // prefixes of first turns remembered, in each of two generations
)

// heads are the prefixes with which several conversations began, such as a system prompt
// with its tools: what a worker without a cache should hold first. Of a first turn that
// shares nothing only hashes are remembered, so that one look-up finds where the next
// one leaves it; tokens are kept of what was shared. Guarded by Prefiller.mu.
type heads struct {
	byKey     map[headKey]*head
	seen, old map[headKey]struct{} // hashes of first turns; seen becomes old when it is full
	bytes     int64
	limit     int64            // of bytes
	hold      func(int64) bool // counts bytes that are held, if there is room for them
	free      func(int64)
}

// headKey names a prefix of one model's prompts. The hash stands for adapter and salt, too.
type headKey struct {
	model string
	hash  kv.SequenceHash
}

// head is one shared prefix.
type head struct {
	key    headKey
	ns     kv.Namespace
	tokens []uint32
	turns  int       // first turns that began with it
	count  float64   // the same, decayed
	last   time.Time // when the last one ended
}

func (h *head) size() int64 {
	x := prefix{h.key.model, h.ns, h.tokens}
	return x.size()
}

func (h *heads) init(limit int64, hold func(int64) bool, free func(int64)) {
	h.limit, h.hold, h.free = limit, hold, free
	h.byKey = map[headKey]*head{}
	h.seen, h.old = map[headKey]struct{}{}, map[headKey]struct{}{}
}

// weight returns the decayed count.
func (h *head) weight(now time.Time) float64 {
	return h.count * math.Exp(-max(now.Sub(h.last), 0).Seconds()/headMemory.Seconds())
}

// learn counts a first turn whose tokens are known.
func (h *heads) learn(model string, p *kv.Prompt, now time.Time) {
	chain := p.Chain(headBlock)
	for k, v := range h.byKey {
		if n := len(v.tokens) / headBlock; k.model == model && n <= len(chain) && chain[n-1] == k.hash {
			v.count, v.last = v.weight(now)+1, now
			v.turns++
		}
	}
	n := h.shared(model, chain)
	for _, hash := range chain {
		h.remember(headKey{model, hash})
	}
	// A request that is sent once more shares all of itself with itself.
	if n = min(n, len(chain)-1); n*headBlock < minHead || h.byKey[headKey{model, chain[n-1]}] != nil {
		return
	}
	key := headKey{model, chain[n-1]}
	v := &head{key: key, ns: p.Namespace, tokens: p.Tokens[:n*headBlock], turns: 2, count: 2, last: now}
	if !h.room(v.size(), now) {
		return
	}
	v.tokens = slices.Clone(v.tokens)
	h.byKey[key] = v
}

// room makes room for a head of so many bytes, at the cost of heads that are no hotter
// than a new one.
func (h *heads) room(size int64, now time.Time) bool {
	for len(h.byKey) >= maxHeads || h.bytes+size > h.limit || !h.hold(size) {
		c := h.coldest(now)
		if c == nil || size > h.limit || c.weight(now) > 2 {
			return false
		}
		h.drop(c)
	}
	h.bytes += size
	return true
}

// shared returns the blocks of a chain that an earlier first turn had, too. Whoever
// remembers a hash remembers those before it.
func (h *heads) shared(model string, chain []kv.SequenceHash) int {
	n, _ := slices.BinarySearchFunc(chain, false, func(hash kv.SequenceHash, _ bool) int {
		k := headKey{model, hash}
		if _, ok := h.seen[k]; ok {
			return -1
		}
		if _, ok := h.old[k]; ok {
			return -1
		}
		return 1
	})
	return n
}

func (h *heads) remember(k headKey) {
	if len(h.seen) >= seenHashes {
		h.seen, h.old = map[headKey]struct{}{}, h.seen
	}
	h.seen[k] = struct{}{}
}

func (h *heads) drop(v *head) {
	size := v.size()
	delete(h.byKey, v.key)
	h.bytes -= size
	h.free(size)
}

// sweep lets go of heads that nobody has begun with for headLife.
func (h *heads) sweep(now time.Time) {
	for _, v := range h.byKey {
		if now.Sub(v.last) >= headLife {
			h.drop(v)
		}
	}
}

// clear lets go of everything.
func (h *heads) clear() {
	for _, v := range h.byKey {
		h.drop(v)
	}
	clear(h.seen)
	clear(h.old)
}

func (h *heads) coldest(now time.Time) (c *head) {
	for _, v := range h.byKey {
		if c == nil || v.weight(now) < c.weight(now) {
			c = v
		}
	}
	return c
}

// hottest returns the proved heads, those first that most first turns begin with. Of two
// that the same turns begin with the longer one comes first: it holds the other.
func (h *heads) hottest(now time.Time) []*head {
	var list []*head
	for _, v := range h.byKey {
		if v.turns >= headProof && v.weight(now) > headCold {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b *head) int {
		return cmp.Or(cmp.Compare(math.Round(b.weight(now)), math.Round(a.weight(now))), cmp.Compare(len(b.tokens), len(a.tokens)),
			cmp.Compare(a.key.hash, b.key.hash))
	})
	return list
}

// learn reads a finished turn: whether it found what was copied, and which head it shares.
func (p *Prefiller) learn(t *Turn, e *End) {
	if !e.OK || e.Prompt == nil || !e.Prompt.Exact() {
		return
	}
	e.Prompt.Chain(headBlock) // outside the lock
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return
	}
	p.mu.planted.met(e)
	if t.first && p.cfg.Join && len(e.Prompt.Tokens) >= minHead {
		p.mu.heads.learn(t.id.model, e.Prompt, time.Now())
	}
}

// tend is what Run does each second for the triggers that answer no turn.
func (p *Prefiller) tend(caches map[kv.WorkerRank]int) {
	now, busy := time.Now(), p.cfg.Router.Busy()
	p.mu.Lock()
	p.mu.budget.worked(now, busy)
	p.mu.planted.sweep(now)
	p.mu.heads.sweep(now)
	hot := len(p.mu.heads.byKey) > 0
	p.mu.Unlock()
	p.look(now)
	if hot {
		p.watchCaches(caches)
	}
}
