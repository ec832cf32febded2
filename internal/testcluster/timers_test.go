package testcluster

import (
	"testing"
	"time"
)

func TestTimers_PopInOrderOfTimeThenInsertion(t *testing.T) {
	var h timers
	r := rng(1, 1)
	for i := range 2000 {
		h.push(timer{at: time.Duration(r.IntN(50)), worker: i})
		if i%3 == 0 {
			h.pop()
		}
	}
	last, ok := h.pop()
	for n := 1; ; n++ {
		next, more := h.pop()
		if !more {
			if !ok || n < 1000 {
				t.Fatalf("%d timers popped", n)
			}
			return
		}
		if next.before(&last) {
			t.Fatalf("%v/%d popped after %v/%d", next.at, next.order, last.at, last.order)
		}
		last = next
	}
}
