package metrics

import (
	"sync/atomic"
	"time"
)

// Activity is what a server did with a queue since a time. Series of many queues may be one; this
// is each queue's own.
type Activity struct {
	Since                     time.Time
	Adds, Leases, Settlements int64
	Waited, Worked            time.Duration // of all leases and of all settlements together
}

// activity counts towards an Activity.
type activity struct {
	since                     time.Time
	adds, leases, settlements atomic.Int64
	waited, worked            atomic.Int64 // microseconds
}

// Activity is what this server did with the queue by now.
func (l *Queue) Activity() Activity {
	d := &l.did
	span := func(n *atomic.Int64) time.Duration { return time.Duration(n.Load()) * time.Microsecond }
	return Activity{d.since, d.adds.Load(), d.leases.Load(), d.settlements.Load(), span(&d.waited), span(&d.worked)}
}
