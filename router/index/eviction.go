package index

import "github.com/warmroute/warmroute/router/kv"

// expirePerLearn bounds the expired entries that one Learn takes out. It is more than
// a Learn adds on average, so none pile up.
const expirePerLearn = 64

// evict takes out the oldest entries: expired ones, and as many as the bytes cap asks
// for.
func (a *Approximate) evict(now uint32) {
	for range expirePerLearn {
		if a.old == nil || int64(now)-int64(a.old.learned) < a.ttl {
			break
		}
		a.remove(a.old)
		a.expired++
	}
	for a.bytes > a.maxBytes && a.old != nil {
		a.remove(a.old)
		a.evicted++
	}
}

// Drop forgets that w holds anything: at once for look-ups, and then, in slices, in
// memory.
func (a *Approximate) Drop(w kv.Worker) {
	const slice = 1024 // entries per hold of the lock
	a.dropping.Lock()
	defer a.dropping.Unlock()
	a.mu.Lock()
	if int(w) >= len(a.generations) {
		a.mu.Unlock()
		return
	}
	a.generations[w]++
	a.sweep = a.old
	a.mu.Unlock()
	for more := true; more; {
		now := a.second()
		a.mu.Lock()
		for range slice {
			e := a.sweep
			if e == nil {
				break
			}
			a.sweep = e.younger
			a.forget(e, w, now)
		}
		more = a.sweep != nil
		a.mu.Unlock()
	}
}

// forget takes w's holder out of an entry, and the entry where it was the last one.
// Entries are swept from old to young, so deepest first.
func (a *Approximate) forget(e *entry, w kv.Worker, now uint32) {
	kept := e.more[:0]
	for _, h := range e.more {
		if a.counts(h, now) {
			kept = append(kept, h)
		}
	}
	e.more = kept
	if !a.counts(e.first, now) {
		if len(kept) == 0 {
			a.remove(e)
			return
		}
		e.first, e.more = kept[len(kept)-1], kept[:len(kept)-1]
	}
}

// toYoung puts an entry at the young end of the queue.
func (a *Approximate) toYoung(e *entry) {
	if a.young == e {
		return
	}
	a.unlink(e)
	e.older, e.younger = a.young, nil
	if a.young != nil {
		a.young.younger = e
	} else {
		a.old = e
	}
	a.young = e
}

// unlink takes an entry out of the queue, if it is in it.
func (a *Approximate) unlink(e *entry) {
	if a.sweep == e {
		a.sweep = e.younger
	}
	if e.older != nil {
		e.older.younger = e.younger
	} else if a.old == e {
		a.old = e.younger
	}
	if e.younger != nil {
		e.younger.older = e.older
	} else if a.young == e {
		a.young = e.older
	}
	e.older, e.younger = nil, nil
}

// remove takes an entry out of the tree and the queue.
func (a *Approximate) remove(e *entry) {
	a.tree.Delete(e.key)
	a.unlink(e)
	a.entries--
	a.bytes -= entryBytes + int64(cap(e.more))*holderBytes
	if e.backing.keys--; e.backing.keys == 0 {
		a.bytes -= int64(e.backing.bytes)
	}
}

func (a *Approximate) stats(st *Stats) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	st.ApproximateEntries, st.ApproximateBytes = a.entries, a.bytes
	st.ApproximateEvicted, st.ApproximateExpired = a.evicted, a.expired
}
