package kvwire

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/tinylib/msgp/msgp"
	"github.com/warmroute/warmroute/router/kv"
)

// shape is what a layout's events consist of.
type shape struct {
	maps     bool
	sglang   bool
	rank     bool // the batch has a third element
	stored   int  // elements of an array stored event, tag included
	removed  int
	salt     bool // SGLang: cache salt of salted stores
	locality bool
}

var shapes = [layouts]shape{
	LayoutVLLM090:      {stored: 6, removed: 2},
	LayoutVLLM091:      {stored: 6, removed: 2, rank: true},
	LayoutVLLM0102:     {stored: 7, removed: 3, rank: true},
	LayoutVLLM014:      {stored: 8, removed: 3, rank: true},
	LayoutVLLM0191:     {stored: 9, removed: 3, rank: true},
	LayoutVLLM023Group: {stored: 10, removed: 4, rank: true},
	LayoutVLLM023:      {stored: 12, removed: 4, rank: true},
	LayoutVLLM024:      {maps: true, rank: true},
	LayoutVLLM026:      {maps: true, rank: true, locality: true},
	LayoutSGLang2025:   {sglang: true, stored: 6, removed: 2, rank: true},
	LayoutSGLang:       {sglang: true, stored: 7, removed: 3, rank: true},
	LayoutSGLangSalt:   {sglang: true, stored: 7, removed: 3, rank: true, salt: true},
	LayoutSGLangMap:    {sglang: true, maps: true, rank: true, salt: true},
}

// encoder appends one batch.
type encoder struct {
	shape
	opts EncodeOptions
	dst  []byte
}

// Append appends b in layout l to dst. What the layout cannot say is left out; a
// negative Group is encoded as nil.
func Append(dst []byte, l Layout, b *Batch, opts EncodeOptions) []byte {
	e := encoder{shape: shapes[l], opts: opts, dst: dst}
	if opts.MapEnvelope {
		e.dst = msgp.AppendMapHeader(e.dst, 3)
		e.string("ts")
		e.dst = msgp.AppendFloat64(e.dst, b.Time)
		e.string("events")
		e.events(b)
		e.string("data_parallel_rank")
		e.natural(b.Rank, b.Rank >= 0)
		return e.dst
	}
	n := uint32(2)
	if e.rank {
		n = 3
	}
	e.dst = msgp.AppendArrayHeader(e.dst, n)
	e.dst = msgp.AppendFloat64(e.dst, b.Time)
	e.events(b)
	if e.rank {
		e.natural(b.Rank, b.Rank >= 0)
	}
	return e.dst
}

func (e *encoder) events(b *Batch) {
	e.dst = msgp.AppendArrayHeader(e.dst, uint32(len(b.Events)))
	for i := range b.Events {
		if e.maps {
			e.mapEvent(&b.Events[i])
		} else {
			e.arrayEvent(&b.Events[i])
		}
	}
}

func (e *encoder) arrayEvent(v *Event) {
	switch v.Kind {
	case kv.EventStored:
		n := e.stored
		if e.salt && v.Salt != "" {
			n++
		}
		e.dst = msgp.AppendArrayHeader(e.dst, uint32(n))
		e.string("BlockStored")
		for i, f := range positions[kv.EventStored][:n-1] {
			if e.sglang && i == e.stored-1 {
				e.dst = msgp.AppendMapHeader(e.dst, 1)
				e.string("cache_salt")
				f = fieldSalt
			}
			e.value(f, v)
		}
	case kv.EventRemoved:
		e.dst = msgp.AppendArrayHeader(e.dst, uint32(e.removed))
		e.string("BlockRemoved")
		for _, f := range positions[kv.EventRemoved][:e.removed-1] {
			e.value(f, v)
		}
	case kv.EventCleared:
		e.dst = msgp.AppendArrayHeader(e.dst, 1)
		e.string("AllBlocksCleared")
	}
}

// mapField is a field of map events. Engines send those that are not optional even
// when they are nil.
type mapField struct {
	name     string
	field    field
	optional bool
}

var mapFields = [...][]mapField{
	kv.EventStored: {
		{"block_hashes", fieldHashes, false}, {"parent_block_hash", fieldParent, false}, {"token_ids", fieldTokens, false},
		{"block_size", fieldBlockSize, false}, {"lora_id", fieldLoRAID, false}, {"medium", fieldMedium, false},
		{"lora_name", fieldLoRAName, false}, {"extra_keys", fieldExtraKeys, true}, {"group_idx", fieldGroup, true},
		{"kv_cache_spec_kind", fieldSpecKind, true}, {"kv_cache_spec_sliding_window", fieldWindow, true},
		{"locality", fieldLocality, true}, {"cache_salt", fieldSalt, true},
	},
	kv.EventRemoved: {
		{"block_hashes", fieldHashes, false}, {"medium", fieldMedium, false}, {"group_idx", fieldGroup, true},
		{"locality", fieldLocality, true},
	},
	kv.EventCleared: {},
}

var tags = [...]string{kv.EventStored: "BlockStored", kv.EventRemoved: "BlockRemoved", kv.EventCleared: "AllBlocksCleared"}

func (e *encoder) mapEvent(v *Event) {
	n := uint32(1)
	for _, f := range mapFields[v.Kind] {
		if e.sends(f, v) {
			n++
		}
	}
	e.dst = msgp.AppendMapHeader(e.dst, n)
	e.string("type")
	e.string(tags[v.Kind])
	for _, f := range mapFields[v.Kind] {
		if e.sends(f, v) {
			e.string(f.name)
			e.value(f.field, v)
		}
	}
}

