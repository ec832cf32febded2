package kvwire

import (
	"errors"
	"math"
	"strings"

	"github.com/tinylib/msgp/msgp"
	"github.com/warmroute/warmroute/router/kv"
)

// field is one part of an event, wherever a layout puts it.
type field uint8

const (
	fieldUnknown field = iota
	fieldIgnored       // known, and of no use to routing
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName // in SGLang arrays a map of metadata
	fieldExtraKeys
	fieldGroup
	fieldSpecKind
	fieldWindow
	fieldLocality
	fieldSalt
	fieldMMInfos // TensorRT-LLM and Dynamo: content hashes as integers
)

// positions are the fields of array events after the tag. Every release appends, so one
// list serves all lengths.
var positions = [...][]field{
	kv.EventStored: {fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, fieldMedium, fieldLoRAName,
		fieldExtraKeys, fieldGroup, fieldSpecKind, fieldWindow, fieldLocality},
	kv.EventRemoved: {fieldHashes, fieldMedium, fieldGroup, fieldLocality},
	kv.EventCleared: {},
}

// fieldOf returns the field that map events call name.
func fieldOf(name string) field {
	switch name {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash", "parent_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRAName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx", "component_id":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldSpecKind
	case "kv_cache_spec_sliding_window":
		return fieldWindow
	case "locality":
		return fieldLocality
	case "cache_salt":
		return fieldSalt
	case "block_mm_infos":
		return fieldMMInfos
	case "type", "session_id", "ownership":
		return fieldIgnored
	}
	return fieldUnknown
}

// eventReader is what an event leaves over until all its fields are known: extra keys
// mean different things by LoRA name and parent, which may follow them.
type eventReader struct {
	hashes    bool
	malformed bool
	extraKeys []byte
	mmInfos   []byte
}

// field reads one field into e. An impossible value marks the event; only a cut
// payload and a limit are errors.
func (d *Decoder) field(r *eventReader, f field, p []byte, e *Event, b *Batch) ([]byte, error) {
	if msgp.IsNil(p) {
		return p[1:], nil
	}
	rest, err := d.value(r, f, p, e, b)
	switch {
	case err == nil:
		return rest, nil
	case errors.Is(err, msgp.ErrShortBytes), errors.Is(err, errLimit):
		return p, err
	}
	r.malformed = true
	return msgp.Skip(p)
}

func (d *Decoder) value(r *eventReader, f field, p []byte, e *Event, b *Batch) (rest []byte, err error) {
	var v int64
	switch f {
	case fieldHashes:
		r.hashes = true
		return d.hashes(p, e, b)
	case fieldParent:
		e.Parent, rest, err = readHash(p)
		e.HasParent = err == nil
	case fieldTokens:
		return d.tokens(p, e, b)
	case fieldBlockSize:
		if v, rest, err = readInt(p); err == nil && (v < 0 || v > math.MaxInt32) {
			err = errValue
		}
		e.BlockSize = int(v)
	case fieldLoRAID:
		e.LoRAID, rest, err = readInt(p)
		e.HasLoRAID = err == nil
	case fieldMedium:
		e.Medium, rest, err = d.str(p)
		var known bool
		if e.Tier, known = tierOf(e.Medium); !known {
			b.Unknown++
		}
	case fieldLoRAName:
		if msgp.NextType(p) == msgp.MapType {
			return d.metadata(r, p, e, b)
		}
		e.LoRAName, rest, err = d.str(p)
	case fieldExtraKeys:
		r.extraKeys = p
		return msgp.Skip(p)
	case fieldMMInfos:
		r.mmInfos = p
		return msgp.Skip(p)
	case fieldGroup:
		if v, rest, err = readInt(p); err == nil && (v < 0 || v > math.MaxInt32) {
			err = errValue
		}
		e.Group = int(v)
	case fieldSpecKind:
		e.SpecKind, rest, err = d.str(p)
	case fieldWindow:
		if v, rest, err = readInt(p); err == nil && (v < 0 || v > math.MaxInt32) {
			err = errValue
		}
		e.SlidingWindow = int(v)
	case fieldLocality:
		// Forks append other things to array events here.
		if len(p) > 0 && msgp.NextType(p) != msgp.StrType {
			b.Unknown++
			return msgp.Skip(p)
		}
		var s string
		s, rest, err = d.str(p)
		e.Remote = strings.EqualFold(s, "REMOTE")
	case fieldSalt:
		e.Salt, rest, err = d.str(p)
	case fieldIgnored:
		return msgp.Skip(p)
	default:
		b.Unknown++
		return msgp.Skip(p)
	}
	return rest, err
}

// metadata reads the map that SGLang appends to a stored event whose blocks are salted.
func (d *Decoder) metadata(r *eventReader, p []byte, e *Event, b *Batch) ([]byte, error) {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return p, err
	}
	for range n {
		var key []byte
		if key, p, err = msgp.ReadMapKeyZC(p); err != nil {
			return p, err
		}
		f := fieldOf(string(key))
		if f == fieldLoRAName && msgp.NextType(p) == msgp.MapType {
			f = fieldUnknown // no maps in maps
		}
		if p, err = d.field(r, f, p, e, b); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (d *Decoder) hashes(p []byte, e *Event, b *Batch) ([]byte, error) {
	n, p, err := arrayHeader(p, "hashes", orDefault(d.MaxHashes, defaultMaxHashes))
	if err != nil {
		return p, err
	}
	h, from := b.arena.hashes, len(b.arena.hashes)
	for range n {
		var v EngineHash
		if v, p, err = readHash(p); err != nil {
			return p, err
		}
		h = append(h, v)
	}
	b.arena.hashes, e.Hashes = h, h[from:len(h):len(h)]
	return p, nil
}

// tokens reads token ids, or SGLang's pairs of a token and its successor.
func (d *Decoder) tokens(p []byte, e *Event, b *Batch) ([]byte, error) {
	n, p, err := arrayHeader(p, "tokens", orDefault(d.MaxTokens, defaultMaxTokens))
	if err != nil {
		return p, err
	}
	t, from := b.arena.tokens, len(b.arena.tokens)
	e.Bigram = n > 0 && msgp.NextType(p) == msgp.ArrayType
	for range n {
		var v uint32
		if e.Bigram {
			const pair = 0x92 // an array of two
			if len(p) == 0 {
				return p, msgp.ErrShortBytes
			}
			if p[0] != pair {
				return p, errValue
			}
			if v, p, err = readToken(p[1:]); err == nil {
				e.Next, p, err = readToken(p)
			}
		} else {
			v, p, err = readToken(p)
		}
		if err != nil {
			return p, err
		}
		t = append(t, v)
	}
	b.arena.tokens, e.Tokens = t, t[from:len(t):len(t)]
	return p, nil
}

// finish checks e and reads what had to wait for its other fields.
func (d *Decoder) finish(r *eventReader, e *Event, b *Batch) error {
	if r.malformed || e.Kind != kv.EventCleared && !r.hashes {
		return errValue
	}
	if r.extraKeys != nil {
		if err := d.extraKeys(r.extraKeys, e, b); err != nil {
			return err
		}
	}
	if r.mmInfos != nil && e.MM == nil {
		return d.mmInfos(r.mmInfos, e, b)
	}
	return nil
}
