//go:build !linux

package proxy

import (
	"net"
	"time"
)

// departures tells of nothing: this system shows a peer's FIN to readers only.
type departures struct{}

func newDepartures() (*departures, error) { return new(departures), nil }

func (*departures) add(*conn, *net.TCPConn) (id uint64) { return 0 }
func (*departures) remove(uint64)                       {}
func (*departures) run()                                {}
func (*departures) close()                              {}

func setUserTimeout(*net.TCPConn, time.Duration) {}
