package kv

import (
	"slices"
	"sync"
)

// Source says where the identity of a prompt came from, best first.
type Source uint8

// The sources of a prompt's identity.
const (
	SourceNone   Source = iota // nothing is known: an empty or unreadable prompt
	SourceText                 // text blocks of the canonical form: approximate
	SourceEngine               // token ids from the engine's own tokenizer
	SourceLocal                // token ids from the tokenizer in this process
	SourceClient               // token ids sent by the client as the prompt
)

// String returns the source's name as metrics and JSON print it.
func (s Source) String() string {
	switch s {
	case SourceNone:
		return "none"
	case SourceText:
		return "text"
	case SourceEngine:
		return "engine"
	case SourceLocal:
		return "local"
	case SourceClient:
		return "client"
	}
	return "unknown"
}

// DefaultBlockSize is the block size, in tokens, of a worker that has not told its
// own yet.
const DefaultBlockSize = 64

// Prompt is the identity of one request's prompt. Tokens and Text are filled by the
// prompt package; the router asks for the chain of the block size of each worker.
// It is for one goroutine at a time.
type Prompt struct {
	Source    Source
	Reason    string // why Source is not better, for people; "" when it is exact
	Namespace Namespace

	// Tokens are the token ids of the prompt, exact, up to the first image or audio
	// placeholder; nil where they are not known.
	Tokens []uint32
	// TokenCount is the length of the whole prompt in tokens: exact where Tokens is
	// complete, else estimated from the text.
	TokenCount int

	// Text are the sequence hashes of the canonical form's text blocks, and
	// TextBoundaries the ascending counts of whole text blocks at which a message
	// ends: a conversation's next turn shares its prefix up to one of them.
	Text           []SequenceHash
	TextBoundaries []int
	// BytesPerToken converts a matched length of text to tokens.
	BytesPerToken float64

	// Chains may be shared with prompts that begin alike; nil makes the prompt its own.
	Chains *Chains
}

// Chains are the sequence hashes of one token sequence by block size, each hashed when it
// is first asked for. A sequence that begins like another takes over what is known of
// that one. Safe for concurrent use.
type Chains struct {
	// Changed, unless nil, is told by how much Bytes has changed, without a lock held. It is
	// set before others have the Chains.
	Changed func(bytes int64)

	mu   sync.Mutex
	list []chain
}

type chain struct {
	blockSize int
	hashes    []SequenceHash
	held      int // hashes in the memory that hashes is a part of
}

// Prefix returns new Chains that know what c knows of the first tokens tokens.
func (c *Chains) Prefix(tokens int) *Chains {
	out := new(Chains)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.list {
		if n := min(tokens/k.blockSize, len(k.hashes)); n > 0 {
			out.list = append(out.list, chain{k.blockSize, k.hashes[:n:n], k.held})
		}
	}
	return out
}

// Bytes is the memory that the hashes keep, as if none of it were shared.
func (c *Chains) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, k := range c.list {
		n += 8 * k.held
	}
	return int64(n)
}

func (c *Chains) of(tokens []uint32, blockSize int, seed uint64) []SequenceHash {
	hashes, changed := c.hashed(tokens, blockSize, seed)
	if changed != 0 && c.Changed != nil {
		c.Changed(changed)
	}
	return hashes
}

// hashed returns the hashes of tokens and by how much Bytes has changed.
func (c *Chains) hashed(tokens []uint32, blockSize int, seed uint64) (hashes []SequenceHash, changed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.list, func(k chain) bool { return k.blockSize == blockSize })
	if at < 0 {
		at = len(c.list)
		c.list = append(c.list, chain{blockSize: blockSize})
	}
	k := &c.list[at]
	whole, held := len(tokens)/blockSize, k.held
	switch known := len(k.hashes); {
	case known >= whole:
	case known == 0:
		k.hashes, k.held = AppendSequenceHashes(make([]SequenceHash, 0, whole), tokens, blockSize, seed), whole
	default:
		grown := append(make([]SequenceHash, 0, whole), k.hashes...)
		k.hashes = extendChain(grown, k.hashes[known-1], tokens[known*blockSize:], blockSize, seed)
		k.held = whole
	}
	return k.hashes[:whole:whole], int64(8 * (k.held - held))
}

// Exact tells whether the prompt's tokens are known.
func (p *Prompt) Exact() bool { return len(p.Tokens) > 0 }

// Chain returns the sequence hashes of the prompt's whole blocks of blockSize tokens,
// nil where tokens are not known. Each block size is hashed once; the caller must not
// change the result.
func (p *Prompt) Chain(blockSize int) []SequenceHash {
	if blockSize <= 0 || len(p.Tokens) < blockSize {
		return nil
	}
	if p.Chains == nil {
		p.Chains = new(Chains)
	}
	return p.Chains.of(p.Tokens, blockSize, p.Namespace.Seed())
}

// Hashed returns what Chain does where that is known by now, else nil: it never hashes.
func (p *Prompt) Hashed(blockSize int) []SequenceHash {
	if blockSize <= 0 || p.Chains == nil {
		return nil
	}
	p.Chains.mu.Lock()
	defer p.Chains.mu.Unlock()
	for i := range p.Chains.list {
		k, whole := &p.Chains.list[i], len(p.Tokens)/blockSize
		if k.blockSize == blockSize && len(k.hashes) >= whole {
			return k.hashes[:whole:whole]
		}
	}
	return nil
}

// TextTokens returns the tokens that the first blocks text blocks stand for, at most
// TokenCount.
func (p *Prompt) TextTokens(blocks int) int {
	if p.BytesPerToken <= 0 {
		return 0
	}
	return min(int(float64(blocks*TextBlockBytes)/p.BytesPerToken), p.TokenCount)
}
