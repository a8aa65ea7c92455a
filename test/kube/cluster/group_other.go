//go:build unix && !linux

package cluster

import "syscall"

// ownGroup keeps a terminal's Ctrl-C from reaching the part, so that parts stop in order.
func ownGroup(detach bool) *syscall.SysProcAttr {
	if detach {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true}
}
