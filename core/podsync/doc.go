// Package podsync holds the rules of the kubelet's pod workers as pure values:
// what a worker does next, when a pod is looked at again, how long a pod may take
// to end. Time and chance are passed in; nothing locks and nothing sleeps.
//
//	         deletion stamp, terminal phase,
//	         kill, eviction, orphan, SyncPod said so
//	[sync] -----------------------------------------> [terminating]
//	                                                       |  nothing runs any more
//	                                                       v
//	       (gone) <-- purged -- [finished] <-- freed -- [terminated]
//
// A worker never goes back. A finished one stays, to refuse whatever comes late
// for its UID, until its pod is no longer wanted.
//
// Static pods do not exist here: every pod comes from the API server, so two
// pods of one full name are one after the other already.
//
// None of the types is safe for concurrent use.
package podsync

// Kind says what an update of a pod is.
type Kind uint8

// The kinds of updates.
const (
	// KindCreate: the pod was not known before.
	KindCreate Kind = iota + 1
	// KindUpdate: its configuration changed.
	KindUpdate
	// KindSync: look at it again.
	KindSync
	// KindKill: end it.
	KindKill
)

func (k Kind) String() string {
	switch k {
	case KindCreate:
		return "create"
	case KindUpdate:
		return "update"
	case KindSync:
		return "sync"
	case KindKill:
		return "kill"
	default:
		return "unknown"
	}
}
