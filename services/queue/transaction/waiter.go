package transaction

import "github.com/deltaplane/deltaplane/core/workqueue"

// Waiter is somebody who waits for keys of one partition of a queue: a Get, or
// a Work stream. Its functions are called by the dispatcher and must not block.
type Waiter struct {
	Holder   string
	LeaseFor int64 // microseconds, zero for the queue's
	Credit   *Credit
	Own      *QueueCredit // credit for this queue alone; nil for none
	Single   bool         // one delivery is all it takes
	Once     bool         // it does not wait

	// Deliver hands over leases; false when nobody is there to take them.
	Deliver func(d *Dispatcher, leases []workqueue.Lease, now int64) bool
	// Finish is called when it left the line permanently: after its delivery, when
	// nothing more will come, or because of an error.
	Finish func(err error)

	// Rejoin puts it in line once more, when credit it lacked has come.
	Rejoin func()

	// Guarded by the dispatcher's mu.
	queued, inTransaction bool
	gone                  bool // withdrawn or finished
	leaving               bool // withdrawn while in a transaction
	final                 bool // what is ready now is the last of it
	reserved              int

	granted int // of the dispatcher's goroutine, during a transaction
}

// RejoinAll puts waiters in line again.
func RejoinAll(unblocked []*Waiter) {
	for _, t := range unblocked {
		t.Rejoin()
	}
}
