package delta

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// ErrRV is wrapped by every error about a malformed resource version.
var ErrRV = errors.New("delta: malformed resource version")

// RV is a resource version as the API server wrote it: a decimal of any length, compared only
// inside one collection and epoch. Empty means "none" and is smaller than every other. It is an
// alias so that callers may keep plain strings.
type RV = string

// maxRVLength bounds what [ParseRV] accepts; Kubernetes promises at most 128 bits, and we leave
// room.
const maxRVLength = 128

// ParseRV checks that s is a decimal of at most 128 digits and returns it without leading zeros
// ("0" stays). Empty is refused. Errors wrap [ErrRV] and quote s.
func ParseRV(s string) (RV, error) {
	if s == "" {
		return "", fmt.Errorf("%w: empty", ErrRV)
	}
	if len(s) > maxRVLength {
		return "", fmt.Errorf("%w: %.32q... is longer than %d digits", ErrRV, s, maxRVLength)
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return "", fmt.Errorf("%w: %q is not a decimal", ErrRV, s)
		}
	}
	if t := trimZeros(s); t != "" {
		return t, nil
	}
	return "0", nil
}

// Compare orders two resource versions as decimals: -1, 0 or +1. Empty is less than "0". Both must
// be empty or accepted by [ParseRV]; for anything else the order is total but means nothing.
func Compare(a, b RV) int {
	if a == "" || b == "" {
		return cmp.Compare(min(len(a), 1), min(len(b), 1))
	}
	a, b = trimZeros(a), trimZeros(b)
	if len(a) != len(b) {
		return cmp.Compare(len(a), len(b))
	}
	return strings.Compare(a, b)
}

// MaxRV returns the larger of two resource versions.
func MaxRV(a, b RV) RV {
	if Compare(a, b) >= 0 {
		return a
	}
	return b
}

func trimZeros(s string) string { return strings.TrimLeft(s, "0") }

// Revision is how far an index or the log is: every change up to RV of the epoch is included. The
// zero value is before everything. It holds W, never the largest RV seen.
type Revision struct {
	Epoch uint64
	RV    RV
}

// Compare orders revisions by epoch, then by resource version.
func (r Revision) Compare(o Revision) int {
	if c := cmp.Compare(r.Epoch, o.Epoch); c != 0 {
		return c
	}
	return Compare(r.RV, o.RV)
}

// IsZero reports whether r is before everything.
func (r Revision) IsZero() bool { return r == Revision{} }

// String gives "epoch:rv", for people.
func (r Revision) String() string { return fmt.Sprintf("%d:%s", r.Epoch, r.RV) }

// Position is a place in one collection's log. The zero value is before the first record: reading
// from it replays everything.
type Position struct {
	// Epoch is the epoch of the record at Sequence; a different epoch of the log means bootstrap
	// again.
	Epoch uint64
	// Sequence is the last sequence that was applied.
	Sequence uint64
	// Term is the term of the record at Sequence, or 0 when unknown. It lets a resuming reader find
	// out that a newer term began at or below its position.
	Term uint64
}

// IsZero reports whether p is before the first record.
func (p Position) IsZero() bool { return p.Sequence == 0 }
