//go:build !linux

package rpc

import "net"

// readiness is for Linux only.
type readiness struct{}

func newReadiness(net.Conn) *readiness { return nil }
