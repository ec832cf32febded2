package testcluster

import (
	"strconv"
	"time"

	"github.com/warmroute/warmroute/router/kv"
)

const (
	bookingBatch = 5 * time.Millisecond // as router/events batches them
	bookingState = 2 * time.Second      // between two full states of a proxy
)

// letter is what one proxy tells all others at one moment.
type letter struct {
	from     int
	bookings []kv.Booking
	all      bool
}

// changed arms the next batch of a proxy's bookings. The proxy's router is locked.
func (c *cluster) changed(proxy int) {
	c.timers.push(timer{at: c.now + bookingBatch, kind: timerBookings, worker: proxy})
}

// tell sends the bookings of a proxy on their way to the others, and goes on sending
// its full state while there is work.
func (c *cluster) tell(proxy int, all bool) {
	b := c.proxies[proxy].router.Bookings(nil, all)
	if all && c.load.open > 0 {
		c.timers.push(timer{at: c.now + bookingState, kind: timerState, worker: proxy})
	}
	if !all && len(b) == 0 {
		return
	}
	if c.posted++; c.cfg.LoseBookings == 0 || c.posted%c.cfg.LoseBookings > 0 {
		c.letters = append(c.letters, letter{proxy, b, all})
		c.timers.push(timer{at: c.now + c.cfg.BookingDelay, kind: timerLetter})
	}
}

// hear gives the oldest letter to every proxy but its sender.
func (c *cluster) hear() {
	m := c.letters[0]
	c.letters = c.letters[1:]
	for i, p := range c.proxies {
		if i != m.from {
			p.router.Book("proxy "+strconv.Itoa(m.from), m.bookings, m.all)
		}
	}
}
