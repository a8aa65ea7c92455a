package cluster

import "syscall"

// ownGroup keeps a terminal's Ctrl-C from reaching the part, so that parts stop in order, and
// unless the part is detached makes the kernel end it when the process that started it is killed.
func ownGroup(detach bool) *syscall.SysProcAttr {
	if detach {
		return &syscall.SysProcAttr{Setsid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
