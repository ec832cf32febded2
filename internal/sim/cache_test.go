package sim

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/warmroute/warmroute/internal/kvwire"
	"github.com/warmroute/warmroute/router/kv"
)

// TestCache_CopiesOfOneHash: copies leave in any order, and the prefix is found as long
// as one is left.
func TestCache_CopiesOfOneHash(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}, {2, 0, 1}, {1, 2, 0}} {
		var removed []kvwire.EngineHash
		c := newCache(3, false, func(h []kvwire.EngineHash) { removed = append(removed, h...) })
		for range 3 {
			c.store(c.take(), 7, 70, 0, true, 1)
		}
		for i, b := range order {
			c.release(int32(b))
			if i < 2 && c.lookup(7) == none {
				t.Fatalf("%v: the prefix is lost with a copy left", order)
			}
		}
		for i := range order {
			if got := c.take(); got != int32(order[i]) {
				t.Errorf("%v: block %d is evicted as number %d", order, got, i)
			}
			if found := c.lookup(7) != none; found != (i < 2) {
				t.Errorf("%v: found %v after %d evictions", order, found, i+1)
			}
		}
		if !slices.Equal(removed, []kvwire.EngineHash{7, 7, 7}) || c.hashed != 0 {
			t.Errorf("%v: removed %v, %d hashed", order, removed, c.hashed)
		}
	}
}

// TestCache_SGLangEvictsALeafWithItsRun: what one insertion stored goes as one, up to
// where something else continues it.
func TestCache_SGLangEvictsALeafWithItsRun(t *testing.T) {
	var removed [][]kvwire.EngineHash
	c := newCache(6, true, func(h []kvwire.EngineHash) { removed = append(removed, slices.Clone(h)) })
	store := func(h, parent uint64, run uint32) int32 {
		b := c.take()
		c.store(b, kvwire.EngineHash(h), kv.SequenceHash(h), kv.SequenceHash(parent), parent == 0, run)
		return b
	}
	// Run 1 is 1-2-3-4; run 2 continues block 2 with 5.
	one := []int32{store(1, 0, 1), store(2, 1, 1), store(3, 2, 1), store(4, 3, 1)}
	two := store(5, 2, 2)
	c.hold(one[0])
	c.hold(one[1])
	for i := range one {
		c.release(one[3-i])
	}
	c.release(two)
	c.release(one[1])
	c.release(one[0])
	for range 6 {
		c.take()
	}
	want := [][]kvwire.EngineHash{{4, 3}, {5}, {2, 1}}
	if !slices.EqualFunc(removed, want, slices.Equal) {
		t.Errorf("evicted %v, want %v", removed, want)
	}
}

func TestTruth_OverlapStopsAtTheFirstHole(t *testing.T) {
	truth := Truth{1: {}, 2: {}, 4: {}}
	if got := truth.Overlap([]kv.SequenceHash{1, 2, 3, 4}); got != 2 {
		t.Errorf("overlap %d, want 2", got)
	}
	if got := truth.Overlap([]kv.SequenceHash{1, 2}); got != 2 {
		t.Errorf("overlap %d, want 2", got)
	}
}

func TestReorder_KeepsRemovalsInTheirPlace(t *testing.T) {
	stored := func(h ...kvwire.EngineHash) kvwire.Event {
		return kvwire.Event{Kind: kv.EventStored, Hashes: h, Tokens: make([]uint32, len(h)), BlockSize: 1}
	}
	got := reorder([]kvwire.Event{stored(1, 2), {Kind: kv.EventRemoved, Hashes: []kvwire.EngineHash{1}}, stored(3), stored(4)})
	var order []kvwire.EngineHash
	for _, e := range got {
		order = append(order, e.Hashes...)
	}
	if !slices.Equal(order, []kvwire.EngineHash{2, 1, 1, 4, 3}) || got[2].Kind != kv.EventRemoved {
		t.Errorf("order %v", order)
	}
}

// TestNewServer_GivesBackItsPorts: a worker that cannot bind all it needs holds nothing.
func TestNewServer_GivesBackItsPorts(t *testing.T) {
	for range 20 {
		first, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		endpoint := "tcp://" + first.Addr().String()
		second, _ := rankEndpoint(endpoint, 1)
		busy, err := net.Listen("tcp", strings.TrimPrefix(second, "tcp://"))
		_ = first.Close()
		if err != nil {
			continue // another process has that port; take another pair
		}
		defer busy.Close()
		if _, err := NewServer(Config{DPRanks: 2, Events: endpoint}); err == nil || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("rank 1's port is in use: %v", err)
		}
		again, err := net.Listen("tcp", strings.TrimPrefix(endpoint, "tcp://"))
		if err != nil {
			t.Fatalf("rank 0's port is still held: %v", err)
		}
		_ = again.Close()
		return
	}
	t.Fatal("no pair of ports is free")
}
