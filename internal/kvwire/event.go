package kvwire

import "github.com/warmroute/warmroute/router/kv"

// EngineHash is a block's id as one engine process names it. It is never compared
// between processes. Integers keep their 64 bits, signed ones reinterpreted; of a byte
// string it is the last 8 bytes, big-endian, which is how vLLM itself makes an integer
// of a digest.
type EngineHash uint64

// Batch is the KV events of one engine step.
type Batch struct {
	Time   float64 // seconds since 1970 by the engine's clock; for display only
	Events []Event
	Rank   int // data-parallel rank, -1 where the engine sends none

	Unknown   int // events with an unknown tag and fields with an unknown name, skipped
	Malformed int // events dropped because a known field has an impossible value

	arena arena
}

// Event is one engine event in the words that all layouts share.
type Event struct {
	Kind kv.EventKind

	// Hashes are the blocks. In a stored event they are consecutive and Hashes[0] is
	// the child of Parent, or the first block of a prompt when HasParent is false.
	Hashes    []EngineHash
	HasParent bool
	Parent    EngineHash

	// Tokens are the blocks' token ids. Offloading tiers send none, and hybrid models
	// may send more than BlockSize times the number of hashes.
	Tokens    []uint32
	BlockSize int // tokens of one block; 0 where the engine leaves it out

	Medium string  // the tier's name as sent, "" where there is none
	Tier   kv.Tier // Medium normalised; TierGPU where there is none

	LoRAID    int64 // deprecated by engines; valid if HasLoRAID
	HasLoRAID bool
	LoRAName  string // "" is the base model or not sent
	Salt      string // cache salt; vLLM sends it with the first block of a prompt only

	// MM are the content hashes of images, audio or embeddings in each block,
	// ascending as kv.HashBlock wants them; nil when no block has one.
	MM [][]uint64

	Group         int    // KV cache group of a hybrid model; 0 where there is none
	SpecKind      string // kind of attention of the group, "" where not sent
	SlidingWindow int    // window of the group in tokens, 0 for none

	// Bigram marks SGLang's EAGLE mode, where the engine's unit is the pair of a token
	// and its successor. Tokens are the first of each pair, so that a block hashes to
	// what the same prompt hashes to on any other worker; Next is the second of the
	// last pair. The engine matches a block only if the token behind it is equal too:
	// where a prompt diverges right at the block's end, overlap is one block too high.
	Bigram bool
	Next   uint32

	Remote bool // the block is on another machine (locality REMOTE)
}

// arena is the memory that the events of a Batch point into.
type arena struct {
	hashes []EngineHash
	tokens []uint32
	mm     []uint64
	blocks [][]uint64
}
