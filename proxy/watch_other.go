//go:build !linux

package proxy

import (
	"net"
	"time"
)

// canPoll says that this system tells a peer's FIN without a read.
const canPoll = false

type poller struct{}

func (w *watch) park() (left bool) { return w.read() }

func setUserTimeout(*net.TCPConn, time.Duration) {}
