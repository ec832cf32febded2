package router

import (
	"slices"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	maxChanges      = 4096     // own bookings that wait to be told; a full state tells the rest
	maxPeers        = 64       // proxies whose bookings are kept
	maxPeerBookings = 16 << 10 // of one proxy
	maxPeersTotal   = 64 << 10 // of all proxies
	maxPeerWaiting  = 1024     // of all proxies, before their first token on one rank
	bookingSlice    = 128      // bookings that are told or taken under one hold of the lock
)

// exchange is what the router tells other proxies and what they have told it. A booking
// of a peer is a Lease that nobody owns: it stands in the same queues and counts as an
// own one does, but for the limit of requests in flight.
type exchange struct {
	own     []*Lease // in flight, without warm-ups
	changes []*Lease // that changed since they were told
	nextID  uint64
	dropped uint64 // changes, over the bound

	stamp uint64                       // of the last full state of any peer
	peers map[string]map[uint64]*Lease // by proxy and its lease id
	total int
	freed bool    // KV room, since waiting requests were looked at
	scale float64 // what own load stands for while peers cannot be heard; 0: itself
}

// told is the part of a Lease that the exchange needs.
type told struct {
	id    uint64 // of an own lease; 0: not told of
	at    int32  // place in exchange.own
	waits bool   // it is in exchange.changes
	once  bool   // peers have heard of it
	peer  *heard // set for a peer's
}

// heard is what a peer has told of its lease.
type heard struct {
	stamp   uint64 // the last full state that named it
	marks   [kv.BookingMarks]kv.SequenceHash
	counted int64 // KV tokens that count on the rank
}

// tellLocked enters a new lease of this proxy.
func (r *Router) tellLocked(l *Lease) {
	if r.cfg.OnBooking == nil || l.warm {
		return
	}
	x := &r.mu.exchange
	x.nextID++
	l.told.id, l.told.at = x.nextID, int32(len(x.own))
	x.own = append(x.own, l)
	r.changedLocked(l)
}

// changedLocked notes that l has moved on.
func (r *Router) changedLocked(l *Lease) {
	if l.told.id == 0 || l.told.waits {
		return
	}
	x := &r.mu.exchange
	if len(x.changes) == maxChanges {
		x.dropped++
		return
	}
	l.told.waits = true
	if x.changes = append(x.changes, l); len(x.changes) == 1 {
		r.cfg.OnBooking()
	}
}

// movedLocked notes that l has left the backlog of its rank.
func (r *Router) movedLocked(l *Lease) {
	if l.told.peer != nil {
		l.rank.peers.waiting--
		return
	}
	r.changedLocked(l)
}

// untellLocked takes out a lease that is done.
func (r *Router) untellLocked(l *Lease) {
	if l.told.id == 0 {
		return
	}
	r.changedLocked(l)
	x := &r.mu.exchange
	last := len(x.own) - 1
	x.own[l.told.at] = x.own[last]
	x.own[l.told.at].told.at = l.told.at
	x.own[last] = nil
	x.own = x.own[:last]
}

// Bookings appends to dst the bookings of this proxy that changed since the last call,
// or all of them, which stand for those changes too. It is for one goroutine.
func (r *Router) Bookings(dst []kv.Booking, all bool) []kv.Booking {
	now := r.cfg.Now()
	r.mu.Lock()
	x := &r.mu.exchange
	leases := x.changes
	if all {
		for _, w := range r.mu.workers {
			for _, k := range w.ranks {
				r.refreshLocked(k, now)
			}
		}
		leases = slices.Clone(x.own)
	}
	for _, l := range x.changes {
		l.told.waits = false
	}
	if !all {
		dst = appendBookingsLocked(dst, leases, false)
	}
	clear(x.changes)
	x.changes = x.changes[:0]
	r.mu.Unlock()
	if all {
		// What changes meanwhile is told of after this.
		for part := range slices.Chunk(leases, bookingSlice) {
			r.mu.Lock()
			dst = appendBookingsLocked(dst, part, true)
			r.mu.Unlock()
		}
	}
	return dst
}

// appendBookingsLocked appends what peers are told of the leases: their ends only as
// changes, and only of what they have heard of.
func appendBookingsLocked(dst []kv.Booking, leases []*Lease, all bool) []kv.Booking {
	for _, l := range leases {
		if l.phase != phaseDone || !all && l.told.once {
			dst = append(dst, l.booking(!all && l.told.once))
		}
		l.told.once = true
	}
	return dst
}

// untold counts the changes that were dropped over the bound.
func (r *Router) untold() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.exchange.dropped
}

// booking returns what peers are told of l, without the marks if they are known.
func (l *Lease) booking(known bool) kv.Booking {
	b := kv.Booking{Lease: l.told.id, Rank: l.rank.name, Phase: kv.Phase(l.phase), Streams: l.stream}
	if l.phase == phaseDone {
		return b
	}
	if l.phase == phasePrefill {
		b.Uncached = int(l.uncached)
	}
	b.KV = int(max(l.kv.Load(), 0))
	if known || len(l.ids) == 0 {
		return b
	}
	step := marks(l.unitSize)
	for i := range b.Marks {
		n := step << i
		if n > len(l.ids) {
			break
		}
		b.Marks[i] = l.ids[n-1]
	}
	return b
}

