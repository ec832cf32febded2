package main

import (
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// proxyID names this proxy among its peers: its host and where it listens there, which
// is the same after a restart.
func proxyID(listen string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "proxy"
	}
	bind, port, err := net.SplitHostPort(listen)
	if err != nil || port == "" || port == "0" {
		return host + ":" + strconv.FormatUint(rand.Uint64(), 36) // another after a restart
	}
	if ip := net.ParseIP(bind); bind != "" && (ip == nil || !ip.IsUnspecified()) {
		host += "-" + bind
	}
	id := net.JoinHostPort(host, port)
	return id[:min(len(id), 255)]
}
