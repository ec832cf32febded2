package kv

import (
	"time"

	"github.com/zeebo/xxh3"
)

// MaxWarmUps is how many warm-ups one proxy tells others of: the newest.
const MaxWarmUps = 512

// WarmUp is a warm-up of one proxy whose next turn is still to come, as the others are told
// of it: whoever routes a prompt that starts with its blocks tells the owner.
type WarmUp struct {
	ID        uint64 // of the proxy's incarnation, never 0
	Rank      WorkerRank
	BlockSize int          // tokens
	Blocks    int          // whole blocks of the prefix, at least 1
	Tail      SequenceHash // of the last of them, with TenantHash; never 0
	Sent      bool
	Done      bool          // it was answered, or will not be sent
	Age       time.Duration // since the end of its turn, whole milliseconds
}

// TenantHash is what a WarmUp's tail is XORed with, so that the same prompt of another
// tenant, or of another model, does not meet it.
func TenantHash(model, key string) SequenceHash {
	return SequenceHash(xxh3.HashString(key) + xxh3.HashStringSeed(model, 1))
}

// Meeting tells the owner of a warm-up that its next turn came to another proxy, and, once
// that has ended, how it went.
type Meeting struct {
	Owner string // proxy
	ID    uint64 // of the warm-up
	Ended bool

	// Of a turn that has ended:
	OK     bool
	Rank   WorkerRank
	Cached int           // tokens that the engine reported cached; -1: not told
	TTFT   time.Duration // whole microseconds; 0: not seen
}
