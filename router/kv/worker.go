package kv

import (
	"fmt"
	"strconv"
	"sync"
)

// WorkerRank names one KV cache: a worker and the data-parallel rank in it.
type WorkerRank struct {
	ID   string `json:"worker"` // configured name of the worker, else its normalised base URL
	Rank int    `json:"rank"`   // data-parallel rank, 0 where the worker has one
}

// String returns "id" for rank 0 and "id/rank" otherwise.
func (r WorkerRank) String() string {
	if r.Rank == 0 {
		return r.ID
	}
	return r.ID + "/" + strconv.Itoa(r.Rank)
}

// Worker is the dense number of a WorkerRank while someone holds it. Numbers start
// at 0 and are used again after release, so slices may be indexed by them.
type Worker uint32

// Workers numbers worker ranks. The router and the event feed share one, so that
// both speak of the same Worker. The zero value is ready.
type Workers struct {
	mu struct {
		sync.RWMutex
		byRank map[WorkerRank]Worker
		slots  []workerSlot
		free   []Worker
	}
}

type workerSlot struct {
	rank WorkerRank
	refs int
}

// Hold returns the number of r and counts one holder. Every Hold is given back by
// one Release.
func (t *Workers) Hold(r WorkerRank) Worker {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w, ok := t.mu.byRank[r]; ok {
		t.mu.slots[w].refs++
		return w
	}
	if t.mu.byRank == nil {
		t.mu.byRank = make(map[WorkerRank]Worker)
	}
	var w Worker
	if n := len(t.mu.free); n > 0 {
		w, t.mu.free = t.mu.free[n-1], t.mu.free[:n-1]
		t.mu.slots[w] = workerSlot{rank: r, refs: 1}
	} else {
		w = Worker(len(t.mu.slots))
		t.mu.slots = append(t.mu.slots, workerSlot{rank: r, refs: 1})
	}
	t.mu.byRank[r] = w
	return w
}

// Release gives back one Hold. The number may name another rank once the last
// holder has released it.
func (t *Workers) Release(w Worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(w) >= len(t.mu.slots) || t.mu.slots[w].refs == 0 {
		panic(fmt.Sprintf("BUG: release of worker %d that nobody holds", w))
	}
	s := &t.mu.slots[w]
	if s.refs--; s.refs == 0 {
		delete(t.mu.byRank, s.rank)
		*s = workerSlot{}
		t.mu.free = append(t.mu.free, w)
	}
}

// Lookup returns the number of r while someone holds it.
func (t *Workers) Lookup(r WorkerRank) (Worker, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	w, ok := t.mu.byRank[r]
	return w, ok
}

// Rank returns the worker rank that w numbers; the zero WorkerRank when nobody
// holds it.
func (t *Workers) Rank(w Worker) WorkerRank {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if int(w) >= len(t.mu.slots) {
		return WorkerRank{}
	}
	return t.mu.slots[w].rank
}

// Len returns one more than the largest number in use so far: the length a slice
// indexed by Worker needs.
func (t *Workers) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.mu.slots)
}
