package podgc

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rules are the numbers of the pod garbage collection. The zero value is
// Kubernetes' behaviour.
type Rules struct {
	// Threshold is how many ended pods may exist; zero or less for any number, nil for
	// [DefaultThreshold].
	Threshold *int
	// Quarantine is how long a node must be missing before its pods are collected.
	// Default 40 s.
	Quarantine time.Duration
	// Every is the time between two looks at the number of ended pods, and at the pods
	// of a node that is out of service. Default 20 s.
	Every time.Duration
}

// DefaultThreshold is how many ended pods may exist unless somebody says otherwise.
const DefaultThreshold = 12500

// WithDefaults fills in what is not set.
func (r Rules) WithDefaults() Rules {
	if r.Threshold == nil {
		r.Threshold = new(DefaultThreshold)
	}
	r.Quarantine = cmp.Or(r.Quarantine, 40*time.Second)
	r.Every = cmp.Or(r.Every, 20*time.Second)
	return r
}

// Validate reports a time below zero.
func (r Rules) Validate() error {
	if r.Quarantine < 0 || r.Every < 0 {
		return fmt.Errorf("podgc: quarantine %v and time between looks %v must not be below zero", r.Quarantine, r.Every)
	}
	return nil
}

// Missing is since when a node has been missing that is missing now, and how long
// its quarantine still lasts; zero when that is over. since is when it was first
// found missing, zero for never. A time from the future, by another clock, is none.
func (r Rules) Missing(since, now time.Time) (time.Time, time.Duration) {
	if since.IsZero() || since.After(now) {
		since = now
	}
	return since, max(0, r.Quarantine-now.Sub(since))
}

// Gone is the reason with which the key of a missing node waits for the end of its
// quarantine. "describe pod" reads it.
const Gone = "the node does not exist, its pods are collected"

// Surplus are the ended pods to be deleted so that no more than the threshold
// remain: first those that were evicted, then the oldest. Pods that have not ended
// count for nothing.
func Surplus(pods []*Pod, threshold int) []*Pod {
	ended := slices.DeleteFunc(slices.Clone(pods), func(p *Pod) bool { return !p.Ended() })
	n := len(ended) - threshold
	if threshold <= 0 || n <= 0 {
		return nil
	}
	slices.SortFunc(ended, func(a, b *Pod) int {
		if a.evicted() != b.evicted() {
			if a.evicted() {
				return -1
			}
			return 1
		}
		return cmp.Or(
			a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp),
			cmp.Compare(a.Metadata.Name, b.Metadata.Name), cmp.Compare(a.Metadata.Namespace, b.Metadata.Namespace),
		)
	})
	return ended[:n]
}
