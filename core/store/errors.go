package store

import (
	"errors"
	"fmt"
)

// UnknownIndexError names an index that the store does not have.
type UnknownIndexError struct{ Index string }

func (e *UnknownIndexError) Error() string {
	return fmt.Sprintf("store: index %q does not exist", e.Index)
}

// ConflictError names indexes that exist already; nothing was added.
type ConflictError struct{ Indexes []string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("store: indexer conflict: %q exist already", e.Indexes)
}

// BuildingError says that an index does not yet hold what was in the store
// before it was declared: Filed of Total objects are in it.
type BuildingError struct {
	Index        string
	Filed, Total int
}

func (e *BuildingError) Error() string {
	return fmt.Sprintf("store: index %q is being built: %d of %d objects are in it", e.Index, e.Filed, e.Total)
}

// FailedError says that an index cannot vouch for its answers, since its
// function failed on Keys keys; Key and Err are the first of them in key order.
type FailedError struct {
	Index string
	Keys  int
	Key   string
	Err   error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("store: index %q failed on %d keys, first %q: %v", e.Index, e.Keys, e.Key, e.Err)
}

// Unwrap returns the first failure.
func (e *FailedError) Unwrap() error { return e.Err }

// The errors of Load; the store stays empty.
var (
	ErrNotEmpty = errors.New("store: not empty")
	ErrUnsorted = errors.New("store: objects are not in key order")
)
