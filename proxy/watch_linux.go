package proxy

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// canPoll says that this system tells a peer's FIN without a read.
const canPoll = true

// poller is the memory of one watch's poll(2).
type poller [1]unix.PollFd

// park blocks until the client has closed or half-closed its side, or the read deadline
// passes. The callback runs in Go's own poller: it is asked first, then at every readiness
// of the socket, and never reads, so pipelined requests and TLS records stay where they are
// and cannot hide the FIN behind them. No goroutine polls on a timer.
func (w *watch) park() (left bool) {
	err := w.c.raw.Read(func(fd uintptr) bool {
		w.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLRDHUP}
		n, err := unix.Poll(w.poll[:], 0)
		return err == nil && n > 0 && w.poll[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
	})
	return err == nil
}

// setUserTimeout makes the kernel give up a client that has vanished without a FIN.
func setUserTimeout(t *net.TCPConn, d time.Duration) {
	if d <= 0 {
		return
	}
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
	}
}
