package events

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/warmroute/warmroute/router/kv"
)

// Version is the version of every message of the protocol. A reader of version N+1
// accepts N; a reader of N counts and ignores N+1.
const Version = 1

// maxMessage is the largest message that is sent, in bytes. A server may allow less.
const maxMessage = 512 << 10

// maxChunks bounds one answer of a relay: 256 MiB, some 30 million blocks.
const maxChunks = 512

const (
	maxRelayID  = 255 // bytes
	maxWorkerID = 512 // bytes
)

// The kinds of binary messages, their second byte.
const (
	kindDelta   = 1 // a change, numbered within an epoch
	kindState   = 2 // one chunk of an answer that holds a state
	kindReplay  = 3 // one chunk of an answer that holds deltas
	kindRefusal = 4 // an answer that says why there is none
	kindChanges = 5 // bookings of a proxy that changed
	kindLoad    = 6 // one chunk of all bookings of a proxy
	kindWarmUps = 7 // all warm-ups of a proxy
	kindMeeting = 8 // what became of another proxy's warm-up
)

var (
	errVersion = errors.New("message of another protocol version")
	errMessage = errors.New("message is malformed")
)

// header starts every binary message. In those of a proxy its own id, incarnation and
// number of the message stand for relay, epoch and seq.
type header struct {
	kind      byte
	relay     []byte // points into the message
	epoch     uint64
	seq       uint64 // of the delta, or the last one that the answer includes
	time      int64  // when it was made, Unix nanoseconds by the relay's clock; for display
	blockSize int    // tokens; 0 until the engine has told
}

// chunk follows the header of an answer.
type chunk struct {
	id   uint64 // the same in all chunks of one answer
	i, n int    // i counts from 0
}

func appendHeader(dst []byte, kind byte, relay string, epoch, seq uint64, time int64, blockSize int) []byte {
	dst = append(dst, Version, kind, byte(len(relay)))
	dst = append(dst, relay...)
	dst = binary.LittleEndian.AppendUint64(dst, epoch)
	dst = binary.LittleEndian.AppendUint64(dst, seq)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(time))
	return binary.AppendUvarint(dst, uint64(blockSize))
}

func appendChunk(dst []byte, c chunk) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, c.id)
	dst = binary.AppendUvarint(dst, uint64(c.i))
	return binary.AppendUvarint(dst, uint64(c.n))
}

// Flags of one event: kind in bits 0–1, tier in bits 2–3.
const flagParent = 1 << 4

// eventOverhead is more than an event takes beside its hashes.
const eventOverhead = 1 + 8 + 5

// appendEvents appends as many of the events as fit into room bytes, at least one
// hash, and returns those that did not fit. A cut stored event goes on as a child of
// its own last hash.
func appendEvents(dst []byte, events []kv.Event, room int) ([]byte, []kv.Event) {
	end := len(dst) + room
	for i, e := range events {
		n := min(len(e.Hashes), (end-len(dst)-eventOverhead)/8)
		if n < len(e.Hashes) && n < 1 || end-len(dst) < eventOverhead {
			return dst, events[i:]
		}
		flags := byte(e.Kind) | byte(e.Tier)<<2
		if e.HasParent {
			flags |= flagParent
		}
		dst = append(dst, flags)
		if e.HasParent {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Parent))
		}
		dst = binary.AppendUvarint(dst, uint64(n))
		for _, h := range e.Hashes[:n] {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(h))
		}
		if n < len(e.Hashes) {
			rest := append([]kv.Event(nil), events[i:]...)
			rest[0].Hashes = e.Hashes[n:]
			if e.Kind == kv.EventStored {
				rest[0].HasParent, rest[0].Parent = true, e.Hashes[n-1]
			}
			return dst, rest
		}
	}
	return dst, nil
}

// decoder reads one binary message. Its hashes are copied into an arena that grows
// with the message alone, so a hostile count cannot make it allocate.
type decoder struct {
	b      []byte
	events []kv.Event
	starts []int
	hashes []kv.SequenceHash
}

// open reads the header of a relay's message. The events that follow are read by
// readEvents.
func (d *decoder) open(msg []byte) (h header, err error) {
	if h, err = d.header(msg); err == nil && (h.kind < kindDelta || h.kind > kindRefusal) {
		err = errMessage
	}
	return h, err
}

// header reads the header of a message of any kind.
func (d *decoder) header(msg []byte) (h header, err error) {
	d.b = msg
	if len(msg) < 3 {
		return h, errMessage
	}
	if msg[0] != Version {
		return h, fmt.Errorf("%w: %d", errVersion, msg[0])
	}
	h.kind = msg[1]
	d.b = msg[2:]
	n := int(d.b[0])
	d.b = d.b[1:]
	if len(d.b) < n+24 {
		return h, errMessage
	}
	h.relay, d.b = d.b[:n], d.b[n:]
	h.epoch, h.seq, h.time = d.u64(), d.u64(), int64(d.u64())
	size, ok := d.uvarint(1 << 20)
	if !ok {
		return h, errMessage
	}
	h.blockSize = int(size)
	return h, nil
}

func (d *decoder) chunk() (c chunk, err error) {
	if len(d.b) < 8 {
		return c, errMessage
	}
	c.id = d.u64()
	i, ok1 := d.uvarint(maxChunks)
	n, ok2 := d.uvarint(maxChunks)
	if !ok1 || !ok2 || i >= n {
		return c, errMessage
	}
	c.i, c.n = int(i), int(n)
	return c, nil
}

