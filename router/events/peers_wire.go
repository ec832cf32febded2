package events

import (
	"errors"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

// receive takes one message of the load subjects and tells whether it comes from a
// proxy that does not know this one's bookings yet.
func (p *Peers) receive(subject string, data []byte) (greet bool) {
	d := &p.decoder
	h, err := d.header(data)
	switch {
	case errors.Is(err, errVersion):
		p.metrics.unknownVersion.Inc()
		return false
	case err != nil, h.kind < kindChanges || h.kind > kindMeeting, len(h.relay) == 0, h.epoch == 0, h.seq == 0:
		p.drop("malformed")
		return false
	case encodeToken(string(h.relay)) != lastToken(subject):
		p.drop("forged")
		return false
	}
	id := string(h.relay)
	if id == p.cfg.Proxy {
		if h.epoch == p.incarnation {
			return false // our own
		}
		if !p.warned {
			p.warned = true
			p.cfg.Logger.Warn("another proxy has our id, or we have restarted", "proxy", id, "fix", "give every proxy of the cluster a host name and --listen of its own")
		}
	}
	p.metrics.messages.WithLabelValues("in").Inc()
	o := p.peers[id]
	switch {
	case !p.up:
		p.drop("down")
		return false
	case o == nil && len(p.peers) >= maxPeers:
		p.drop("full")
		return false
	case o != nil && (h.epoch < o.incarnation || h.epoch == o.incarnation && h.seq <= o.seq):
		p.drop("old")
		return false
	case o == nil || h.epoch > o.incarnation:
		if o != nil {
			p.forget(id)
		}
		o = &peer{incarnation: h.epoch, seq: h.seq - 1}
		greet = true
	}
	if !p.take(id, o, &h) {
		p.drop("malformed")
		return false
	}
	p.peers[id] = o
	if missed := h.seq - o.seq - 1; missed > 0 {
		o.lost += missed
		p.metrics.lost.Add(float64(missed))
	}
	o.seq, o.heard = h.seq, time.Now()
	return greet
}

func (p *Peers) drop(reason string) { p.metrics.dropped.WithLabelValues(reason).Inc() }

// take gives what follows the header of a message to the router; false where it cannot
// be read.
func (p *Peers) take(id string, o *peer, h *header) (ok bool) {
	if h.kind == kindChanges {
		var err error
		if p.read, err = p.decoder.readBookings(p.read[:0]); err != nil {
			return false
		}
		p.book(id, p.read, false)
		return true
	}
	if h.kind != kindLoad {
		return p.takeWarmups(id, h)
	}
	c, err := p.decoder.chunk()
	if err != nil {
		return false
	}
	s := &o.state
	if c.i == 0 {
		s.id, s.next, s.bookings = c.id, 0, nil
	}
	if c.id != s.id || c.i != s.next {
		s.next, s.bookings = -1, nil // a chunk is lost: the next state is whole
		return true
	}
	s.next++
	if s.bookings, err = p.decoder.readBookings(s.bookings); err != nil || len(s.bookings) > maxBookings {
		s.next, s.bookings = -1, nil
		return false
	}
	if s.next == c.n {
		p.book(id, s.bookings, true)
		o.bookings = len(s.bookings)
		s.next, s.bookings = -1, nil
		p.together()
	}
	return true
}

func (p *Peers) book(id string, bookings []kv.Booking, all bool) {
	if refused := p.cfg.Load.Book(id, bookings, all); refused > 0 {
		p.metrics.refused.Add(float64(refused))
	}
}

// sendChanges tells peers, if there are any, what has changed.
func (p *Peers) sendChanges() {
	p.own = p.cfg.Load.Bookings(p.own[:0], false)
	if !p.up || len(p.peers) == 0 {
		return
	}
	for rest := p.own; len(rest) > 0; {
		msg := p.envelope(kindChanges)
		msg, rest = appendBookings(msg, rest, p.limit()-len(msg))
		p.publish(msg)
	}
}

// sendState tells peers everything. It is also how a proxy becomes known.
func (p *Peers) sendState() {
	p.own = p.cfg.Load.Bookings(p.own[:0], true)
	if !p.up {
		return
	}
	if !p.alone {
		others := 0
		for _, o := range p.peers {
			others += o.bookings
		}
		p.share.add(len(p.own), others, len(p.peers))
	}
	if over := len(p.own) - maxBookings; over > 0 {
		p.metrics.untold.Add(float64(over))
		p.own = p.own[:maxBookings]
	}
	p.publishState(p.own)
}

func (p *Peers) publishState(bookings []kv.Booking) {
	var parts [][]byte
	for rest := bookings; ; {
		var part []byte
		part, rest = appendBookings(nil, rest, p.limit()-envelopeRoom)
		if parts = append(parts, part); len(rest) == 0 {
			break
		}
	}
	id := newID()
	for i, part := range parts {
		msg := appendChunk(p.envelope(kindLoad), chunk{id, i, len(parts)})
		p.publish(append(msg, part...))
	}
}

// limit is the size of a message.
func (p *Peers) limit() int {
	if n := int(p.link.payload()); n > 0 && n < maxMessage {
		return max(n, 4096)
	}
	return maxMessage
}

// envelope starts a message.
func (p *Peers) envelope(kind byte) []byte {
	p.seq++
	return appendHeader(nil, kind, p.cfg.Proxy, p.incarnation, p.seq, 0, 0)
}

func (p *Peers) publish(msg []byte) {
	if p.link.publish(p.subject, msg) != nil {
		p.drop("unsent")
		return
	}
	p.metrics.messages.WithLabelValues("out").Inc()
}
