package harness

import "golang.org/x/sys/unix"

// touch writes to every page of so much new memory, all of it held at the same
// time, and gives it back to the system.
func touch(size int64) error {
	buf, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	_ = unix.Madvise(buf, unix.MADV_HUGEPAGE) // faster; the pages are the machine's either way
	for at := 0; at < len(buf); at += 4 << 10 {
		buf[at] = 1
	}
	return unix.Munmap(buf)
}
