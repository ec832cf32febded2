package proxy

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// departures tells of every client that closes or half-closes its connection. One epoll
// instance watches all sockets for the peer's FIN and nothing else: it never reads, so
// pipelined requests and TLS records stay where they are and cannot hide the FIN behind
// them. The instance itself lies in Go's own poller: one goroutine waits for all of them, and
// none wakes for a request. (A goroutine for each request, parked on its socket, costs 2.6
// futex calls instead of 0.2, and a fifth of a small request's CPU time:
// docs/benchmarks/overhead.md.)
type departures struct {
	epoll int
	file  *os.File // epoll
	raw   syscall.RawConn

	mu struct {
		sync.Mutex
		last  uint64 // id given; fds are reused, ids are not
		conns map[uint64]*conn
	}
}

// newDepartures returns a value that run and close end.
func newDepartures() (*departures, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // makes it one that Go's poller takes
	d := &departures{epoll: fd, file: os.NewFile(uintptr(fd), "epoll")}
	if d.raw, err = d.file.SyscallConn(); err != nil {
		_ = d.file.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	d.mu.conns = map[uint64]*conn{}
	return d, nil
}

// add has c told when its client leaves, until remove. Where it returns 0 the system refused.
func (d *departures) add(c *conn, t *net.TCPConn) (id uint64) {
	raw, err := t.SyscallConn()
	if err != nil {
		return 0
	}
	d.mu.Lock()
	d.mu.last++
	id = d.mu.last
	d.mu.conns[id] = c
	d.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(id), Pad: int32(id >> 32)}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, int(fd), &ev) })
	if err != nil || failed != nil {
		d.remove(id)
		return 0
	}
	return id
}

// remove forgets a connection. The system does so when its socket is closed.
func (d *departures) remove(id uint64) {
	d.mu.Lock()
	delete(d.mu.conns, id)
	d.mu.Unlock()
}

// run tells connections until close.
func (d *departures) run() {
	events := make([]unix.EpollEvent, 64)
	_ = d.raw.Read(func(uintptr) bool { // asked first, then at every event
		for {
			n, err := unix.EpollWait(d.epoll, events, 0)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n <= 0 {
				return false
			}
			for _, ev := range events[:n] {
				d.mu.Lock()
				c := d.mu.conns[uint64(uint32(ev.Fd))|uint64(uint32(ev.Pad))<<32]
				d.mu.Unlock()
				if c != nil {
					c.departed()
				}
			}
		}
	})
}

func (d *departures) close() { _ = d.file.Close() }

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
