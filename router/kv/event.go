package kv

// Tier is where a block resides, nearest first. Overlap is credited by tier.
type Tier uint8

// The tiers, in the order in which a prefix continues across them.
const (
	TierGPU  Tier = iota // device memory: ready to use
	TierCPU              // host memory: loaded before use
	TierDisk             // disk, file system, object store or a shared external cache

	// Tiers is the number of tiers.
	Tiers = 3
)

// String returns the tier's name as metrics and JSON print it.
func (t Tier) String() string {
	switch t {
	case TierGPU:
		return "gpu"
	case TierCPU:
		return "cpu"
	case TierDisk:
		return "disk"
	}
	return "unknown"
}

// EventKind says what happened to blocks of a worker rank.
type EventKind uint8

// The kinds of KV events.
const (
	EventStored  EventKind = iota // blocks became resident in a tier
	EventRemoved                  // blocks left a tier
	EventCleared                  // every block of the rank left every tier
)

// String returns the kind's name as metrics and JSON print it.
func (k EventKind) String() string {
	switch k {
	case EventStored:
		return "stored"
	case EventRemoved:
		return "removed"
	case EventCleared:
		return "cleared"
	}
	return "unknown"
}

// Event is one change of a worker rank's KV cache, net of the engine's duplicates.
//
// In a stored event Hashes are consecutive: each is the child of the one before and
// Hashes[0] is the child of Parent, or block 0 of a prompt when HasParent is false.
// In a removed event they are in no order. A cleared event has none.
type Event struct {
	Kind      EventKind
	Tier      Tier
	HasParent bool
	Parent    SequenceHash
	Hashes    []SequenceHash
}

// Overlap counts the whole blocks of a prompt that one worker rank holds: contiguous
// from block 0 on the GPU, then contiguous beyond those in CPU memory, then on disk.
type Overlap struct {
	GPU, CPU, Disk uint32
}
