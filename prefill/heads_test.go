package prefill

import (
	"testing"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// tokensOf is the beginning of so many tokens of a stream.
func tokensOf(stream uint64, n int) (out []uint32) {
	for i := range n {
		out = append(out, mix(stream, i))
	}
	return out
}

// asked is a first turn: a shared start and its own end of 300 tokens.
func asked(head []uint32, own uint64, ns kv.Namespace) *kv.Prompt {
	t := append(head[:len(head):len(head)], tokensOf(own, 300)...)
	return &kv.Prompt{Source: kv.SourceLocal, Namespace: ns, Tokens: t, TokenCount: len(t)}
}

func newHeads(limit int64) (h *heads, held *int64) {
	h, held = &heads{}, new(int64)
	h.init(limit, func(n int64) bool { *held += n; return true }, func(n int64) { *held -= n })
	return h, held
}

// TestHeads_AreWhatConversationsShare: three first turns prove a head, which ends where
// they part; the more frequent one comes first, and adapters and salts have their own.
func TestHeads_AreWhatConversationsShare(t *testing.T) {
	now := time.Now()
	h, held := newHeads(1 << 30)
	system, tools := tokensOf(1, 6400), tokensOf(2, 1280)
	own := uint64(100)
	turn := func(head []uint32, ns kv.Namespace, n int) {
		for range n {
			own++
			h.learn("m", asked(head, own, ns), now)
		}
	}
	turn(system, kv.Namespace{}, 2)
	if list := h.hottest(now); len(list) != 0 {
		t.Fatalf("two first turns proved %d heads", len(list))
	}
	turn(system, kv.Namespace{}, 2)
	turn(tools, kv.Namespace{}, 6)
	turn(tools, kv.Namespace{Salt: "b"}, 2)
	turn(tools, kv.Namespace{Salt: "c"}, 3)
	for range 5 {
		h.learn("m", asked(nil, 7, kv.Namespace{}), now) // one request again and again
	}
	list := h.hottest(now)
	if len(list) != 3 || len(list[0].tokens) != 1280 || len(list[1].tokens) != 6400 || list[2].ns.Salt != "c" {
		t.Fatalf("heads: %v", describe(list))
	}
	if got := list[0].weight(now.Add(headMemory)); got > 2.3 || got < 2.1 {
		t.Errorf("after %v a count of 6 is %.2f", headMemory, got)
	}
	if len(h.hottest(now.Add(time.Hour))) != 0 {
		t.Error("what nobody has asked for in an hour is hot")
	}
	h.clear()
	if *held != 0 || h.bytes != 0 {
		t.Errorf("%d bytes are still held", *held)
	}
}

func describe(list []*head) (out []any) {
	for _, v := range list {
		out = append(out, len(v.tokens), v.turns, v.ns)
	}
	return out
}

// TestHeads_AreBounded by bytes and by number: a head that is asked for again stays, those
// that were shared twice give way.
func TestHeads_AreBounded(t *testing.T) {
	now := time.Now()
	h, held := newHeads(40 * 4 * 640)
	hot := tokensOf(1, 640)
	for i := range 3 * maxHeads {
		h.learn("m", asked(hot, uint64(10_000+i), kv.Namespace{}), now)
		cold := tokensOf(uint64(2+i), 640)
		h.learn("m", asked(cold, uint64(20_000+i), kv.Namespace{}), now)
		h.learn("m", asked(cold, uint64(30_000+i), kv.Namespace{}), now)
		now = now.Add(time.Second)
	}
	if h.bytes > h.limit || *held != h.bytes || len(h.byKey) > maxHeads {
		t.Errorf("%d heads of %d bytes, limit %d, %d held", len(h.byKey), h.bytes, h.limit, *held)
	}
	if list := h.hottest(now); len(list) == 0 || list[0].tokens[0] != hot[0] {
		t.Errorf("the hot head is gone: %v", describe(list))
	}
	for i := range 2 * seenHashes / 5 {
		h.learn("m", asked(nil, uint64(1<<20+i), kv.Namespace{}), now)
	}
	if n := len(h.seen) + len(h.old); n > 2*seenHashes+8 {
		t.Errorf("%d hashes are remembered", n)
	}
}
