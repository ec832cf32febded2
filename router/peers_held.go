package router

import "github.com/warmroute/warmroute/router/kv"

// peerLoad is the part of a rank's load that peers booked.
type peerLoad struct {
	inflight int
	waiting  int   // of them before their first token
	kv       int64 // tokens, each request in full
	held     peerHeld
}

// holdLocked counts the KV tokens of a peer's l as b tells them.
func (k *rank) holdLocked(l *Lease, b *kv.Booking) {
	p := &k.peers
	if l.told.peer.marks[0] == 0 && b.Marks[0] != 0 {
		l.told.peer.marks = b.Marks
		p.held.add(&l.told.peer.marks)
	}
	k.growLocked(l, min(max(int64(b.KV), 0), kv.MaxBookingTokens))
}

// growLocked makes tokens of a peer's l count on k.
func (k *rank) growLocked(l *Lease, tokens int64) {
	more := tokens - l.told.peer.counted
	l.told.peer.counted = tokens
	k.peers.kv += more
	k.peers.held.tokens += float64(more)
	k.kvTokens.Add(more)
	k.prompts += more // heldTokens counts them by peers.held alone
}

// peerStatus returns what peers have booked on k, nil for nothing.
func (k *rank) peerStatus() *PeerLoad {
	if k.peers.inflight == 0 {
		return nil
	}
	p := &PeerLoad{Inflight: k.peers.inflight, Running: k.peers.inflight - k.peers.waiting, KVTokens: int(k.peers.kv)}
	for _, l := range k.prefill {
		if l.told.peer != nil {
			p.BacklogTokens += int(l.uncached)
		}
	}
	return p
}

// peerHeld counts the KV tokens of peers' requests, a prefix that several of them share
// once, as far as the marks tell it: at least half of the prefix.
type peerHeld struct {
	refs   map[kv.SequenceHash]peerMark
	tokens float64 // of all, minus what is shared
}

type peerMark struct {
	refs int32
	span float64 // tokens between the mark before and this one
}

// span is the length of what mark i adds to mark i−1.
func span(i int) float64 { return float64(int(kv.MarkTokens) << max(i-1, 0)) }

// add and remove take shared spans out of tokens and put them back.
func (h *peerHeld) add(marks *[kv.BookingMarks]kv.SequenceHash) {
	for i, m := range marks {
		if m == 0 {
			return
		}
		if h.refs == nil {
			h.refs = map[kv.SequenceHash]peerMark{}
		}
		e := h.refs[m]
		if e.refs++; e.refs == 1 {
			e.span = span(i)
		} else {
			h.tokens -= e.span
		}
		h.refs[m] = e
	}
}

func (h *peerHeld) remove(marks *[kv.BookingMarks]kv.SequenceHash) {
	for _, m := range marks {
		if m == 0 {
			return
		}
		e := h.refs[m]
		if e.refs--; e.refs == 0 {
			delete(h.refs, m)
			continue
		}
		h.tokens += e.span
		h.refs[m] = e
	}
}

// both returns the tokens that peers' requests and those of d hold together.
func (h *peerHeld) both(d *distinct) float64 {
	var n float64
	for m, e := range h.refs {
		if d.refs[m] > 0 {
			n += e.span
		}
	}
	return n
}
