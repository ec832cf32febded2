package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// ErrTooLarge is returned by Submit for a sequence that the whole pool cannot hold.
var ErrTooLarge = errors.New("sequence needs more KV blocks than the engine has")

// Progress is what one step did for one sequence.
type Progress struct {
	Seq        *Seq
	FirstToken bool // this step sampled the sequence's first token
	NewTokens  int
	Finished   bool
}

// Engine is one DP rank: a scheduler over a paged KV cache, driven by its caller's
// clock. Between Begin and End a step is under way. It is for one goroutine at a time
// and deterministic: the same calls give the same results.
type Engine struct {
	cfg   EngineConfig
	cache *cache

	waiting []*Seq // head first; preempted sequences go back to the head
	running []*Seq // oldest first

	stepping bool
	plan     []planned
	progress []Progress

	pending, ready, lent eventQueue
	loraIDs              map[string]int64
	stats                Stats
}

// planned is one sequence's share of the step under way.
type planned struct {
	seq    *Seq
	tokens int
	decode bool
}

// NewEngine returns an idle engine. It panics on a config that Validate refuses.
func NewEngine(cfg EngineConfig) *Engine {
	if err := cfg.Validate(); err != nil {
		panic("BUG: " + err.Error())
	}
	e := &Engine{cfg: cfg.withDefaults(), loraIDs: map[string]int64{}}
	blocks := e.cfg.CapacityTokens / e.cfg.BlockSize
	e.cache = newCache(blocks, e.sglang(), e.queueRemoved)
	return e
}

func (e *Engine) sglang() bool { return e.cfg.Personality == SGLang }

// Config returns the engine's configuration with its defaults filled in.
func (e *Engine) Config() EngineConfig { return e.cfg }

// Submit queues a sequence. It fails with ErrTooLarge, and State says rejected, when
// prompt and output together exceed the pool. A Seq is submitted once.
func (e *Engine) Submit(s *Seq) error {
	if s.State != StateNew {
		panic("BUG: sequence is submitted twice")
	}
	if len(s.Tokens) == 0 {
		s.State = StateRejected
		return errors.New("sequence has no prompt tokens")
	}
	need := blocksFor(len(s.Tokens)+s.OutputTokens, e.cfg.BlockSize)
	if need > len(e.cache.blocks) {
		s.State = StateRejected
		return fmt.Errorf("%d tokens of prompt and output against a capacity of %d: %w",
			len(s.Tokens)+s.OutputTokens, len(e.cache.blocks)*e.cfg.BlockSize, ErrTooLarge)
	}
	if s.Namespace.LoRA != "" {
		if _, ok := e.loraIDs[s.Namespace.LoRA]; !ok {
			e.loraIDs[s.Namespace.LoRA] = int64(len(e.loraIDs) + 1)
		}
	}
	s.seed = s.Namespace.Seed()
	s.State = StateWaiting
	e.waiting = append(e.waiting, s)
	e.stats.PromptTokens += uint64(len(s.Tokens))
	return nil
}

// Abort ends a sequence that has not finished; otherwise it does nothing. During a
// step the sequence leaves at its End.
func (e *Engine) Abort(s *Seq) {
	switch s.State {
	case StateWaiting:
		for i, w := range e.waiting {
			if w == s {
				e.waiting = append(e.waiting[:i], e.waiting[i+1:]...)
				break
			}
		}
		e.leave(s, StateAborted)
	case StateRunning:
		if e.stepping {
			s.aborted = true
			return
		}
		e.dropRunning(s)
		e.leave(s, StateAborted)
	}
}

