package kvwire

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/google/go-cmp/cmp"
)

// FuzzDecode: no payload breaks the decoder, and what it reads survives the way through
// the newest layouts of both engines.
func FuzzDecode(f *testing.F) {
	for _, g := range goldens() {
		f.Add(g.payload(f))
	}
	f.Add(batchOf(list{"BlockStored", list{7, 8, 7}, 7, list{1, 2, 3}, 1, nil}, object{"type", "x"}, nil))
	f.Add(value(nil, object{"ts", 1, "attn_dp_rank", 3, "events", list{object{"block_mm_infos", list{nil, object{"mm_objects", list{object{"mm_hash", 7}}}},
		"type", "BlockStored", "block_hashes", list{1, 2}, "extra_keys", list{list{"a", "b", list{"c", 1}, []byte("d"), 5, nil}}}}}))
	var d Decoder
	var b, again Batch
	f.Fuzz(func(t *testing.T, payload []byte) {
		if d.Decode(payload, &b) != nil {
			return
		}
		for i := range b.Events {
			e := &b.Events[i]
			if e.MM != nil && len(e.MM) != len(e.Hashes) {
				t.Fatalf("event %d has %d hashes and content of %d blocks", i, len(e.Hashes), len(e.MM))
			}
			// What the newest vLLM layout cannot say, or says in another place.
			if e.HasParent || len(e.Hashes) == 0 {
				e.Salt = ""
			}
			if e.Salt == e.LoRAName {
				e.Salt = ""
			}
			if e.Kind != 0 {
				*e = Event{Kind: e.Kind, Hashes: e.Hashes, Medium: e.Medium, Tier: e.Tier, Group: e.Group, Remote: e.Remote}
			}
			if e.Kind == 2 {
				*e = Event{Kind: e.Kind}
			}
		}
		b.Unknown, b.Malformed = 0, 0
		p := Append(nil, LayoutVLLM026, &b, EncodeOptions{})
		if err := d.Decode(p, &again); err != nil {
			t.Fatalf("%v\n%x", err, p)
		}
		again.Unknown = 0 // a medium that is not known counts each time
		if diff := cmp.Diff(&b, &again, equalBatch, cmp.Comparer(sameFloat)); diff != "" {
			t.Fatalf("-read +read again\n%s\n%x", diff, p)
		}
	})
}

func sameFloat(a, b float64) bool { return a == b || a != a && b != b }

// FuzzWire: no bytes of a peer break the process, and no message exceeds its limit.
func FuzzWire(f *testing.F) {
	pub := greetingOf("PUB")
	f.Add(append(pub[:len(pub):len(pub)], 1, 0, 1, 2, 7, 7, 0, 1, 9))
	f.Add(append(pub[:len(pub):len(pub)], 2, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3))
	f.Add(append(pub[:len(pub):len(pub)], 4, 5, 4, 'P', 'I', 'N', 'G', 0, 0))
	f.Add(append(pub[:64:64], 4, 9, 5, 'R', 'E', 'A', 'D', 'Y', 250, 1, 2))
	f.Add(greetingOf("NONSENSE"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		const limit = 1 << 10
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go io.Copy(io.Discard, theirs)
		go func() {
			theirs.Write(sent)
			theirs.Close()
		}()
		w, err := openWire(context.Background(), ours, zmq4.Sub, false, limit)
		if err != nil {
			return
		}
		defer w.close()
		for {
			frames, err := w.recv()
			if err != nil {
				return
			}
			n := 0
			for _, f := range frames {
				n += len(f)
			}
			if n > limit+8*frameOverhead {
				t.Fatalf("a message of %d bytes, limit %d", n, limit)
			}
		}
	})
}
