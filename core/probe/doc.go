// Package probe holds the kubelet's rules of readiness, liveness and startup probes
// as values: when a container is probed next, and what a row of answers comes to.
// Time and chance are passed in; nothing is dialled and nothing sleeps.
//
//	                 Observe                    Settle
//	new container ------------> due at start ------------> answer counted
//	                            + initialDelay   +period      |
//	                                  ^          (due again)  | threshold reached
//	                                  +-----------------------+----> Result
//
// Until a container with a startup probe has started, its other probes are not due;
// once it has, its startup probe is not. A liveness probe that came to a failure and
// a startup probe that came to anything rest until there is another container.
//
// None of the types is safe for concurrent use.
package probe

// Kind says what a probe is for.
type Kind uint8

// The kinds of probes.
const (
	// Readiness decides whether a container counts as ready.
	Readiness Kind = iota + 1
	// Liveness decides whether a container is to be restarted.
	Liveness
	// Startup holds the others back until a container has started.
	Startup
)

// String is the kind as it stands in Events and metrics.
func (k Kind) String() string {
	switch k {
	case Readiness:
		return "Readiness"
	case Liveness:
		return "Liveness"
	case Startup:
		return "Startup"
	default:
		return "Unknown"
	}
}

// Result is an answer to one probe, or what a row of answers came to.
type Result uint8

// The results. The zero value is a probe that was not made, or has come to nothing yet.
const (
	Unknown Result = iota
	Success
	Failure
)

func (r Result) String() string {
	switch r {
	case Success:
		return "Success"
	case Failure:
		return "Failure"
	default:
		return "Unknown"
	}
}
