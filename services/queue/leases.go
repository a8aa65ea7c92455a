package queue

import (
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// leases settles and extends leases for sessions.
type leases struct {
	queues   *transaction.Queues
	sessions *sessions
	// closeGrace is what shorten leaves of leases.
	closeGrace time.Duration
}

func newLeases(q *transaction.Queues, s *sessions, closeGrace time.Duration) *leases {
	return &leases{queues: q, sessions: s, closeGrace: closeGrace}
}

// leaseName tells leases apart.
type leaseName struct {
	queue, key string
	token      uint64
}

func nameOf(r *queuev1.LeaseRef) leaseName { return leaseName{r.GetQueue(), r.GetKey(), r.GetToken()} }

// distinct is every lease once.
func distinct(refs []*queuev1.LeaseRef) []*queuev1.LeaseRef {
	known := make(map[leaseName]bool, len(refs))
	once := refs[:0:0]
	for _, r := range refs {
		if l := nameOf(r); !known[l] {
			known[l] = true
			once = append(once, r)
		}
	}
	return once
}

// storeTimeout is how long the store may take to end or extend leases, zero for as long
// as it tries, where the caller does not know partial answers.
func storeTimeout(partial bool) time.Duration {
	if !partial {
		return 0
	}
	return transaction.PartitionTimeout
}
