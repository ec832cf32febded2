//go:build unix

package upstream

import (
	"crypto/tls"
	"net"
	"syscall"
)

// alive tells whether an idle connection may be used: the peer has neither closed it nor
// sent anything. It reads one byte without waiting; a byte that is there was not asked
// for, so such a connection is as good as dead.
func alive(c net.Conn) bool {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		open = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		return true
	})
	return err == nil && open
}
