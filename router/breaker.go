package router

// Breaker is what the outcomes of real requests say of a worker, whatever its health checks
// say. The zero value is a closed breaker.
type Breaker struct {
	// Level is how bad it is to send requests there. Those of a model go to its workers
	// of the lowest level only: nobody is refused because all are bad.
	Level  int
	Trial  bool   // the next request may come as if Level were 0, once
	Reason string // why Level is not 0
}

// SetBreaker tells what is known of a worker from its answers. An unknown id is ignored.
func (r *Router) SetBreaker(id string, b Breaker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.mu.workers[id]; w != nil {
		w.breaker = b
		r.settleLocked(w)
	}
}

// level is the worker's level for a request. A warm-up tries nobody out.
func (b *Breaker) level(req *Request) int {
	if b.Trial && !req.Speculative {
		return 0
	}
	return b.Level
}

// levelLocked returns the lowest level among the workers that may be asked at all; a
// worker that is full or was tried counts, so that a retry does not go where it must fail.
// A warm-up goes to closed breakers only.
func (s *served) levelLocked(req *Request) int {
	if req.Speculative {
		return 0
	}
	lowest := -1
	for _, k := range s.ranks {
		w := k.worker
		if k.gone || !w.healthy || w.draining || !req.pinned(k) {
			continue
		}
		if l := w.breaker.level(req); lowest < 0 || l < lowest {
			lowest = l
		}
	}
	return max(lowest, 0)
}

// pinned tells whether the request may go to rank k as far as its pins say.
func (req *Request) pinned(k *rank) bool {
	return (req.PinWorker == "" || req.PinWorker == k.worker.spec.ID) && (req.PinRank < 0 || req.PinRank == k.name.Rank)
}
