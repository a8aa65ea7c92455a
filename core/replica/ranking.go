package replica

import (
	"cmp"
	"time"
)

// Phase orders how far a child has come.
type Phase int

// Phases in the order of deletion.
const (
	Pending Phase = iota
	Unknown
	Running
)

// Standing is what decides which child is deleted first.
type Standing struct {
	Bound      bool // it has a node
	Phase      Phase
	Ready      bool
	ReadySince time.Time // zero: not known
	// Restarts is the highest restart count among the main containers,
	// SidecarRestarts among the sidecars.
	Restarts, SidecarRestarts int32
	Created                   time.Time // zero: not known
}

// Compare orders children for deletion: negative when a goes before b. Children
// of no node first, then pending before unknown before running, not ready
// before ready, ready for a shorter time before longer (an unknown time first),
// more restarts before fewer, newer before older (an unknown creation time
// first).
func Compare(a, b Standing) int {
	return cmp.Or(
		falseFirst(a.Bound, b.Bound),
		cmp.Compare(a.Phase, b.Phase),
		falseFirst(a.Ready, b.Ready),
		readiness(a, b),
		cmp.Compare(b.Restarts, a.Restarts),
		cmp.Compare(b.SidecarRestarts, a.SidecarRestarts),
		latestFirst(a.Created, b.Created),
	)
}

func readiness(a, b Standing) int {
	if !a.Ready || !b.Ready {
		return 0
	}
	return latestFirst(a.ReadySince, b.ReadySince)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func latestFirst(a, b time.Time) int {
	switch {
	case a.Equal(b):
		return 0
	case a.IsZero():
		return -1
	case b.IsZero():
		return 1
	}
	return b.Compare(a)
}