// Begin plans the next step and returns how long it takes; ok is false when there is
// nothing to do. Each step has a budget of ChunkTokens: running sequences first,
// oldest first, then waiting ones in order of arrival.
func (e *Engine) Begin(now time.Time) (d time.Duration, ok bool) {
	if e.stepping {
		panic("BUG: step is begun before the last one ended")
	}
	e.plan = e.plan[:0]
	budget, work := e.cfg.ChunkTokens, StepWork{CapacityTokens: len(e.cache.blocks) * e.cfg.BlockSize}
	preempted := false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := min(s.total()-s.computed, budget)
		for !e.grow(s, n) {
			// The newest goes, as it has the least to lose; perhaps it is s itself.
			preempted = true
			victim := e.running[len(e.running)-1]
			e.running = e.running[:len(e.running)-1]
			e.preempt(victim)
			if victim == s {
				n = 0
				break
			}
		}
		if n > 0 {
			budget -= e.schedule(s, n, &work)
		}
	}
	for !preempted && budget > 0 && len(e.waiting) > 0 && len(e.running) < e.cfg.MaxNumSeqs {
		s := e.waiting[0]
		n, ok := e.admit(s, budget)
		if !ok {
			break
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		e.running = append(e.running, s)
		s.State = StateRunning
		if s.Admitted.IsZero() {
			s.Admitted = now
		}
		budget -= e.schedule(s, n, &work)
	}
	if len(e.plan) == 0 {
		return 0, false
	}
	e.stepping = true
	e.stats.Steps++
	return time.Duration(float64(e.cfg.Profile.Step(work)) / e.cfg.SpeedUp), true
}

// schedule adds n tokens of s to the step under way.
func (e *Engine) schedule(s *Seq, n int, work *StepWork) int {
	decode := s.Generated > 0 && s.computed == s.total()-1
	if decode {
		work.DecodeSeqs++
		work.KVTokens += s.total()
	} else {
		work.PrefillTokens += n
	}
	e.plan = append(e.plan, planned{s, n, decode})
	return n
}

// End applies the step under way and returns the sequences that advanced. The result
// is valid until the next End.
func (e *Engine) End(now time.Time) []Progress {
	if !e.stepping {
		panic("BUG: End without Begin")
	}
	e.stepping = false
	e.progress = e.progress[:0]
	gone := false
	for _, p := range e.plan {
		s := p.seq
		if s.aborted {
			gone = true
			continue
		}
		s.computed += p.tokens
		if e.sglang() && !p.decode {
			e.storeFull(s, s.computed)
		}
		if s.computed < s.total() {
			continue
		}
		pr := Progress{Seq: s}
		if s.Generated < s.OutputTokens {
			s.sample()
			pr.NewTokens, pr.FirstToken = 1, s.Generated == 1
			e.stats.GeneratedTokens++
		}
		if s.Generated == s.OutputTokens {
			pr.Finished, gone = true, true
		}
		e.progress = append(e.progress, pr)
	}
	if gone || e.anyAborted() {
		kept := e.running[:0]
		for _, s := range e.running {
			switch {
			case s.aborted:
				e.leave(s, StateAborted)
			case s.Generated == s.OutputTokens && s.computed >= len(s.Tokens):
				e.leave(s, StateFinished)
			default:
				kept = append(kept, s)
			}
		}
		clear(e.running[len(kept):])
		e.running = kept
	}
	e.ready.take(&e.pending)
	return e.progress
}

func (e *Engine) anyAborted() bool {
	for _, s := range e.running {
		if s.aborted {
			return true
		}
	}
	return false
}

// leave gives back what s holds. SGLang caches prompt and output at this moment,
// vLLM has cached them as they filled.
func (e *Engine) leave(s *Seq, state State) {
	if e.sglang() && len(s.table) > 0 {
		e.storeFull(s, s.computed)
	}
	e.releaseAll(s)
	s.State = state
	s.chain, s.table = nil, nil
	switch state {
	case StateFinished:
		e.stats.Finished++
	case StateAborted:
		e.stats.Aborted++
	}
	if e.sglang() && !e.stepping && len(e.running) == 0 {
		e.ready.take(&e.pending) // SGLang publishes on idle too
	}
}

func (e *Engine) dropRunning(s *Seq) {
	for i, r := range e.running {
		if r == s {
			e.running = append(e.running[:i], e.running[i+1:]...)
			return
		}
	}
}

// preempt takes everything from s and puts it at the head of the queue; what it had
// computed is computed again, as far as the cache has lost it by then.
func (e *Engine) preempt(s *Seq) {
	e.releaseAll(s)
	s.computed = 0
	s.State = StateWaiting
	e.waiting = append([]*Seq{s}, e.waiting...)
	e.stats.Preemptions++
}

// releaseAll gives back the blocks of s, the last one first.
func (e *Engine) releaseAll(s *Seq) {
	for i := len(s.table) - 1; i >= 0; i-- {
		e.cache.release(s.table[i])
	}
	s.table = s.table[:0]
	s.stored = 0
}

