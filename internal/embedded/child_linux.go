package embedded

import "syscall"

// childAttr makes the kernel end the child with us, also after a kill -9, and
// keeps a terminal's Ctrl-C for us: we stop the child in our own order.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
