package queue

import "github.com/deltaplane/deltaplane/core/workqueue"

// waiter is somebody who waits for keys of one partition of a queue: a Get, or
// a Work stream. Its functions are called by the dispatcher and must not block.
type waiter struct {
	holder   string
	leaseFor int64 // microseconds, zero for the queue's
	credit   *credit
	own      *queueCredit // credit for this queue alone; nil for none
	single   bool         // one delivery is all it takes
	once     bool         // it does not wait

	// deliver hands over leases; false when nobody is there to take them.
	deliver func(d *dispatcher, leases []workqueue.Lease, now int64) bool
	// finish is called when it left the line permanently: after its delivery, when
	// nothing more will come, or because of an error.
	finish func(err error)

	// rejoin puts it in line once more, when credit it lacked has come.
	rejoin func()

	// Guarded by the dispatcher's mu.
	queued, inTransaction bool
	gone                  bool // withdrawn or finished
	leaving               bool // withdrawn while in a transaction
	final                 bool // what is ready now is the last of it
	reserved              int

	got int // of the dispatcher's goroutine, during a transaction
}

// rejoinAll puts waiters in line again.
func rejoinAll(fed []*waiter) {
	for _, t := range fed {
		t.rejoin()
	}
}
