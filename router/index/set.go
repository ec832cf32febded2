package index

import (
	"cmp"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// Config bounds the indexes of a Set. The zero value is ready for use.
type Config struct {
	// MaxBytes caps the memory of all exact indexes together. Past it, blocks that
	// are not stored yet are refused. A membership costs 14–30 bytes. Default 2 GiB.
	MaxBytes int64
	// ApproximateBytes caps the approximate index, which evicts what was learned
	// longest ago. Default 256 MiB.
	ApproximateBytes int64
	// ApproximateTTL is how long a learned prefix counts. Raise it where engines keep
	// prefixes for longer. Default 15 min.
	ApproximateTTL time.Duration
	// PredictedTTL is how long a prompt in flight counts unless it is extended.
	// Default 2 s.
	PredictedTTL time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Set owns the indexes of one router. It is safe for concurrent use.
type Set struct {
	cfg    Config
	budget budget

	adding      sync.Mutex
	exact       atomic.Pointer[[]sized] // replaced as a whole, under adding
	none        *Exact                  // refuses everything; for block sizes past maxSizes
	nothing     budget                  // of none
	approximate *Approximate
	predicted   *Predicted
}

type sized struct {
	blockSize int
	index     *Exact
}

// maxSizes bounds the block sizes of a set: feeds name them, and each costs 0.2 MB. The
// blocks of further ones are refused and counted.
const maxSizes = 64

// NewSet returns an empty set.
func NewSet(cfg Config) *Set {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 2<<30)
	cfg.ApproximateBytes = cmp.Or(cfg.ApproximateBytes, 256<<20)
	cfg.ApproximateTTL = cmp.Or(cfg.ApproximateTTL, 15*time.Minute)
	cfg.PredictedTTL = cmp.Or(cfg.PredictedTTL, 2*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Set{
		cfg:         cfg,
		approximate: newApproximate(cfg.ApproximateBytes, cfg.ApproximateTTL, cfg.Now),
		predicted:   newPredicted(cfg.PredictedTTL, cfg.Now),
	}
	s.budget.max = cfg.MaxBytes
	s.exact.Store(new([]sized))
	return s
}

// Exact returns the exact index of a block size, made on first use.
func (s *Set) Exact(blockSize int) *Exact {
	if x := find(*s.exact.Load(), blockSize); x != nil {
		return x
	}
	s.adding.Lock()
	defer s.adding.Unlock()
	old := *s.exact.Load()
	if x := find(old, blockSize); x != nil {
		return x
	}
	if len(old) == maxSizes {
		if s.none == nil {
			s.none = newExact(&s.nothing, s.cfg.Now, rand.Uint64())
		}
		return s.none
	}
	x := newExact(&s.budget, s.cfg.Now, rand.Uint64())
	next := append(old[:len(old):len(old)], sized{blockSize, x})
	s.exact.Store(&next)
	return x
}

func find(all []sized, blockSize int) *Exact {
	for _, e := range all {
		if e.blockSize == blockSize {
			return e.index
		}
	}
	return nil
}

// Each calls f for every exact index.
func (s *Set) Each(f func(blockSize int, x *Exact)) {
	for _, e := range *s.exact.Load() {
		f(e.blockSize, e.index)
	}
}

// Approximate returns the index of text-block chains.
func (s *Set) Approximate() *Approximate { return s.approximate }

// Predicted returns the table of prompts in flight, for chains of any kind: those of
// different block sizes and of text do not meet.
func (s *Set) Predicted() *Predicted { return s.predicted }

// Drop takes every block and entry from w, in every index.
func (s *Set) Drop(w kv.Worker) {
	s.Each(func(_ int, x *Exact) { x.Drop(w) })
	s.approximate.Drop(w)
	s.predicted.Drop(w)
}

// Stats says how full the indexes of a Set are.
type Stats struct {
	Blocks      int   `json:"blocks"`      // distinct blocks of the exact indexes
	Memberships int   `json:"memberships"` // (worker, tier, block) triples
	Bytes       int64 `json:"bytes"`       // memory of the exact indexes
	MaxBytes    int64 `json:"max_bytes"`
	Refused     int64 `json:"refused"` // blocks not taken because of MaxBytes (or too many block sizes)

	Sizes []SizeStats `json:"sizes,omitempty"` // the exact indexes one by one

	ApproximateEntries int   `json:"approximate_entries"`
	ApproximateBytes   int64 `json:"approximate_bytes"`
	ApproximateEvicted int64 `json:"approximate_evicted"` // dropped because of the bytes cap
	ApproximateExpired int64 `json:"approximate_expired"` // dropped because of age
	PredictedEntries   int   `json:"predicted_entries"`
	PredictedRefused   int64 `json:"predicted_refused"`
}

// SizeStats are the Stats of the exact index of one block size.
type SizeStats struct {
	BlockSize   int   `json:"block_size"`
	Blocks      int   `json:"blocks"`
	Memberships int   `json:"memberships"`
	Refused     int64 `json:"refused"`
}

// Stats returns the current figures.
func (s *Set) Stats() Stats {
	st := Stats{
		Bytes:    s.budget.used.Load(),
		MaxBytes: s.budget.max,
		Refused:  s.budget.refused.Load() + s.nothing.refused.Load(),
	}
	s.Each(func(blockSize int, x *Exact) {
		x.mu.RLock()
		z := SizeStats{blockSize, x.blocks, x.memberships, int64(x.refused)}
		x.mu.RUnlock()
		st.Sizes = append(st.Sizes, z)
		st.Blocks += z.Blocks
		st.Memberships += z.Memberships
	})
	s.approximate.stats(&st)
	s.predicted.stats(&st)
	return st
}
