// Package expectations remembers which children a controller is about to
// create or delete, until it has seen them in its cache.
//
// Children are remembered by name, not by number, so an observation counts
// once however often it is reported, and one that was missed can be found by
// looking. A [Set] belongs to one owner (by UID) and ends by itself after its
// expiry, like client-go's five-minute expectations.
package expectations

import (
	"fmt"
	"strings"
	"time"
)

// Bounds of a set.
const (
	MaxNames   = 1000 // of creations, and of deletions
	MaxNameLen = 253
)

// Expiry is how long a set holds after it was stored.
const Expiry = 5 * time.Minute

// Set is what one owner expects. The zero value expects nothing. A Set is
// never changed in place. Times are microseconds since 1970.
type Set struct {
	Owner    string   // UID of the owner
	Creates  []string // children whose creation has not been seen
	Deletes  []string // children whose deletion has not been seen
	Token    uint64   // lease under which the set was stored
	StoredAt int64    // the set is void Expiry after this time
}

// Observe removes what was seen. An observation for another owner changes
// nothing; an empty owner matches any.
func (s Set) Observe(owner string, created, deleted []string) Set {
	if owner != "" && owner != s.Owner {
		return s
	}
	s.Creates = minus(s.Creates, created)
	s.Deletes = minus(s.Deletes, deleted)
	return s
}

// Satisfied says whether nothing is outstanding.
func (s Set) Satisfied() bool { return len(s.Creates) == 0 && len(s.Deletes) == 0 }

// Expired says whether the set is void at now.
func (s Set) Expired(now int64) bool { return s.StoredAt+Expiry.Microseconds() <= now }

// Live is the set if it still expects something at now, else nil.
func (s Set) Live(now int64) *Set {
	if s.Satisfied() || s.Expired(now) {
		return nil
	}
	return &s
}

// Check says what is wrong with names to be stored, if anything.
func Check(field string, names []string) error {
	if len(names) > MaxNames {
		return fmt.Errorf("%s: %d names, at most %d", field, len(names), MaxNames)
	}
	for i, n := range names {
		switch {
		case n == "":
			return fmt.Errorf("%s[%d]: empty", field, i)
		case len(n) > MaxNameLen:
			return fmt.Errorf("%s[%d]: %d bytes, at most %d", field, i, len(n), MaxNameLen)
		case strings.ContainsFunc(n, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\ufffd' }):
			return fmt.Errorf("%s[%d]: %q holds a space, a control character or invalid UTF-8", field, i, n)
		}
	}
	return nil
}

func minus(a, b []string) []string {
	if len(b) == 0 || len(a) == 0 {
		return a
	}
	gone := make(map[string]struct{}, len(b))
	for _, n := range b {
		gone[n] = struct{}{}
	}
	out := make([]string, 0, len(a))
	for _, n := range a {
		if _, ok := gone[n]; !ok {
			out = append(out, n)
		}
	}
	return out
}
