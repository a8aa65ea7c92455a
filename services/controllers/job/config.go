package job

import "time"

// Fixed times of the Job controller (controllers.md section 3).
const (
	podBackoff    = 10 * time.Second // first delay after a pod failure (a.2-36)
	maxPodBackoff = 10 * time.Minute
	batchPeriod   = time.Second // delay of pod events (a.2-17)

	// longestDeadline is the longest activeDeadlineSeconds that ends a Job, a hundred
	// years; a longer one never does, and would not fit a duration.
	longestDeadline = 100 * 365 * 24 * 3600
)
