package link

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unacked is how many bytes of a connection wait in the kernel for the other side's; 0 when that is
// not known.
func unacked(conn net.Conn) int {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if err := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		return 0
	}
	if err != nil {
		return 0
	}
	return n
}
