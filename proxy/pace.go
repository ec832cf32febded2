package proxy

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/valyala/fasthttp"
)

// paceWindow is the time over which the pace of a client's upload is taken.
const paceWindow = 30 * time.Second

// pace cuts off a client that sends its request too slowly to ever be one: a body of one
// byte a second holds its connection and buffers for as long as a limit on the whole lets
// it. The pace is taken over windows, so that a short stall costs nothing.
type pace struct {
	rate   int // bytes per second that a request must come with; 0 is no limit
	window time.Duration
	end    time.Time // of the window; zero while no request is being read
	bytes  int       // in the window
	readBy time.Time // the deadline that the server has set
}

// slowError is why a request was cut off.
type slowError struct{ rate int }

func (e *slowError) Error() string {
	return fmt.Sprintf("the request came more slowly than %d bytes a second", e.rate)
}

// Timeout makes the answer a 408.
func (e *slowError) Timeout() bool { return true }

// begin and stop bound the time in which a request is read.
func (p *pace) begin() {
	if p.rate > 0 {
		p.end, p.bytes = time.Now().Add(p.window), 0
	}
}

func (p *pace) stop() { p.end = time.Time{} }

// deadline returns when to look again: the server's deadline or the end of the window.
func (p *pace) deadline() time.Time {
	if !p.end.IsZero() && (p.readBy.IsZero() || p.end.Before(p.readBy)) {
		return p.end
	}
	return p.readBy
}

// read counts n bytes. again says that only the window has ended and was renewed: the
// reader's deadline has moved.
func (p *pace) read(n int, now time.Time) (again bool, err error) {
	p.bytes += n
	switch {
	case p.end.IsZero() || now.Before(p.end):
		return false, nil
	case float64(p.bytes) < float64(p.rate)*p.window.Seconds():
		return false, &slowError{p.rate}
	}
	p.end, p.bytes = now.Add(p.window), 0
	return true, nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.pace.readBy = t
	return c.Conn.SetReadDeadline(c.pace.deadline())
}

// readPaced reads more of a request.
func (c *conn) readPaced(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		over := os.IsTimeout(err)
		if err != nil && !over {
			return n, err
		}
		now := time.Now()
		again, slow := c.pace.read(n, now)
		if slow != nil {
			return n, slow
		}
		if again {
			_ = c.Conn.SetReadDeadline(c.pace.deadline())
		}
		if !over || !again || !c.pace.readBy.IsZero() && !now.Before(c.pace.readBy) {
			return n, err
		}
	}
}

// changed follows what the server does with a connection.
func (s *Server) changed(nc net.Conn, state fasthttp.ConnState) {
	c := clientConn(nc)
	if c == nil {
		return
	}
	switch state {
	case fasthttp.StateActive: // the first byte of a request is there
		c.pace.begin()
	case fasthttp.StateIdle:
		c.pace.stop()
	}
}
