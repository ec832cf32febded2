package kv

// Phase is how far the request of a booking has come.
type Phase uint8

// The phases. A request only moves forward.
const (
	PhasePrefill Phase = iota // its tokens wait for their first token
	PhaseDecode               // past its first token
	PhaseDone                 // it holds nothing any more
)

// BookingMarks is how many prefixes of a prompt a booking names.
const BookingMarks = 8

// MarkTokens is the length of the first prefix that a booking names; each further one
// is twice as long.
const MarkTokens = 1024

// MaxBookingTokens is more than any booking holds.
const MaxBookingTokens = 1 << 26

// Booking is the load of one request on one worker rank, as one proxy tells the others
// of it. Within one incarnation of that proxy Lease names the request; of a request
// that is done only Lease and Phase matter.
type Booking struct {
	Lease    uint64 // rises, never 0
	Rank     WorkerRank
	Phase    Phase
	Streams  bool // its first token will be told; otherwise its tokens drain with time
	Uncached int  // prompt tokens to be computed before the first token; 0 past that
	KV       int  // KV tokens held: prompt and output so far
	// Marks are the sequence hashes of the prompt's first 1,024, 2,048, 4,096 … tokens
	// (or a little less: whole blocks), so that prefixes which several requests share
	// count once; 0 where the prompt ends, all 0 where it was told before.
	Marks [BookingMarks]SequenceHash
}
