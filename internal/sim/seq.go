package sim

import (
	"slices"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// State is where a sequence is in its life.
type State uint8

// The states of a sequence.
const (
	StateNew      State = iota // not submitted
	StateWaiting               // queued, or preempted
	StateRunning               // holds KV blocks
	StateFinished              // all output tokens are generated
	StateAborted               // ended by Abort
	StateRejected              // refused by Submit
)

// Media is a run of placeholder tokens that stands for an image or audio.
type Media struct {
	Start, End int    // token positions, End exclusive
	Hash       uint64 // of the content; part of the identity of each block it touches
}

// Seq is one sequence: a prompt and the output to generate for it.
type Seq struct {
	Tokens       []uint32 // the prompt; not changed while the sequence lives
	Namespace    kv.Namespace
	Media        []Media // ascending; nil for text
	OutputTokens int     // tokens to generate; 0 computes the prompt alone
	// Output is token i of the output. nil generates ids from the prompt's last tokens.
	Output func(i int) uint32
	Tag    any // the caller's

	// Results, set by the engine.
	State        State
	CachedTokens int       // prompt tokens found in the cache at first admission
	Generated    int       // output tokens so far
	Admitted     time.Time // first moment in a step

	seed     uint64
	out      []uint32
	computed int               // tokens whose KV is in the table's blocks
	table    []int32           // blocks, in order
	stored   int               // blocks of table that are in the prefix cache
	probed   int               // while waiting: blocks beyond table's end that were found last time
	chain    []kv.SequenceHash // of the full blocks looked at so far
	aborted  bool
}

// Generation returns the output tokens so far; the caller must not change them.
func (s *Seq) Generation() []uint32 { return s.out }

func (s *Seq) total() int { return len(s.Tokens) + len(s.out) }

func (s *Seq) sample() {
	if s.out == nil {
		s.out = make([]uint32, 0, min(s.OutputTokens, 4096))
	}
	i := s.Generated
	var t uint32
	if s.Output != nil {
		t = s.Output(i)
	} else {
		t = s.Tokens[len(s.Tokens)-1]*2654435761 + uint32(len(s.Tokens)+i)*40503
	}
	s.out = append(s.out, t)
	s.Generated++
}

// slice returns the tokens from to to of prompt and output, in place where it can.
func (s *Seq) slice(from, to int) []uint32 {
	p := len(s.Tokens)
	switch {
	case to <= p:
		return s.Tokens[from:to:to]
	case from >= p:
		return s.out[from-p : to-p : to-p]
	}
	return append(append(make([]uint32, 0, to-from), s.Tokens[from:]...), s.out[:to-p]...)
}

// extendChain hashes the prefix up to n full blocks; what is hashed stays hashed.
func (s *Seq) extendChain(size, n int) {
	if len(s.chain) >= n {
		return
	}
	if s.chain == nil {
		s.chain = make([]kv.SequenceHash, 0, blocksFor(len(s.Tokens)+s.OutputTokens, size))
	}
	for i := len(s.chain); i < n; i++ {
		b := kv.HashBlock(s.slice(i*size, (i+1)*size), s.mediaIn(i*size, (i+1)*size), s.seed)
		if i == 0 {
			s.chain = append(s.chain, kv.First(b))
		} else {
			s.chain = append(s.chain, s.chain[i-1].Next(b))
		}
	}
}

// mediaIn returns the content hashes of the media that touch the tokens from to to,
// ascending as kv.HashBlock wants them.
func (s *Seq) mediaIn(from, to int) []uint64 {
	var hashes []uint64
	for _, m := range s.Media {
		if m.Start < to && m.End > from {
			hashes = append(hashes, m.Hash)
		}
	}
	slices.Sort(hashes)
	return hashes
}