// admit finds the cached prefix of s and takes blocks for its first tokens, at most
// budget. It changes nothing when there are too few free blocks.
func (e *Engine) admit(s *Seq, budget int) (tokens int, ok bool) {
	size := e.cfg.BlockSize
	// The last token is always computed: its logits give the next one.
	most := (s.total() - 1) / size
	s.extendChain(size, most)
	hits, probed := s.table[:0], s.table[:s.probed]
	fromFree := 0
	for i, h := range s.chain[:most] {
		b := none
		if i < len(probed) && e.cache.blocks[probed[i]].hashed && e.cache.blocks[probed[i]].seq == h {
			b = probed[i] // still there since the last attempt; no need to look it up
		} else if b = e.cache.lookup(e.hash(h)); b == none {
			break
		}
		if e.cache.blocks[b].refs == 0 {
			fromFree++
		}
		hits = append(hits, b)
	}
	if n := len(hits); e.cfg.Drafts && n > 0 {
		if hits = hits[:n-1]; e.cache.blocks[hits[:n][n-1]].refs == 0 {
			fromFree--
		}
	}
	s.table, s.probed = hits[:0], len(hits)
	cached := len(hits) * size
	n := min(s.total()-cached, budget)
	if blocksFor(cached+n, size)-len(hits)+fromFree > e.cache.free {
		return 0, false
	}
	s.probed = 0
	for _, b := range hits {
		e.cache.hold(b)
	}
	s.table, s.stored, s.computed = hits, len(hits), cached
	if s.Admitted.IsZero() {
		s.CachedTokens = cached
		e.stats.PrefixQueries += uint64(len(s.Tokens))
		e.stats.PrefixHits += uint64(cached)
	}
	if !e.grow(s, n) {
		panic("BUG: free blocks vanished during admission")
	}
	return n, true
}

// grow takes the blocks that n more tokens of s need. vLLM caches a block in the same
// moment in which it becomes full.
func (e *Engine) grow(s *Seq, n int) bool {
	need := blocksFor(s.computed+n, e.cfg.BlockSize) - len(s.table)
	if need > e.cache.free {
		return false
	}
	for range need {
		s.table = append(s.table, e.cache.take())
	}
	if !e.sglang() {
		e.storeFull(s, s.computed+n)
	}
	return true
}

// storeFull puts the full blocks of the first tokens tokens of s into the prefix
// cache and queues what the engine says of it.
func (e *Engine) storeFull(s *Seq, tokens int) {
	size := e.cfg.BlockSize
	full := tokens / size
	if full <= s.stored {
		return
	}
	s.extendChain(size, full)
	e.cache.runs++
	share := e.sglang() || e.cfg.NoDuplicates
	from := s.stored
	for i := s.stored; i < full; i++ {
		h := e.hash(s.chain[i])
		if held := e.cache.lookup(h); share && held != none {
			if held != s.table[i] {
				e.cache.hold(held)
				e.cache.release(s.table[i])
				s.table[i] = held
			}
			e.queueStored(s, from, i)
			from = i + 1
			continue
		}
		var parent kv.SequenceHash
		if i > 0 {
			parent = s.chain[i-1]
		}
		e.cache.store(s.table[i], h, s.chain[i], parent, i == 0, e.cache.runs)
	}
	e.queueStored(s, from, full)
	s.stored = full
}

// hash returns the engine's own id of a prefix.
func (e *Engine) hash(h kv.SequenceHash) kvwire.EngineHash {
	x := uint64(h)
	if !e.sglang() {
		x += e.cfg.Seed*0x9e3779b97f4a7c15 + 0x5851f42d4c957f2d
	}
	// splitmix64's finaliser: a bijection, so ids collide only where prefixes do.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return kvwire.EngineHash(x ^ x>>31)
}

// Clear empties the prefix cache as a reset endpoint does; false while any sequence
// holds a block.
func (e *Engine) Clear() bool {
	if !e.cache.clear() {
		return false
	}
	e.pending.add(kvwire.Event{Kind: kv.EventCleared})
	if e.sglang() {
		e.ready.take(&e.pending)
	}
	return true
}

func blocksFor(tokens, size int) int { return (tokens + size - 1) / size }
