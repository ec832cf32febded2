package proxy

import (
	"sync"
	"time"
)

// What retries may add to the load of the workers: retryShare of the requests within
// retryWindow seconds, and retryFloor a second whatever the load, so that the requests
// which one dying worker held find another.
const (
	retryShare  = 0.2
	retryFloor  = 10
	retryWindow = 10
)

// budget bounds the retries that cost a worker something. Without it every request that
// fails on a dying pool is sent to it again, retries times, when it can bear that least.
type budget struct {
	mu      sync.Mutex
	seconds [retryWindow]struct {
		at                int64 // unix time
		requests, retries int
	}
}

// request counts a request of a client.
func (b *budget) request(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.second(now)
	b.seconds[now.Unix()%retryWindow].requests++
}

// withdraw takes one retry, or tells that none is left.
func (b *budget) withdraw(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.second(now)
	requests, retries := 0, 0
	for _, s := range b.seconds {
		if s.at > now.Unix()-retryWindow {
			requests, retries = requests+s.requests, retries+s.retries
		}
	}
	if float64(retries) >= retryShare*float64(requests)+retryFloor*retryWindow {
		return false
	}
	b.seconds[now.Unix()%retryWindow].retries++
	return true
}

// second makes the slot of now its own; mu is held.
func (b *budget) second(now time.Time) {
	if s := &b.seconds[now.Unix()%retryWindow]; s.at != now.Unix() {
		s.at, s.requests, s.retries = now.Unix(), 0, 0
	}
}

// withdraw takes one retry from the budget and counts what it refuses.
func (s *Server) withdraw() bool {
	ok := s.budget.withdraw(time.Now())
	if !ok {
		s.metrics.noBudget.Inc()
	}
	return ok
}
