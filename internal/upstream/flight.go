package upstream

import "time"

// flight is one generation on its way.
type flight struct {
	prev, next *flight
	waiting    bool // for the first byte of its answer
	sent       time.Time
	patience   time.Duration // how long that may take
	silence    time.Duration // … and how long its worker may give no sign of life meanwhile
}

// flights is a list of those that wait for their first byte, in the order of begin.
type flights struct{ first, last *flight }

// begin notes a generation that is sent.
func (b *breaker) begin(f *flight, now time.Time, stream bool, predicted time.Duration) {
	f.sent, f.silence, f.waiting = now, overdueStream, true
	if !stream {
		f.silence = overdueWhole
	}
	f.patience = max(overdueFactor*predicted, f.silence)
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &b.mu.flights
	f.prev, f.next = l.last, nil
	if l.last != nil {
		l.last.next = f
	} else {
		l.first = f
	}
	l.last = f
}

// settle ends the wait for a first byte. Calls after the first do nothing.
func (b *breaker) settle(f *flight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !f.waiting {
		return
	}
	f.waiting = false
	l := &b.mu.flights
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		l.first = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		l.last = f.prev
	}
	f.prev, f.next = nil, nil
}

// before tells whether one of them was sent before t.
func (l *flights) before(t time.Time) bool { return l.first != nil && l.first.sent.Before(t) }

// since tells whether one of them was sent at t or later.
func (l *flights) since(t time.Time) bool { return l.last != nil && !l.last.sent.Before(t) }
