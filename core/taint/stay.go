package taint

import "time"

// Pod is what a pod brings to the judgement.
type Pod struct {
	Tolerations []Toleration
	// Bound is when it came to its node; zero when nobody said. A taint that was
	// there before is tolerated from then on.
	Bound time.Time
}

// Stay is how long a pod may stay on its node.
type Stay struct {
	// Ends is when it must go; zero for never.
	Ends time.Time
	// Because is the taint that ends the stay.
	Because Taint
	// Since is when that taint began to count against the pod.
	Since time.Time
}

// Forever reports that nothing ends the stay.
func (s Stay) Forever() bool { return s.Ends.IsZero() }

// Due reports that the pod must go now.
func (s Stay) Due(now time.Time) bool { return !s.Forever() && !now.Before(s.Ends) }

// Continue is s for a pod whose countdown runs already and ends at a time, zero for
// none: taints that change make a countdown shorter or cancel it, and never make it
// longer. So a node that changes between not-ready and unreachable loses its pods
// when the first of the two ends their stay.
func (s Stay) Continue(ends time.Time) Stay {
	if !ends.IsZero() && ends.Before(s.Ends) {
		s.Ends = ends
	}
	return s
}

// Seen is when taints were first seen, by [Taint.ID], of those that do not say
// when they were placed or name a time that has not come. Nil is empty.
type Seen map[string]time.Time

// longest is how many seconds are distinguished from for ever: about a hundred years. A
// larger number of them would not fit a duration.
const longest = 100 * 365 * 24 * 3600

// Stay judges a pod on a node with these taints at a time. Taints that do not
// evict do not count. A taint that no toleration matches ends the stay at once,
// as do zero or negative seconds; tolerations without seconds never end it.
//
// Seconds count from the time the taint was placed, or from the pod's binding
// when that was later. A taint that names no time, or one in the future (a clock
// that is ahead), counts from when it was first seen: seen holds what earlier
// judgements returned, and the second answer is what to keep for the next.
func (r Rules) Stay(now time.Time, taints []Taint, pod Pod, seen Seen) (Stay, Seen) {
	var stay Stay
	var keep Seen
	for _, x := range Evicting(taints) {
		base := added(x)
		if base.IsZero() || base.After(now) {
			base = now
		}
		// A time first seen as lying ahead stays where it was first counted from.
		if at, ok := seen[x.ID()]; ok {
			base = earliest(base, at)
		}
		if added(x).IsZero() || base.Before(added(x)) || added(x).After(now) {
			if keep == nil {
				keep = Seen{}
			}
			keep[x.ID()] = base
		}
		if bound := earliest(pod.Bound, now); bound.After(base) {
			base = bound
		}
		ends, forever := r.until(base, x, pod.Tolerations)
		if !forever && (stay.Forever() || ends.Before(stay.Ends)) {
			stay = Stay{Ends: ends, Because: x, Since: base}
		}
	}
	return stay, keep
}

// until is when a taint ends the stay of a pod with these tolerations.
func (r Rules) until(base time.Time, x Taint, list []Toleration) (ends time.Time, forever bool) {
	t, ok := r.First(list, x)
	switch {
	case !ok:
		return base, false
	case t.Seconds == nil || *t.Seconds > longest:
		return time.Time{}, true
	default:
		return base.Add(time.Duration(max(*t.Seconds, 0)) * time.Second), false
	}
}
