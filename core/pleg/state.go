package pleg

// State is that of one container or sandbox, as events are made from it.
type State uint8

// The states. Unknown is also a container that was created and not started yet.
const (
	NonExistent State = iota
	Unknown
	Running
	Exited
)

func (s State) String() string {
	return [...]string{"non-existent", "unknown", "running", "exited", "undefined"}[min(s, Exited+1)]
}

// forward reports that a container that was in s may be in next later on, by the
// life that every container has: created, running, exited. A vanished container
// does not come back, and vanishing is outside this order.
func (s State) forward(next State) bool { return next > s }

// Kind is what an event says.
type Kind uint8

// The kinds. ContainerChanged is never delivered.
const (
	ContainerStarted Kind = iota + 1
	ContainerDied
	ContainerRemoved
	ContainerChanged
	// PodSync says that a pod was looked at as somebody had asked.
	PodSync
)

func (k Kind) String() string {
	return [...]string{"undefined", "ContainerStarted", "ContainerDied", "ContainerRemoved", "ContainerChanged", "PodSync", "undefined"}[min(k, PodSync+1)]
}

// Event is one thing that happened in a pod.
type Event struct {
	Pod  string
	Kind Kind
	// Container is the ID of the container or sandbox; empty for PodSync.
	Container string
}

var (
	started    = []Kind{ContainerStarted}
	died       = []Kind{ContainerDied}
	removed    = []Kind{ContainerRemoved}
	diedAndOut = []Kind{ContainerDied, ContainerRemoved}
	changed    = []Kind{ContainerChanged}
)

// Diff is what a container's step from one state to another is worth, in the
// order of its events. Who calls it changes nothing of the answer.
func Diff(before, after State) []Kind {
	switch {
	case before == after:
		return nil
	case after == Running:
		return started
	case after == Exited:
		return died
	case after == Unknown:
		return changed
	case before == Exited: // its end was reported
		return removed
	}
	return diedAndOut
}
