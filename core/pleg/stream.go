package pleg

import "time"

// StreamRules say when to open a runtime's event stream again.
type StreamRules struct {
	// Tries are how many streams may fail one after the other before the runtime
	// is given up for a while.
	Tries int
	// Pause is the wait after the first failure; it doubles with each.
	Pause time.Duration
	// Retry is the wait once the runtime was given up, or said that it has no stream.
	Retry time.Duration
}

// StandardStream is Kubernetes' number of tries, and a retry every 5 minutes where
// it has none: a runtime that was upgraded is found again.
func StandardStream() StreamRules {
	return StreamRules{Tries: 5, Pause: 500 * time.Millisecond, Retry: 5 * time.Minute}
}

// Stream counts the failures of an event stream. The zero value has seen none.
type Stream struct {
	failed int
}

// Proved takes note that the stream delivered something: failures before it do not count any more.
func (s *Stream) Proved() { s.failed = 0 }

// Failed takes note of a stream's end, and is the wait before the next. gaveUp
// says that this failure was the last the rules allow.
func (s *Stream) Failed(r StreamRules) (wait time.Duration, gaveUp bool) {
	s.failed++
	if s.failed >= r.Tries {
		s.failed = r.Tries // stays given up until a stream proves itself
		return r.Retry, true
	}
	return min(r.Pause<<min(s.failed-1, 20), r.Retry), false
}
