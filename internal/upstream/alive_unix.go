//go:build unix

package upstream

import (
	"crypto/tls"
	"net"
	"syscall"
)

// pulse tells whether an idle connection may be used: the peer has neither closed it nor
// sent anything. It reads one byte without waiting; a byte that is there was not asked
// for, so such a connection is as good as dead.
type pulse struct {
	raw  syscall.RawConn // nil where there is no socket
	look func(fd uintptr) bool
	b    [1]byte
	open bool
}

func newPulse(c net.Conn) *pulse {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	p := new(pulse)
	if sc, ok := c.(syscall.Conn); ok {
		p.raw, _ = sc.SyscallConn() // fails on a nil connection only
	}
	p.look = func(fd uintptr) bool {
		_, err := syscall.Read(int(fd), p.b[:])
		p.open = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		return true
	}
	return p
}

func (p *pulse) alive() bool {
	if p.raw == nil {
		return true
	}
	p.open = false
	return p.raw.Read(p.look) == nil && p.open
}