// u64 reads 8 bytes that the caller knows to be there.
func (d *decoder) u64() uint64 {
	v := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

func (d *decoder) uvarint(limit uint64) (uint64, bool) {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		return 0, false
	}
	d.b = d.b[n:]
	return v, true
}

// readEvents reads events to the end of the message. The result is valid until the
// next call of readEvents.
func (d *decoder) readEvents() ([]kv.Event, error) {
	d.events, d.starts, d.hashes = d.events[:0], d.starts[:0], d.hashes[:0]
	if err := d.moreEvents(); err != nil {
		return nil, err
	}
	return d.finish(), nil
}

// moreEvents reads events to the end of the message, after those read before.
func (d *decoder) moreEvents() error {
	for len(d.b) > 0 {
		flags := d.b[0]
		d.b = d.b[1:]
		e := kv.Event{Kind: kv.EventKind(flags & 3), Tier: kv.Tier(flags >> 2 & 3), HasParent: flags&flagParent != 0}
		if e.Kind > kv.EventCleared || e.Tier >= kv.Tiers || flags >= flagParent<<1 {
			return errMessage
		}
		if e.HasParent {
			if len(d.b) < 8 {
				return errMessage
			}
			e.Parent = kv.SequenceHash(d.u64())
		}
		n, ok := d.uvarint(uint64(len(d.b) / 8))
		if !ok || uint64(len(d.b)) < n*8 {
			return errMessage
		}
		d.starts = append(d.starts, len(d.hashes))
		for range n {
			d.hashes = append(d.hashes, kv.SequenceHash(d.u64()))
		}
		d.events = append(d.events, e)
	}
	return nil
}

func (d *decoder) finish() []kv.Event {
	for i := range d.events {
		end := len(d.hashes)
		if i+1 < len(d.events) {
			end = d.starts[i+1]
		}
		d.events[i].Hashes = d.hashes[d.starts[i]:end:end]
	}
	return d.events
}

// appendReplayed appends one delta message to a replay chunk.
func appendReplayed(dst, delta []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(delta)))
	return append(dst, delta...)
}

// nextReplayed cuts the next delta message out of a replay chunk; nil at its end.
func (d *decoder) nextReplayed() ([]byte, error) {
	if len(d.b) == 0 {
		return nil, nil
	}
	n, ok := d.uvarint(maxMessage)
	if !ok || n == 0 || uint64(len(d.b)) < n {
		return nil, errMessage
	}
	m := d.b[:n]
	d.b = d.b[n:]
	return m, nil
}

// Coverage says how far a rank's state may be trusted.
type Coverage string

// The coverages.
const (
	CoverageComplete Coverage = "complete" // every block is known
	CoveragePartial  Coverage = "partial"  // blocks may be missing, none is invented
)

// Announcement is what a relay tells about its worker every 2 s, on a change, and when
// it leaves. It travels as JSON.
type Announcement struct {
	V        int        `json:"v"`
	Worker   string     `json:"worker"`
	URL      string     `json:"url,omitempty"`
	Relay    string     `json:"relay"`
	Info     WorkerInfo `json:"info"`
	Ranks    []RankInfo `json:"ranks"`
	Farewell bool       `json:"farewell,omitempty"`
}

// WorkerInfo is what an engine says about itself when it is asked. Zero is unknown.
type WorkerInfo struct {
	Models         []ModelInfo `json:"models,omitempty"`
	Engine         string      `json:"engine,omitempty"` // "vllm", "sglang", …
	CapacityTokens int         `json:"capacity_tokens,omitempty"`
	MaxNumSeqs     int         `json:"max_num_seqs,omitempty"`
	BlockSize      int         `json:"block_size,omitempty"`
}

// ModelInfo is one entry of an engine's /v1/models.
type ModelInfo struct {
	ID     string `json:"id"`
	Parent string `json:"parent,omitempty"` // base model of an adapter
}

// RankInfo is one rank's part of an announcement.
type RankInfo struct {
	Rank      int      `json:"rank"`
	Epoch     string   `json:"epoch"` // 16 hex digits
	LastSeq   uint64   `json:"last_seq"`
	Coverage  Coverage `json:"coverage"`
	Reason    string   `json:"reason,omitempty"` // why it is partial, and what mends it
	BlockSize int      `json:"block_size,omitempty"`
	Blocks    int      `json:"blocks"`
}

// stateRequest asks a relay for the deltas from a sequence number on, or for the whole
// state where that is 0 or no longer kept. It travels as JSON.
type stateRequest struct {
	V     int    `json:"v"`
	Relay string `json:"relay"`
	Epoch string `json:"epoch,omitempty"`
	From  uint64 `json:"from,omitempty"`
}

// decodeJSON reads a JSON message whose version is v.
func decodeJSON(msg []byte, to any, v *int) error {
	if err := json.Unmarshal(msg, to); err != nil {
		// A later version may have other types under known names.
		var probe struct {
			V int `json:"v"`
		}
		if json.Unmarshal(msg, &probe) == nil && probe.V > Version {
			return fmt.Errorf("%w: %d", errVersion, probe.V)
		}
		return errMessage
	}
	if *v != Version {
		return fmt.Errorf("%w: %d", errVersion, *v)
	}
	return nil
}

func formatEpoch(e uint64) string { return fmt.Sprintf("%016x", e) }
