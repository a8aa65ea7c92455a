package job

import "time"

// Fixed times of the Job controller, as upstream.
const (
	podBackoff    = 10 * time.Second // first delay after a pod failure
	maxPodBackoff = 10 * time.Minute
	batchPeriod   = time.Second // delay of pod events

	// longestDeadline is the longest activeDeadlineSeconds that ends a Job, a hundred
	// years; a longer one never does, and would not fit a duration.
	longestDeadline = 100 * 365 * 24 * 3600
)