// sends tells whether the layout's maps have f for v.
func (e *encoder) sends(f mapField, v *Event) bool {
	switch f.field {
	case fieldLoRAName:
		return !e.sglang
	case fieldExtraKeys:
		return !e.sglang && v.hasExtraKeys()
	case fieldGroup:
		return !e.sglang && v.Group >= 0
	case fieldSpecKind:
		return !e.sglang && v.SpecKind != ""
	case fieldWindow:
		return !e.sglang && v.SlidingWindow > 0
	case fieldLocality:
		return e.locality && v.Remote
	case fieldSalt:
		return e.salt && v.Salt != ""
	}
	return true
}

func (e *encoder) value(f field, v *Event) {
	switch f {
	case fieldHashes:
		e.dst = msgp.AppendArrayHeader(e.dst, uint32(len(v.Hashes)))
		for _, h := range v.Hashes {
			e.hash(h)
		}
	case fieldParent:
		if v.HasParent {
			e.hash(v.Parent)
		} else {
			e.dst = msgp.AppendNil(e.dst)
		}
	case fieldTokens:
		e.tokens(v)
	case fieldBlockSize:
		e.natural(v.BlockSize, true)
	case fieldLoRAID:
		if v.HasLoRAID {
			e.integer(v.LoRAID)
		} else {
			e.dst = msgp.AppendNil(e.dst)
		}
	case fieldMedium:
		e.optional(v.Medium)
	case fieldLoRAName:
		e.optional(v.LoRAName)
	case fieldExtraKeys:
		e.extraKeys(v)
	case fieldGroup:
		e.natural(v.Group, v.Group >= 0)
	case fieldSpecKind:
		e.optional(v.SpecKind)
	case fieldWindow:
		e.natural(v.SlidingWindow, v.SlidingWindow > 0)
	case fieldLocality:
		e.string("REMOTE")
	case fieldSalt:
		e.string(v.Salt)
	}
}

func (v *Event) hasExtraKeys() bool {
	return v.LoRAName != "" || v.MM != nil || v.Salt != "" && !v.HasParent
}

// extraKeys appends what vLLM's blocks are hashed with besides tokens. A content hash
// becomes a digest of which it is the head, so that it is read back the same.
func (e *encoder) extraKeys(v *Event) {
	if !v.hasExtraKeys() {
		e.dst = msgp.AppendNil(e.dst)
		return
	}
	e.dst = msgp.AppendArrayHeader(e.dst, uint32(len(v.Hashes)))
	for i := range v.Hashes {
		var mm []uint64
		if i < len(v.MM) {
			mm = v.MM[i]
		}
		n := len(mm)
		salted := i == 0 && !v.HasParent && v.Salt != ""
		if v.LoRAName != "" {
			n++
		}
		if salted {
			n++
		}
		if n == 0 {
			e.dst = msgp.AppendNil(e.dst)
			continue
		}
		e.dst = msgp.AppendArrayHeader(e.dst, uint32(n))
		if v.LoRAName != "" {
			e.string(v.LoRAName)
		}
		for _, h := range mm {
			var digest [32]byte
			binary.BigEndian.PutUint64(digest[:], h)
			e.dst = msgp.AppendArrayHeader(e.dst, 2)
			e.string(hex.EncodeToString(digest[:]))
			e.natural(0, true)
		}
		if salted {
			e.string(v.Salt)
		}
	}
}

func (e *encoder) tokens(v *Event) {
	e.dst = msgp.AppendArrayHeader(e.dst, uint32(len(v.Tokens)))
	for i, t := range v.Tokens {
		if !v.Bigram {
			e.dst = msgp.AppendUint64(e.dst, uint64(t))
			continue
		}
		next := v.Next
		if i+1 < len(v.Tokens) {
			next = v.Tokens[i+1]
		}
		e.dst = msgp.AppendArrayHeader(e.dst, 2)
		e.dst = msgp.AppendUint64(e.dst, uint64(t))
		e.dst = msgp.AppendUint64(e.dst, uint64(next))
	}
}

func (e *encoder) hash(h EngineHash) {
	switch n := e.opts.HashBytes; {
	case n > 0:
		digest := make([]byte, max(n, 8))
		binary.BigEndian.PutUint64(digest[len(digest)-8:], uint64(h))
		e.dst = msgp.AppendBytes(e.dst, digest)
	case e.sglang || e.opts.Signed:
		e.integer(int64(h))
	default:
		e.dst = msgp.AppendUint64(e.dst, uint64(h))
	}
}

// integer appends i in the shortest form, as Python's encoders do: msgp would take the
// signed forms for positive numbers too.
func (e *encoder) integer(i int64) {
	if i >= 0 {
		e.dst = msgp.AppendUint64(e.dst, uint64(i))
	} else {
		e.dst = msgp.AppendInt64(e.dst, i)
	}
}

// natural appends n, or nil where it is not there.
func (e *encoder) natural(n int, there bool) {
	if there {
		e.integer(int64(n))
	} else {
		e.dst = msgp.AppendNil(e.dst)
	}
}

func (e *encoder) string(s string) { e.dst = msgp.AppendString(e.dst, s) }

// optional appends s, or nil where it is empty.
func (e *encoder) optional(s string) {
	if s == "" {
		e.dst = msgp.AppendNil(e.dst)
	} else {
		e.string(s)
	}
}
