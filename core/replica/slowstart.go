package replica

// Bounds of one sync.
const (
	// InitialBatch is the size of the first batch of a slow start.
	InitialBatch = 1
	// MaxPerSync is the most children created, or deleted, in one sync.
	MaxPerSync = 500
)

// SlowStart calls batch with growing sizes 1, 2, 4, 8… until n children have
// been tried or a batch says that something failed. It returns how many were
// never tried. batch is given the number of the first child and how many to
// try.
func SlowStart(n int, batch func(first, size int) (ok bool)) (skipped int) {
	for first, size := 0, min(n, InitialBatch); first < n; {
		ok := batch(first, size)
		first += size
		if !ok {
			return n - first
		}
		size = min(2*size, n-first)
	}
	return 0
}
