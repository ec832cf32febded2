//go:build !linux

package testcluster_test

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
