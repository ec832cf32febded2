package router

import (
	"github.com/warmroute/warmroute/router/kv"
	"testing"
	"time"
)

// TestRoute_LeavesOutAWorkerThatWarms while another can take the request, and only then.
func TestRoute_LeavesOutAWorkerThatWarms(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(2, WorkerSpec{BlockSize: 64, MaxInflight: 1})
	w.router.SetWarming("w2", true)
	ask := Request{Prompt: prompt("a/10", 64, false), PinRank: -1}
	first := w.route(&ask)
	if first.Worker().ID != "w1" {
		t.Fatalf("the first request went to %v", first.Worker())
	}
	if l := w.route(&ask); l.Worker().ID != "w2" {
		t.Errorf("with w1 full the request went to %v", l.Worker())
	} else {
		l.Done(Outcome{OK: true})
	}
	warm := ask
	warm.Speculative, warm.PinWorker = true, "w2"
	if o, err := w.router.Outlook(&warm); err != nil || o.Worker.ID != "w2" {
		t.Errorf("a warm-up cannot go there: %v %v", o.Worker, err)
	}
	first.Done(Outcome{OK: true})
	w.router.SetHealth("w1", false, "gone")
	if l := w.route(&ask); l.Worker().ID != "w2" {
		t.Errorf("the only healthy worker was left out")
	} else {
		l.Done(Outcome{OK: true})
	}
	w.router.SetHealth("w1", true, "")
	w.router.SetWarming("w2", false)
	if s := w.router.Status(); s[1].Warming {
		t.Error("w2 is still warming")
	}
}

// TestWarming_LeavesHalfOfTheWorkers: where caches of most workers are being filled at once,
// the others would have to carry the load of all, so nobody is left out.
func TestWarming_LeavesHalfOfTheWorkers(t *testing.T) {
	w := newWorld(t, Config{})
	w.fleet(4, WorkerSpec{BlockSize: 64, CapacityTokens: 1_000_000, MaxNumSeqs: 8})
	spread := func(round int) int {
		at := map[string]bool{}
		var leases []*Lease
		for i := range 16 {
			l := w.route(&Request{Prompt: prompt("own"+string(rune('a'+16*round+i))+"/20", 64, false), PinRank: -1})
			at[l.Worker().ID] = true
			leases = append(leases, l)
		}
		for _, l := range leases {
			l.Done(Outcome{OK: true})
		}
		return len(at)
	}
	for i, want := range []int{3, 2, 4, 4} {
		w.router.SetWarming([]string{"w1", "w2", "w3", "w4"}[i], true)
		if n := spread(i); n != want {
			t.Errorf("with %d of 4 warming, requests went to %d, want %d", i+1, n, want)
		}
	}
}

// TestCopy_IsOfferedWhenItsRentIsPaid: requests that follow a head to a busy worker pay
// until a copy on an idle one is worth it; it is paid for once.
func TestCopy_IsOfferedWhenItsRentIsPaid(t *testing.T) {
	for _, copies := range []bool{false, true} {
		w := newWorld(t, Config{Copies: copies})
		w.fleet(4, WorkerSpec{BlockSize: 64, CapacityTokens: 1_000_000})
		w.stored(kv.WorkerRank{ID: "w1"}, "head/400", 64)
		var offer *Copy
		n := 0
		for ; n < 60 && offer == nil; n++ {
			l := w.route(&Request{Prompt: prompt("head/400+own"+string(rune('a'+n))+"/2", 64, false), FirstTurn: true, Stream: true, PinRank: -1})
			w.advance(100 * time.Millisecond)
			l.FirstToken()
			offer = l.Decision().Copy
		}
		if !copies {
			if offer != nil {
				t.Error("a copy is offered though nobody makes one")
			}
			continue
		}
		if offer == nil || offer.Tokens != 400*64 || offer.Worker.ID == "w1" || offer.Seconds < 3 {
			t.Fatalf("after %d requests the offer is %+v", n, offer)
		}
		w.router.Copied(offer)
		if e := w.router.mu.rents.of(offer.head, w.now); e.owed > offer.Seconds || e.paid > e.owed {
			t.Errorf("after the copy %.2f s are owed and %.2f s paid, price %.2f s", e.owed, e.paid, offer.Seconds)
		}
	}
}
