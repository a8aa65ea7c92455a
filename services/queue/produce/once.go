package produce

// onceOf is the part of a Once that is the session's: FNV-1a, the same in every
// server and version.
func onceOf(session string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(session) {
		h = (h ^ uint64(session[i])) * 1099511628211
	}
	return h
}

// onceFor names a limited add of a batch, so that a batch sent again is not
// charged again. It fits into a float64's whole numbers and is never zero.
func onceFor(session, request uint64, index int) uint64 {
	h := session
	for _, v := range [...]uint64{request, uint64(index)} { //nolint:gosec // an index is not negative
		h = (h ^ v) * 0x9E3779B97F4A7C15
		h ^= h >> 29
	}
	return h>>12 | 1
}