// Book takes what a peer tells: all of its bookings where all is set, changes
// otherwise. It returns how many were refused: of a rank that is not in the fleet, or
// over a bound.
func (r *Router) Book(peer string, bookings []kv.Booking, all bool) (refused int) {
	now := r.cfg.Now()
	var stamp uint64
	for first := true; first || len(bookings) > 0; first = false {
		n := min(len(bookings), bookingSlice)
		r.mu.Lock()
		if first && all {
			r.mu.exchange.stamp++
			stamp = r.mu.exchange.stamp
		}
		for i := range bookings[:n] {
			if !r.bookPeerLocked(peer, &bookings[i], stamp, now) {
				refused++
			}
		}
		r.mu.Unlock()
		bookings = bookings[n:]
	}
	if all {
		r.forgetPeer(peer, stamp, now)
	}
	r.mu.Lock()
	if r.mu.exchange.freed {
		r.mu.exchange.freed = false
		r.settleLocked(nil)
	}
	r.mu.Unlock()
	r.sweep()
	return refused
}

// forgetPeer drops the bookings of a peer that its full state does not name.
func (r *Router) forgetPeer(peer string, stamp uint64, now time.Time) {
	for more := true; more; {
		more = false
		r.mu.Lock()
		of, n := r.mu.exchange.peers[peer], 0
		for id, l := range of {
			if l.told.peer.stamp == stamp {
				continue
			}
			if n++; n > bookingSlice {
				more = true
				break
			}
			r.endPeerLocked(peer, id, l, now)
		}
		if len(of) == 0 {
			delete(r.mu.exchange.peers, peer)
		}
		r.mu.Unlock()
	}
}

// bookPeerLocked books, moves on or ends one booking of a peer and tells whether it
// was taken.
func (r *Router) bookPeerLocked(peer string, b *kv.Booking, stamp uint64, now time.Time) bool {
	l := r.mu.exchange.peers[peer][b.Lease]
	if l != nil && l.rank.gone {
		r.endPeerLocked(peer, b.Lease, l, now) // its worker may be back
		l = nil
	}
	switch {
	case b.Phase == kv.PhaseDone:
		if l != nil {
			r.endPeerLocked(peer, b.Lease, l, now)
		}
		return true
	case l == nil:
		l = r.newPeerLocked(peer, b, now)
		if l == nil {
			return false
		}
	case l.phase == phasePrefill && b.Phase == kv.PhaseDecode:
		r.leavePrefillLocked(l, now, true)
	}
	if stamp != 0 {
		l.told.peer.stamp = stamp
	}
	l.rank.holdLocked(l, b)
	return true
}

// newPeerLocked books a request of a peer; nil where it is refused.
func (r *Router) newPeerLocked(peer string, b *kv.Booking, now time.Time) *Lease {
	x := &r.mu.exchange
	w := r.mu.workers[b.Rank.ID]
	of, known := x.peers[peer]
	if w == nil || b.Rank.Rank < 0 || b.Rank.Rank >= len(w.ranks) || x.total >= maxPeersTotal ||
		len(of) >= maxPeerBookings || !known && len(x.peers) >= maxPeers {
		return nil
	}
	k := w.ranks[b.Rank.Rank]
	if b.Phase == kv.PhasePrefill && k.peers.waiting >= maxPeerWaiting {
		return nil
	}
	l := &Lease{r: r, rank: k, stream: b.Streams, booked: now, phase: phaseDecode}
	l.told.peer = new(heard)
	if !known {
		if x.peers == nil {
			x.peers = map[string]map[uint64]*Lease{}
		}
		of = map[uint64]*Lease{}
		x.peers[peer] = of
	}
	of[b.Lease] = l
	x.total++
	k.holds++
	k.inflight++
	k.sequences.Add(1)
	k.peers.inflight++
	if b.Phase == kv.PhasePrefill {
		l.phase = phasePrefill
		k.peers.waiting++
		k.calmSince.Store(notCalm)
		r.queueLocked(l, float64(min(max(b.Uncached, 0), kv.MaxBookingTokens)), k.rate.of(&w.base.rate), now)
	}
	return l
}

// endPeerLocked ends a booking of a peer. Whoever calls it calls sweep without the lock.
func (r *Router) endPeerLocked(peer string, id uint64, l *Lease, now time.Time) {
	if l.phase == phasePrefill {
		r.leavePrefillLocked(l, now, false)
	}
	k := l.rank
	l.phase = phaseDone
	k.growLocked(l, 0)
	k.peers.held.remove(&l.told.peer.marks)
	k.inflight--
	k.sequences.Add(-1)
	k.peers.inflight--
	delete(r.mu.exchange.peers[peer], id)
	r.mu.exchange.total--
	r.mu.exchange.freed = true
	r.releaseLocked(k)
}

// Alone says that peers cannot be heard, and which share of the fleet's traffic is this
// proxy's: its bookings count as 1/share of what they are. 1 or more ends that.
func (r *Router) Alone(share float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.exchange.scale = 0
	if share < 1 {
		r.mu.exchange.scale = 1 / max(share, 1./maxPeers)
	}
}

// scaled makes own load stand for that of peers who cannot be heard. What is held is
// left alone: nobody knows how much of it they share.
func (in *costInput) scaled(scale float64) {
	if scale > 1 {
		in.backlog *= scale
		in.n *= scale
		in.kv *= scale
	}
}
