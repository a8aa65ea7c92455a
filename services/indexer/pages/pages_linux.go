package pages

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Large asks for large pages under a buffer that has been allocated, but not
// written to, since small pages that are there already stay for long. A caller that
// reads many places of much memory waits for the translation of small pages as
// long as for the bytes. A buffer shorter than [LargeFrom] is left alone.
//
// A large page may reach beyond the ends of the buffer: what the allocator puts
// there gains by it too.
func Large(buf []byte) {
	if len(buf) < LargeFrom {
		return
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	from, to := at&^(largePage-1), (at+uintptr(len(buf))+largePage-1)&^(largePage-1)
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_HUGEPAGE) // a hint; it changes no memory
}

// Populate asks for the memory of a buffer at once: that takes less than a
// fault for each of its pages while it is read into.
func Populate(buf []byte) { _ = unix.Madvise(buf, unix.MADV_POPULATE_WRITE) } // without it the faults come as ever
