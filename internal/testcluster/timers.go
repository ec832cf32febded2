package testcluster

import "time"

type timerKind uint8

const (
	timerSend     timerKind = iota // a session sends its next turn
	timerStep                      // a worker's step ends
	timerFeed                      // a worker's KV events reach the proxies
	timerBookings                  // a proxy tells the others of changed bookings; worker is its number
	timerState                     // a proxy tells the others of all its bookings
	timerLetter                    // bookings reach the other proxies
	timerGiveUp                    // a request has waited in a router's queue for long enough
)

// timer is something that happens at a virtual time.
type timer struct {
	at      time.Duration
	order   uint64 // insertion, which decides between equal times
	kind    timerKind
	worker  int
	session *session
	request *request
}

func (t *timer) before(u *timer) bool {
	return t.at < u.at || t.at == u.at && t.order < u.order
}

// timers is a binary heap of timers, earliest first. It is its own because a run pops
// one for every engine step, millions of them, and container/heap boxes each.
type timers struct {
	heap  []timer
	order uint64
}

func (h *timers) push(t timer) {
	h.order++
	t.order = h.order
	h.heap = append(h.heap, t)
	i := len(h.heap) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !h.heap[i].before(&h.heap[parent]) {
			break
		}
		h.heap[i], h.heap[parent] = h.heap[parent], h.heap[i]
		i = parent
	}
}

func (h *timers) pop() (timer, bool) {
	if len(h.heap) == 0 {
		return timer{}, false
	}
	top, last := h.heap[0], len(h.heap)-1
	h.heap[0] = h.heap[last]
	h.heap[last] = timer{} // lets go of its session
	h.heap = h.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h.heap[child].before(&h.heap[least]) {
				least = child
			}
		}
		if least == i {
			return top, true
		}
		h.heap[i], h.heap[least] = h.heap[least], h.heap[i]
		i = least
	}
}
