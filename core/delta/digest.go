package delta

// Digest stands for the keys of a collection that live, and the version of each: the sum of
// [DigestOf] over them, modulo 2^64, in whatever order they came. The zero value is that of no
// key. Two readers that hold the same have the same digest; of two that differ, one in 2^64 have.
// It finds out what went wrong by accident, not what somebody made up.
type Digest uint64

// DigestOf is the part of a living key at a resource version. Leading zeros do not count.
func DigestOf(key string, rv RV) Digest {
	if n, ok := number(rv); ok {
		return DigestOfNumber(key, n)
	}
	return Digest(mix(fnv1a(fnv1a(fnvOffset, key), "\x00"+rv)))
}

// DigestOfNumber is [DigestOf] for a version that is known as a number.
func DigestOfNumber(key string, rv uint64) Digest {
	return Digest(mix(fnv1a(fnvOffset, key) + rv*0x9e3779b97f4a7c15))
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// fnv1a goes on with an FNV-1a hash. Package hash/fnv would copy the text for its io.Writer.
func fnv1a(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	return h
}

// mix is the end of SplitMix64: without it, sums of similar keys could cancel out.
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
