package podsync

// Facts are what the rules must know of a pod.
type Facts struct {
	// Deleting: it has a deletion stamp.
	Deleting bool
	// Ended: its phase is Succeeded or Failed.
	Ended bool
	// DeletionGrace and SpecGrace, in seconds, are those of the deletion and of
	// the pod's spec, when they are given.
	DeletionGrace, SpecGrace *int64
}

// Grace is how many seconds a pod gets to end, and whether that is less than it was. current is
// what held until now, 0 for nothing yet. The deletion's and the kill's can only lower it; the
// spec's counts when there is nothing else. It is at least 1.
func Grace(current int64, f Facts, k *Kill) (grace int64, shorter bool) {
	grace = current
	given := false
	lower := func(to *int64) {
		if to != nil && (grace == 0 || *to < grace) {
			grace, given = *to, true
		}
	}
	lower(f.DeletionGrace)
	if k != nil {
		lower(k.Grace)
	}
	if !given && grace == 0 && f.SpecGrace != nil {
		grace = *f.SpecGrace
	}
	grace = max(grace, 1)
	return grace, current != 0 && grace != current
}
