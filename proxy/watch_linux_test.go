package proxy

import (
	"net"
	"testing"
)

// TestDepartures_ClosedOneTakesNobody: a connection that comes as a front ends must not be
// given to whoever has the descriptor of its epoll by then, such as another front.
func TestDepartures_ClosedOneTakesNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ended, err := newDepartures()
	if err != nil {
		t.Fatal(err)
	}
	ended.close()
	other, err := newDepartures() // the system gives the lowest free descriptor
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if id := ended.add(new(conn), c.(*net.TCPConn)); id != 0 || len(ended.mu.conns) > 0 {
		t.Errorf("watched as %d by one that is closed", id)
	}
	if id := other.add(new(conn), c.(*net.TCPConn)); id == 0 {
		t.Error("the other cannot watch it")
	}
}
