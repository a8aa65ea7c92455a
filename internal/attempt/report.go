package attempt

import "time"

// Report decides which failures of repeated attempts are reported: the first one, one with another
// reason than the last, and one a minute of those that go on. The zero value has reported nothing.
// It is for one goroutine.
type Report struct {
	reason string
	at     time.Time
}

// Due tells whether a failure is to be reported, and counts it as reported then.
func (r *Report) Due(reason string) bool {
	if reason == r.reason && time.Since(r.at) < time.Minute && !r.at.IsZero() {
		return false
	}
	*r = Report{reason, time.Now()}
	return true
}
