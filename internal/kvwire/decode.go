package kvwire

import (
	"errors"
	"fmt"
	"time"

	"github.com/tinylib/msgp/msgp"
	"github.com/warmroute/warmroute/router/kv"
)

// Default limits of a Decoder. An engine step of a 200,000-token prompt is about 1 MiB
// of tokens in one event; the limits leave room for ten of them.
const (
	DefaultMaxPayload = 16 << 20
	defaultMaxTokens  = 2 << 20
	defaultMaxHashes  = 256 << 10
)

// Decoder decodes batches of any layout. The form is recognised for each event by
// itself, never by the engine's name: arrays and maps, integer and byte-string hashes
// and any length of event may share a batch. The zero value is ready; a Decoder is for
// one goroutine at a time.
type Decoder struct {
	MaxPayload int // bytes of one batch; default DefaultMaxPayload
	MaxTokens  int // tokens of one event; default 2 Mi
	MaxHashes  int // hashes of one event; default 256 Ki

	names map[string]string // see intern
}

// maxNames and maxName bound the interned strings and the bytes of one: LoRA names are
// few, but salts may be one per tenant, and any length.
const (
	maxNames = 4096
	maxName  = 256
)

var (
	errLimit = errors.New("limit exceeded")
	// errValue is a value of a type or size that the field cannot have. It costs its
	// event, not the batch.
	errValue = errors.New("impossible value")
)

// Decode decodes one payload into b, whose memory it uses again: what b held before is
// gone. Unknown events and fields are skipped and counted, an event with an impossible
// value is dropped and counted; an error means that the payload is no batch, is cut
// short or exceeds a limit, and then b holds the events before that point.
func (d *Decoder) Decode(payload []byte, b *Batch) error {
	b.reset()
	if limit := orDefault(d.MaxPayload, DefaultMaxPayload); len(payload) > limit {
		return fmt.Errorf("decode KV events: %w: payload of %d bytes, at most %d are taken", errLimit, len(payload), limit)
	}
	rest, err := d.batch(payload, b)
	if err != nil {
		if errors.Is(err, msgp.ErrShortBytes) {
			err = errors.New("payload is cut short")
		}
		return fmt.Errorf("decode KV events: %w (%d bytes, after %d events)", err, len(payload), len(b.Events))
	}
	if len(rest) > 0 {
		b.Unknown++
	}
	return nil
}

func (b *Batch) reset() {
	b.Time, b.Rank, b.Unknown, b.Malformed = 0, -1, 0, 0
	b.Events = b.Events[:0]
	b.arena = arena{b.arena.hashes[:0], b.arena.tokens[:0], b.arena.mm[:0], b.arena.blocks[:0]}
}

// batch reads the envelope: [ts, events, rank?, ...], or a map with those names.
func (d *Decoder) batch(p []byte, b *Batch) (rest []byte, err error) {
	switch t := msgp.NextType(p); t {
	case msgp.ArrayType:
		n, p, err := msgp.ReadArrayHeaderBytes(p)
		if err != nil {
			return p, err
		}
		if n < 2 {
			return p, fmt.Errorf("batch has %d elements, want [time, events, ...]", n)
		}
		for i := range n {
			switch i {
			case 0:
				p, err = batchTime(p, b)
			case 1:
				p, err = d.events(p, b)
			case 2:
				p, err = batchRank(p, b)
			default:
				b.Unknown++
				p, err = msgp.Skip(p)
			}
			if err != nil {
				return p, err
			}
		}
		return p, nil
	case msgp.MapType:
		n, p, err := msgp.ReadMapHeaderBytes(p)
		if err != nil {
			return p, err
		}
		seen := false
		for range n {
			var key []byte
			if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
				return p, err
			}
			switch string(key) {
			case "ts":
				p, err = batchTime(p, b)
			case "events":
				seen = true
				p, err = d.events(p, b)
			case "data_parallel_rank", "attn_dp_rank", "attention_dp_rank", "dp_rank":
				p, err = batchRank(p, b)
			default:
				if string(key) != "type" {
					b.Unknown++
				}
				p, err = msgp.Skip(p)
			}
			if err != nil {
				return p, err
			}
		}
		if !seen {
			return p, errors.New(`batch map has no "events"`)
		}
		return p, nil
	default:
		if len(p) == 0 {
			return p, msgp.ErrShortBytes
		}
		return p, fmt.Errorf("payload is no event batch: it starts with a msgpack %s", t)
	}
}

func batchTime(p []byte, b *Batch) (rest []byte, err error) {
	switch msgp.NextType(p) {
	case msgp.Float64Type, msgp.Float32Type:
		b.Time, rest, err = msgp.ReadFloat64Bytes(p)
		return rest, err
	case msgp.IntType:
		var i int64
		i, rest, err = msgp.ReadInt64Bytes(p)
		b.Time = float64(i)
		return rest, err
	case msgp.UintType:
		var u uint64
		u, rest, err = msgp.ReadUint64Bytes(p)
		b.Time = float64(u)
		return rest, err
	}
	return msgp.Skip(p)
}

