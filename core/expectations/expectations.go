// Package expectations remembers which children a controller is about to
// create or delete, until it has seen them in its cache.
//
// Children are remembered by name, not by number, so an observation counts
// once however often it is reported, and one that was missed can be found by
// looking. A [Set] belongs to one owner (by UID) and ends by itself after its
// expiry, like client-go's five-minute expectations.
package expectations

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Bounds of a set.
const (
	MaxNames   = 4096 // creates and deletes together
	MaxNameLen = 253
)

// ErrTooMany is returned when a set would hold more than MaxNames names.
var ErrTooMany = errors.New("expectations: too many names")

// Set is what one owner expects. The zero value expects nothing. Names are
// kept sorted and without duplicates. Times are microseconds since 1970.
type Set struct {
	Owner   string   // UID of the owner
	Creates []string // children whose creation has not been seen
	Deletes []string // children whose deletion has not been seen
	Expires int64    // the set is void at or after this time
}

// Expect adds names to what the owner expects and moves the expiry. A set of
// another owner, or one that has expired, is replaced.
func (s Set) Expect(owner string, creates, deletes []string, now, expires int64) (Set, error) {
	if s.Owner != owner || s.Expired(now) {
		s = Set{}
	}
	n := Set{
		Owner:   owner,
		Creates: union(s.Creates, creates),
		Deletes: union(s.Deletes, deletes),
		Expires: expires,
	}
	if got := len(n.Creates) + len(n.Deletes); got > MaxNames {
		return s, fmt.Errorf("%w: %d, at most %d", ErrTooMany, got, MaxNames)
	}
	return n, nil
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
func (s Set) Expired(now int64) bool { return s.Expires <= now }

// Live is the set if it still expects something at now, else nil.
func (s Set) Live(now int64) *Set {
	if s.Satisfied() || s.Expired(now) {
		return nil
	}
	return &s
}

// Check names the first name that cannot be stored.
func Check(field string, names []string) error {
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

func union(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
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
