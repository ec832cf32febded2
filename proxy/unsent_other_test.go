//go:build !linux

package proxy

import "syscall"

// unsent cannot be known here; loopback delivers at once.
func unsent(syscall.RawConn) int { return 0 }
