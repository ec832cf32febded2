package kvwire

import (
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tinylib/msgp/msgp"
	"github.com/warmroute/warmroute/router/kv"
)

const (
	hash1  EngineHash = 3236607068019569386
	hash2  EngineHash = 2758186210834249151
	sgl1   EngineHash = 8635429971592222890
	sgl2   EngineHash = 1256577331724852459
	signed EngineHash = 0xf945989605c9f45f
	image  uint64     = 0x0123456789abcdef
)

var (
	tokens1  = tokenRange(1, 16)
	tokens2  = tokenRange(17, 16)
	tokens12 = tokenRange(1, 32)

	equalBatch = cmp.Options{cmpopts.IgnoreUnexported(Batch{}), cmpopts.EquateEmpty()}
)

func tokenRange(from, n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = uint32(from + i)
	}
	return t
}

// golden is one recorded payload and what it says.
type golden struct {
	name string // layout[+variant], the file in testdata/wire
	want Batch
	opts EncodeOptions
	// lossy marks payloads that say things which our encoder words otherwise.
	lossy bool
}

func (g golden) layout(t testing.TB) Layout {
	name, _, _ := strings.Cut(g.name, "+")
	l, err := ParseLayout(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (g golden) payload(t testing.TB) []byte {
	raw, err := os.ReadFile(filepath.Join("testdata", "wire", g.name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func goldens() []golden {
	stored := func(edit ...func(*Event)) Event {
		e := Event{Kind: kv.EventStored, Hashes: []EngineHash{hash1}, Tokens: tokens1, BlockSize: 16}
		for _, f := range edit {
			f(&e)
		}
		return e
	}
	removed := func(h EngineHash, edit ...func(*Event)) Event {
		e := Event{Kind: kv.EventRemoved, Hashes: []EngineHash{h}}
		for _, f := range edit {
			f(&e)
		}
		return e
	}
	gpu := func(e *Event) { e.Medium = "GPU" }
	nogroup := func(e *Event) { e.Group = 0 }
	full := func(e *Event) { e.SpecKind = "full_attention" }
	hash := func(h EngineHash) func(*Event) { return func(e *Event) { e.Hashes = []EngineHash{h} } }
	child := func(h, parent EngineHash, medium string) func(*Event) {
		return func(e *Event) {
			e.Hashes, e.HasParent, e.Parent, e.Tokens, e.Medium = []EngineHash{h}, true, parent, tokens2, medium
		}
	}
	cleared := Event{Kind: kv.EventCleared}
	batch := func(rank int, events ...Event) Batch { return Batch{Time: 1700000000.5, Rank: rank, Events: events} }

	return []golden{
		{name: "vllm-0.9.0", want: batch(-1, stored(), removed(hash1), cleared)},
		{name: "vllm-0.9.1", want: batch(0, stored())},
		{name: "vllm-0.10.2", want: batch(0, stored(gpu))},
		{name: "vllm-0.10.2+bytes", want: batch(0, stored(gpu), removed(hash1, gpu), cleared), opts: EncodeOptions{HashBytes: 32}, lossy: true},
		{name: "vllm-0.14", want: batch(0, stored(gpu), removed(hash1, gpu), cleared)},
		{name: "vllm-0.14+lora", want: batch(-1, stored(gpu, func(e *Event) { e.LoRAID, e.HasLoRAID, e.LoRAName = 3, true, "my-lora" }))},
		{name: "vllm-0.19.1", want: batch(0, stored(gpu), removed(hash1, gpu), cleared)},
		{name: "vllm-0.19.1+salt", want: batch(0, stored(gpu, func(e *Event) {
			e.Hashes, e.Tokens, e.Salt = []EngineHash{hash1, hash2}, tokens12, "salt-A"
		}))},
		{name: "vllm-0.23-group", want: batch(2, stored(gpu, func(e *Event) { e.Group = 1 }), removed(hash1, gpu, func(e *Event) { e.Group = 1 }), cleared)},
		{name: "vllm-0.23", want: batch(0, stored(gpu, full), removed(hash1, gpu), cleared)},
		{name: "vllm-0.24", want: batch(0, stored(gpu, full), removed(hash1, gpu), cleared)},
		{name: "vllm-0.24+keys", want: batch(0, stored(gpu, full, func(e *Event) {
			e.Hashes, e.Tokens = []EngineHash{hash1, hash2}, tokens12
			e.LoRAName, e.Salt, e.MM = "my-lora", "salt-A", [][]uint64{{image}, {image}}
		})), lossy: true},
		{name: "vllm-0.24+tiers", want: batch(0, stored(gpu, full),
			stored(func(e *Event) { e.Medium, e.Tier, e.Tokens, e.BlockSize = "CPU", kv.TierCPU, nil, 0 }),
			removed(hash1, gpu), removed(hash1, func(e *Event) { e.Medium, e.Tier = "CPU", kv.TierCPU })), lossy: true},
		{name: "vllm-0.26", want: batch(0, stored(func(e *Event) {
			e.Medium, e.Tier, e.Remote, e.Group = "STORAGE", kv.TierDisk, true, 1
			e.SpecKind, e.SlidingWindow = "sliding_window", 1024
		}), removed(hash1, func(e *Event) { e.Medium, e.Tier, e.Remote, e.Group = "STORAGE", kv.TierDisk, true, 1 }), cleared)},
		{name: "sglang-2025", want: batch(0, stored(hash(signed)), removed(signed), cleared)},
		{name: "sglang", want: batch(0, stored(hash(signed), gpu), removed(signed, gpu))},
		{name: "sglang+bigram", want: batch(0, stored(hash(sgl1), gpu, func(e *Event) { e.Bigram, e.Next = true, 17 }))},
		{name: "sglang-salt", want: batch(0, stored(hash(sgl1), gpu), stored(child(sgl2, sgl1, "GPU"), func(e *Event) { e.Salt = "tenant-a" }))},
		{name: "sglang-map", want: batch(0, stored(hash(signed), gpu, func(e *Event) { e.Salt = "tenant-a" }),
			stored(child(sgl2, sgl1, "CPU_PINNED"), func(e *Event) { e.Tier = kv.TierCPU }), removed(signed, gpu, nogroup), cleared)},
	}
}

func decode(t *testing.T, payload []byte) *Batch {
	t.Helper()
	var d Decoder
	var b Batch
	if err := d.Decode(payload, &b); err != nil {
		t.Fatalf("%v\n%x", err, payload)
	}
	return &b
}

func TestDecode_GoldenPayloads(t *testing.T) {
	for _, g := range goldens() {
		if diff := cmp.Diff(&g.want, decode(t, g.payload(t)), equalBatch); diff != "" {
			t.Errorf("%s: -want +got\n%s", g.name, diff)
		}
	}
}

// TestDecode_MemoryIsUsedAgain decodes every golden into one Batch, so that nothing of
// an earlier payload may show.
func TestDecode_MemoryIsUsedAgain(t *testing.T) {
	var d Decoder
	var b Batch
	for range 2 {
		for _, g := range goldens() {
			if err := d.Decode(g.payload(t), &b); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&g.want, &b, equalBatch); diff != "" {
				t.Errorf("%s: -want +got\n%s", g.name, diff)
			}
		}
	}
}

// TestDecode_TruncationIsAnError cuts every golden at every byte.
func TestDecode_TruncationIsAnError(t *testing.T) {
	var d Decoder
	var b Batch
	for _, g := range goldens() {
		p := g.payload(t)
		for n := range p {
			err := d.Decode(p[:n], &b)
			if err == nil || !strings.Contains(err.Error(), "cut short") {
				t.Fatalf("%s: %d of %d bytes: error %v", g.name, n, len(p), err)
			}
		}
	}
}

func TestDecode_AllocatesNothing(t *testing.T) {
	var d Decoder
	var b Batch
	for _, g := range goldens() {
		p := g.payload(t)
		if n := testing.AllocsPerRun(20, func() {
			if err := d.Decode(p, &b); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", g.name, n)
		}
	}
}

// value appends a Go value as msgpack, for payloads that no encoder of ours makes.
func value(dst []byte, v any) []byte {
	switch v := v.(type) {
	case []any:
		dst = msgp.AppendArrayHeader(dst, uint32(len(v)))
		for _, x := range v {
			dst = value(dst, x)
		}
		return dst
	case object:
		dst = msgp.AppendMapHeader(dst, uint32(len(v)/2))
		for _, x := range v {
			dst = value(dst, x)
		}
		return dst
	}
	dst, err := msgp.AppendIntf(dst, v)
	if err != nil {
		panic(err)
	}
	return dst
}

type (
	list   = []any
	object []any // keys and values in turn
)

func batchOf(events ...any) []byte { return value(nil, list{1.0, events, 0}) }

func TestDecode_UnknownIsSkippedAndCounted(t *testing.T) {
	ok := list{"BlockStored", list{1}, nil, list{5, 6}, 2, nil}
	f := func(name string, payload []byte, unknown, events int) {
		t.Helper()
		b := decode(t, payload)
		if b.Unknown != unknown || len(b.Events) != events || b.Malformed != 0 {
			t.Errorf("%s: %d unknown, %d events, %d malformed; want %d, %d, 0", name, b.Unknown, len(b.Events), b.Malformed, unknown, events)
		}
		for i := range b.Events {
			if len(b.Events[i].Hashes) != 1 || b.Events[i].Hashes[0] != 1 {
				t.Errorf("%s: event %d is damaged: %+v", name, i, b.Events[i])
			}
		}
	}
	f("unknown array tag", batchOf(ok, list{"BlockTransferred", list{1}, object{"a", 1}}, ok), 1, 2)
	f("unknown map tag", batchOf(object{"type", "BlockSnapshot", "block_hashes", "x"}, ok), 1, 1)
	f("map without a tag", batchOf(object{"block_hashes", list{1}}, ok), 1, 1)
	f("tag is a number", batchOf(list{7, list{1}}, ok), 1, 1)
	f("no event at all", batchOf(nil, 3, "x", list{}, ok), 4, 1)
	f("longer arrays", batchOf(list{"BlockStored", list{1}, nil, list{5, 6}, 2, nil, "GPU", nil, nil, 0, nil, nil, 99, object{}}), 2, 1)
	f("removed with copy counts", batchOf(list{"BlockRemoved", list{1}, "GPU", 0, list{2}}), 1, 1)
	f("unknown map field", batchOf(object{"type", "BlockRemoved", "remaining_copy_counts", list{2}, "block_hashes", list{1}}), 1, 1)
	f("tag last", batchOf(object{"block_hashes", list{1}, "type", "BlockRemoved"}), 0, 1)
	f("known and unused", batchOf(object{"type", "BlockRemoved", "block_hashes", list{1}, "session_id", "s", "ownership", "o"}), 0, 1)
	f("unknown medium", batchOf(list{"BlockRemoved", list{1}, "TAPE"}), 1, 1)
	f("longer batch", value(nil, list{1.0, list{ok}, 0, "trace"}), 1, 1)
	f("bytes behind the batch", append(batchOf(ok), 0x01), 1, 1)
	f("events are nil", value(nil, list{1.0, nil, nil}), 0, 0)
	f("rank is a name", value(nil, list{1.0, list{ok}, "zero"}), 1, 1)
	f("map envelope", value(nil, object{"ts", 1, "attn_dp_rank", 3, "events", list{ok}, "new", true}), 1, 1)
}

// TestFC59_MalformedEventsAreDropped: one event that cannot be meant costs itself only.
func TestFC59_MalformedEventsAreDropped(t *testing.T) {
	ok := list{"BlockRemoved", list{9}}
	f := func(name string, event any) {
		t.Helper()
		b := decode(t, batchOf(ok, event, ok))
		if b.Malformed != 1 || len(b.Events) != 2 || b.Events[1].Hashes[0] != 9 {
			t.Errorf("%s: %d malformed, events %+v", name, b.Malformed, b.Events)
		}
	}
	f("no hashes", list{"BlockStored"})
	f("hashes are a number", list{"BlockStored", 7, nil, list{1}, 1, nil})
	f("a hash is a float", list{"BlockStored", list{7.5}, nil, list{1}, 1, nil})
	f("a hash is nil", list{"BlockRemoved", list{nil}})
	f("an empty byte string", list{"BlockRemoved", list{[]byte{}}})
	f("a token is negative", list{"BlockStored", list{7}, nil, list{-1}, 1, nil})
	f("a token is a string", list{"BlockStored", list{7}, nil, list{"a"}, 1, nil})
	f("pairs and single tokens", list{"BlockStored", list{7}, nil, list{list{1, 2}, 3}, 2, nil})
	f("block size is negative", list{"BlockStored", list{7}, nil, list{1}, -1, nil})
	f("medium is a number", list{"BlockRemoved", list{7}, 3})
	f("extra keys are a string", object{"type", "BlockStored", "block_hashes", list{7}, "extra_keys", "x"})
	f("an extra key is a map", object{"type", "BlockStored", "block_hashes", list{7}, "extra_keys", list{list{object{}}}})

	// A store that repeats a hash, or is its own parent, is well-formed on the wire: what
	// it means is for the reader of events to refuse.
	b := decode(t, batchOf(list{"BlockStored", list{7, 8, 7}, 7, list{1, 2, 3}, 1, nil}, ok))
	if len(b.Events) != 2 || len(b.Events[0].Hashes) != 3 {
		t.Errorf("self loop: %+v", b.Events)
	}
}

// TestFC57_WidthOfTokensAndHashes: nothing is cut to fewer bits.
func TestFC57_WidthOfTokensAndHashes(t *testing.T) {
	const x = 5
	b := decode(t, batchOf(list{"BlockStored", list{x, x + 1<<32, uint64(math.MaxUint64), int64(-1), int64(math.MinInt64)}, nil,
		list{65, 321, 1 << 16, uint32(math.MaxUint32), 65}, 1, nil}))
	if diff := cmp.Diff([]EngineHash{x, x + 1<<32, math.MaxUint64, math.MaxUint64, 1 << 63}, b.Events[0].Hashes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]uint32{65, 321, 1 << 16, math.MaxUint32, 65}, b.Events[0].Tokens); diff != "" {
		t.Error(diff)
	}
	if b := decode(t, batchOf(list{"BlockStored", list{1}, nil, list{uint64(65 + 1<<32)}, 1, nil})); b.Malformed != 1 {
		t.Error("a token wider than 32 bits is taken for another token")
	}
	short := decode(t, batchOf(list{"BlockRemoved", list{[]byte{1, 2}, []byte("0123456789abcdef")}}))
	if diff := cmp.Diff([]EngineHash{0x0102, 0x3839616263646566}, short.Events[0].Hashes); diff != "" {
		t.Error(diff)
	}
}

// TestFC53_TiersAndPlaceholders: offloaded blocks carry no tokens; each name of a tier
// is understood in any case, and one that is not known is never the GPU.
func TestFC53_TiersAndPlaceholders(t *testing.T) {
	for medium, want := range map[string]kv.Tier{
		"GPU": kv.TierGPU, "gpu": kv.TierGPU, "CPU": kv.TierCPU, "cpu": kv.TierCPU, "CPU_PINNED": kv.TierCPU,
		"STORAGE": kv.TierDisk, "DISK": kv.TierDisk, "FS": kv.TierDisk, "OBJ": kv.TierDisk, "EXTERNAL": kv.TierDisk, "TAPE": kv.TierDisk,
		"device": kv.TierGPU, "CPU_TIER1": kv.TierCPU, "CPU_TIER2": kv.TierDisk, "nvme": kv.TierDisk, "SHARED": kv.TierDisk,
	} {
		b := decode(t, batchOf(list{"BlockStored", list{1}, nil, list{}, 0, nil, medium}, list{"BlockRemoved", list{1}, medium}))
		for _, e := range b.Events {
			if e.Tier != want || e.Medium != medium || len(e.Tokens) != 0 || e.BlockSize != 0 {
				t.Errorf("%s: %+v", medium, e)
			}
		}
	}
	for _, e := range decode(t, batchOf(list{"BlockRemoved", list{1}, nil}, list{"BlockRemoved", list{1}})).Events {
		if e.Tier != kv.TierGPU || e.Medium != "" {
			t.Errorf("no medium: %+v", e)
		}
	}
}

func TestDecode_ExtraKeys(t *testing.T) {
	digest := "00000000000000ff" + strings.Repeat("0", 48)
	f := func(name string, lora any, parent any, keys list, wantSalt string, wantMM [][]uint64) {
		t.Helper()
		e := decode(t, batchOf(object{"type", "BlockStored", "extra_keys", keys, "block_hashes", list{1, 2}, "parent_block_hash", parent,
			"token_ids", list{1, 2}, "block_size", 1, "lora_name", lora})).Events[0]
		if diff := cmp.Diff(wantMM, e.MM, cmpopts.EquateEmpty()); e.Salt != wantSalt || diff != "" {
			t.Errorf("%s: salt %q, want %q; content %s", name, e.Salt, wantSalt, diff)
		}
	}
	f("nothing", nil, nil, list{nil, nil}, "", nil)
	f("LoRA name only", "l", nil, list{list{"l"}, list{"l"}}, "", nil)
	f("salt", nil, nil, list{list{"s"}, nil}, "s", nil)
	f("salt that looks like a digest", nil, nil, list{list{digest}, nil}, digest, nil)
	f("LoRA and salt of one name", "x", nil, list{list{"x", "x"}, list{"x"}}, "x", nil)
	f("LoRA, images, salt", "l", nil, list{list{"l", list{digest, 3}, list{"b", 9}, "s"}, list{"l", list{"b", -2}}},
		"s", [][]uint64{{0xff, kv.MMHash("b")}, {kv.MMHash("b")}})
	f("bare strings of old releases", nil, 9, list{list{digest}, list{digest, "b"}}, "", [][]uint64{{0xff}, {0xff, kv.MMHash("b")}})
	f("embeddings", nil, 9, list{nil, list{[]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 7}}}, "", [][]uint64{nil, {7}})
	f("fewer entries than blocks", nil, 9, list{list{list{digest, 0}}}, "", [][]uint64{{0xff}, nil})
	f("more entries than blocks", nil, 9, list{nil, nil, list{"x"}}, "", nil)

	e := decode(t, batchOf(object{"type", "BlockStored", "block_hashes", list{1, 2}, "token_ids", list{1, 2}, "block_size", 1,
		"block_mm_infos", list{nil, object{"mm_objects", list{object{"mm_hash", 7, "offsets", list{list{0, 1}}}, object{"mm_hash", 3}}}}})).Events[0]
	if diff := cmp.Diff([][]uint64{nil, {3, 7}}, e.MM, cmpopts.EquateEmpty()); diff != "" {
		t.Error("block_mm_infos:", diff)
	}
}

func TestDecode_LimitsAreErrors(t *testing.T) {
	d := Decoder{MaxPayload: 200, MaxTokens: 10, MaxHashes: 3}
	var b Batch
	f := func(payload []byte, want string) {
		t.Helper()
		if err := d.Decode(payload, &b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	many := make(list, 11)
	for i := range many {
		many[i] = i
	}
	f(make([]byte, 201), "payload of 201 bytes, at most 200")
	f(batchOf(list{"BlockStored", list{1}, nil, many, 1, nil}), "11 tokens, at most 10")
	f(batchOf(list{"BlockRemoved", many}), "11 hashes, at most 3")
	f(nil, "cut short")
	f(value(nil, "hello"), "starts with a msgpack str")
	f(value(nil, list{1.0}), "1 elements")
	f(value(nil, list{1.0, "x"}), "want an array")
	f(value(nil, object{"ts", 1}), `no "events"`)
	f([]byte{0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff}, "cut short")
	f([]byte{0x92, 0x01, 0x91, 0x92, 0xac, 'B', 'l', 'o', 'c', 'k', 'R', 'e', 'm', 'o', 'v', 'e', 'd', 0xdd, 0, 0, 0, 3}, "cut short")
}

func TestDecode_InternedNamesAreBounded(t *testing.T) {
	var d Decoder
	var b Batch
	for i := range 3 * maxNames {
		p := value(nil, list{1.0, list{object{"type", "BlockStored", "block_hashes", list{1}, "cache_salt", strings.Repeat("s", i%7) + string(rune(i+256))}}})
		if err := d.Decode(p, &b); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.names) > maxNames {
		t.Errorf("%d names kept", len(d.names))
	}
	d.names = nil
	long := strings.Repeat("s", maxName+1)
	if s := d.intern([]byte(long)); s != long || len(d.names) != 0 {
		t.Errorf("a name of %d bytes is kept", len(long))
	}
}

// BenchmarkDecode measures a usual step: 16 blocks of 16 tokens and three small events.
// Budget: 2 µs.
func BenchmarkDecode(b *testing.B) {
	batch := Batch{Time: 1, Events: []Event{{Kind: kv.EventStored, Tokens: tokenRange(1000, 256), BlockSize: 16, Medium: "GPU"}}}
	for i := range 16 {
		batch.Events[0].Hashes = append(batch.Events[0].Hashes, EngineHash(i)*0x9e3779b97f4a7c15)
	}
	for range 3 {
		batch.Events = append(batch.Events, Event{Kind: kv.EventRemoved, Hashes: []EngineHash{1 << 60}, Medium: "GPU"})
	}
	for _, l := range []Layout{LayoutVLLM023, LayoutVLLM026} {
		b.Run("layout="+l.String(), func(b *testing.B) {
			p := Append(nil, l, &batch, EncodeOptions{})
			var d Decoder
			var out Batch
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Decode(p, &out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
