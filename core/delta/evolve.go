package delta

import (
	"fmt"
	"strconv"
)

// Part is what of a record a build does not know. The set is closed, so that it can label a metric.
type Part string

// The parts of a record that later builds may add to.
const (
	// PartVersion: the record needs a reader of a later version.
	PartVersion Part = "version"
	// PartKind: a control record of an unknown kind, in a version that this build reads.
	PartKind Part = "kind"
	// PartType: a delta of an unknown type.
	PartType Part = "type"
	// PartEncoding: a payload in an unknown encoding.
	PartEncoding Part = "encoding"
	// PartReason: a deletion for an unknown reason.
	PartReason Part = "reason"
	// PartKey: a payload that is encrypted with a key this process does not have.
	PartKey Part = "key"
)

// Parts are all parts.
func Parts() []Part {
	return []Part{PartVersion, PartKind, PartType, PartEncoding, PartReason, PartKey}
}

// UnknownError says that a record is well-formed and holds what a later build may write, and this
// one does not know, or what is encrypted with a key it does not have.
type UnknownError struct {
	Part  Part
	Value string
}

// Error implements error.
func (e *UnknownError) Error() string {
	switch e.Part {
	case PartVersion:
		return fmt.Sprintf("needs version %s, this build reads up to %d", e.Value, Reads())
	case PartKey:
		return fmt.Sprintf("is encrypted with the key %s, which this process does not have", e.Value)
	}
	return fmt.Sprintf("has the %s %q, which this build does not know", e.Part, e.Value)
}

// Skippable reports whether a reader may pass over the record. It may pass over a control record of
// a kind that it does not know, because one that has to be understood needs a later version.
// Behind any other record a reader would hold what the log does not say.
func (e *UnknownError) Skippable() bool { return e.Part == PartKind || e.Part == PartReason }

// Needs is the error of a log or a record that needs a version; nil where this build reads it.
func Needs(version uint64) error {
	if version <= Reads() {
		return nil
	}
	return &UnknownError{Part: PartVersion, Value: strconv.FormatUint(version, 10)}
}

// Passed is a record that a reader has passed over, or taken without what it does not know of it.
type Passed struct {
	Sequence uint64
	Unknown  *UnknownError
}

// NewerError says why a reader stands still: the next record is one that a later build must read,
// or one whose key is missing.
type NewerError struct {
	// Sequence of the record; 0 where its log's leader has announced such records.
	Sequence uint64
	Unknown  *UnknownError
	// Writer and Build are those of the leader, where they are known.
	Writer, Build string
}

// Error implements error: one sentence about the collection, for people.
func (n *NewerError) Error() string {
	if n.Unknown != nil && n.Unknown.Part == PartKey {
		return fmt.Sprintf("record %d of the log %v; add it to the file of encryption keys", n.Sequence, n.Unknown)
	}
	what := "it"
	if n.Sequence > 0 {
		what = "record " + strconv.FormatUint(n.Sequence, 10)
	}
	by := ""
	if n.Writer != "" {
		by = " by " + n.Writer
	}
	if n.Build != "" {
		by += " (build " + n.Build + ")"
	}
	return fmt.Sprintf("the log is written%s in a newer form: %s %v; upgrade readers before reflectors", by, what, n.Unknown)
}

// Unwrap implements the interface of [errors.Is].
func (n *NewerError) Unwrap() error { return n.Unknown }