// maxRank bounds the data-parallel rank that is believed.
const maxRank = 1 << 16

func batchRank(p []byte, b *Batch) (rest []byte, err error) {
	if msgp.IsNil(p) {
		return p[1:], nil
	}
	v, rest, err := readInt(p)
	if errors.Is(err, errValue) || err == nil && (v < 0 || v >= maxRank) {
		b.Unknown++
		return msgp.Skip(p)
	}
	if err == nil {
		b.Rank = int(v)
	}
	return rest, err
}

func (d *Decoder) events(p []byte, b *Batch) ([]byte, error) {
	if msgp.IsNil(p) {
		return p[1:], nil
	}
	if len(p) > 0 && msgp.NextType(p) != msgp.ArrayType {
		return p, fmt.Errorf("events are a msgpack %s, want an array", msgp.NextType(p))
	}
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return p, err
	}
	for range n {
		// An event that turns out to be none gives its memory back.
		mark := b.arena
		i := len(b.Events)
		b.Events = append(b.Events, Event{})
		var keep bool
		if p, keep, err = d.event(p, &b.Events[i], b); err != nil {
			b.Events = b.Events[:i]
			return p, err
		}
		if !keep {
			b.Events = b.Events[:i]
			b.arena = mark
		}
	}
	return p, nil
}

// event reads one event of either form. keep is false for one that is skipped, which
// is then counted.
func (d *Decoder) event(p []byte, e *Event, b *Batch) (rest []byte, keep bool, err error) {
	skip := func() ([]byte, bool, error) {
		b.Unknown++
		rest, err := msgp.Skip(p)
		return rest, false, err
	}
	var r eventReader
	switch msgp.NextType(p) {
	case msgp.ArrayType:
		n, rest, err := msgp.ReadArrayHeaderBytes(p)
		if err != nil {
			return rest, false, err
		}
		if n == 0 {
			return skip()
		}
		kind, rest, ok, err := readTag(rest)
		if err != nil {
			return rest, false, err
		}
		if !ok {
			return skip()
		}
		e.Kind = kind
		fields := positions[kind]
		for i := range int(n - 1) {
			f := fieldUnknown
			if i < len(fields) {
				f = fields[i]
			}
			if rest, err = d.field(&r, f, rest, e, b); err != nil {
				return rest, false, err
			}
		}
		p = rest
	case msgp.MapType:
		kind, ok, err := mapTag(p)
		if err != nil {
			return p, false, err
		}
		if !ok {
			return skip()
		}
		e.Kind = kind
		n, rest, err := msgp.ReadMapHeaderBytes(p)
		if err != nil {
			return rest, false, err
		}
		for range n {
			var key []byte
			if key, rest, err = msgp.ReadMapKeyZC(rest); err != nil {
				return rest, false, err
			}
			if rest, err = d.field(&r, fieldOf(string(key)), rest, e, b); err != nil {
				return rest, false, err
			}
		}
		p = rest
	default:
		if len(p) == 0 {
			return p, false, msgp.ErrShortBytes
		}
		return skip()
	}
	if err := d.finish(&r, e, b); err != nil {
		b.Malformed++
		return p, false, nil
	}
	return p, true, nil
}

// readTag reads the name of an event's kind. ok is false for one that is not known.
func readTag(p []byte) (kind kv.EventKind, rest []byte, ok bool, err error) {
	switch msgp.NextType(p) {
	case msgp.StrType:
		var tag []byte
		if tag, rest, err = msgp.ReadStringZC(p); err != nil {
			return 0, rest, false, err
		}
		switch string(tag) {
		case "BlockStored":
			return kv.EventStored, rest, true, nil
		case "BlockRemoved":
			return kv.EventRemoved, rest, true, nil
		case "AllBlocksCleared":
			return kv.EventCleared, rest, true, nil
		}
		return 0, rest, false, nil
	}
	rest, err = msgp.Skip(p)
	return 0, rest, false, err
}

// mapTag finds the kind of a map event, wherever in the map it stands.
func mapTag(p []byte) (kind kv.EventKind, ok bool, err error) {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return 0, false, err
	}
	for range n {
		var key []byte
		if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
			return 0, false, err
		}
		if string(key) == "type" {
			kind, _, ok, err = readTag(p)
			return kind, ok, err
		}
		if p, err = msgp.Skip(p); err != nil {
			return 0, false, err
		}
	}
	return 0, false, nil
}

func orDefault[T int | time.Duration](n, def T) T {
	if n <= 0 {
		return def
	}
	return n
}
