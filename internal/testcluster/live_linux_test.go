package testcluster_test

import "syscall"

// dieWithParent ends a child when the test binary dies without its cleanups, for example
// of go test's own timeout.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
