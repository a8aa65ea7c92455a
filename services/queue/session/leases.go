package session

import (
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// Leases settles and extends leases for sessions.
type Leases struct {
	queues   *transaction.Queues
	sessions *Sessions
	// closeGrace is what shorten leaves of leases.
	closeGrace time.Duration
}

// NewLeases are the leases of sessions. CloseGrace is what Shorten leaves of them.
func NewLeases(q *transaction.Queues, s *Sessions, closeGrace time.Duration) *Leases {
	return &Leases{queues: q, sessions: s, closeGrace: closeGrace}
}

// LeaseName tells leases apart.
type LeaseName struct {
	queue, key string
	token      uint64
}

// NameOf is the name of the lease that a reference is to.
func NameOf(r *queuev1.LeaseRef) LeaseName { return LeaseName{r.GetQueue(), r.GetKey(), r.GetToken()} }

// Distinct is every lease once.
func Distinct(refs []*queuev1.LeaseRef) []*queuev1.LeaseRef {
	known := make(map[LeaseName]bool, len(refs))
	once := refs[:0:0]
	for _, r := range refs {
		if l := NameOf(r); !known[l] {
			known[l] = true
			once = append(once, r)
		}
	}
	return once
}

// StoreTimeout is how long the store may take to end or extend leases, zero for as long
// as it tries, where the caller does not know partial answers.
func StoreTimeout(partial bool) time.Duration {
	if !partial {
		return 0
	}
	return transaction.PartitionTimeout
}
