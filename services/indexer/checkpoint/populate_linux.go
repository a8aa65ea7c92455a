package checkpoint

import "golang.org/x/sys/unix"

// populate asks for the memory of a buffer at once: that takes less than a
// fault for each of its pages while it is read into. Where the system does not
// know how, or has none, the faults come as ever.
func populate(b []byte) { _ = unix.Madvise(b, unix.MADV_POPULATE_WRITE) }
