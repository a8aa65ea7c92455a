// Package podsync holds the rules of the kubelet's pod workers as pure values:
// what a worker does next, when a pod is looked at again, how long a pod may take
// to end. Time and chance are passed in; nothing locks and nothing sleeps.
//
//	          deletion stamp, terminal phase,
//	          kill, eviction, orphan, SyncPod said so
//	 [sync] -----------------------------------------> [terminating]
//	                                                        |  nothing runs any more
//	                                                        v
//	        (gone) <-- purged -- [finished] <-- freed -- [terminated]
//
// A worker never goes back (g.8). A finished one stays, to refuse whatever comes
// late for its UID, until its pod is no longer wanted.
//
// Static pods (g.11) do not exist here: every pod comes from the API server, so
// two pods of one full name are one after the other already.
//
// None of the types is safe for concurrent use.
package podsync

// Kind says what an update of a pod is.
type Kind uint8

// The kinds of updates.
const (
	// Create: the pod was not known before.
	Create Kind = iota + 1
	// Update: its configuration changed.
	Update
	// Sync: look at it again.
	Sync
	// Kill: end it.
	Kill
)

func (k Kind) String() string {
	switch k {
	case Create:
		return "create"
	case Update:
		return "update"
	case Sync:
		return "sync"
	case Kill:
		return "kill"
	default:
		return "unknown"
	}
}
