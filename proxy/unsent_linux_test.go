package proxy

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unsent returns the bytes that a socket's peer has not acknowledged.
func unsent(raw syscall.RawConn) (n int) {
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return n
}
