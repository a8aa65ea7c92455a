package read

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/stream/link"
)

const (
	// pullExpiry is how long a request for records waits at the server. About one takeover in 150
	// found the server with a record to send and a request to send it for, and silent until that
	// request ended.
	pullExpiry = 2 * time.Second
	// pullHeartbeat is how often the server answers a request that it has no record for. The library
	// requests again when nothing has come for twice as long.
	pullHeartbeat = pullExpiry / 2
	// mostPending is what the library keeps for a subscription; it drops what exceeds that.
	mostPending = nats.DefaultSubPendingBytesLimit
	// mostQueued is what has left the library and waits to be taken.
	mostQueued = 2 << 20
	// headerBytes is about what the headers of a received record take, as a map.
	headerBytes = 2 << 10
)

// deliveries are the messages of a pull consumer on their way to one goroutine, which takes all
// that have come at once. The library requests them, and counts as pending what is not in the queue
// yet.
type deliveries struct {
	ready chan struct{} // cap 1; there are messages
	full  chan struct{} // cap 1; the queue has had no room
	fault chan error    // cap 1; what is wrong with the consumer
	cc    jetstream.ConsumeContext
	// The queue has room while it holds fewer messages and bytes than these.
	mostMessages, mostBytes int

	left func(jetstream.Msg) // gets what nobody takes any more; nil drops it

	mu     sync.Mutex
	room   sync.Cond // the queue has room, or is closed
	queue  []jetstream.Msg
	bytes  int
	closed bool
}

// pullBytes is how many bytes may be requested in advance when want are asked for. The server sends
// nothing that a request has no room for, and the library requests half of them at a time: with
// less than two records of the largest size, requests often end by a record that uses them to the
// last, of which the library learns by a missed heartbeat if it was requesting.
func pullBytes(want, largest int) int {
	return max(min(max(want, 2*largest), mostPending), largest+link.HeaderRoom)
}

func newDeliveries(messages int, left func(jetstream.Msg)) *deliveries {
	d := &deliveries{
		ready: make(chan struct{}, 1), full: make(chan struct{}, 1), fault: make(chan error, 1),
		left: left, mostMessages: messages, mostBytes: mostQueued,
	}
	d.room.L = &d.mu
	return d
}

// deliver requests what a consumer has to send: up to bytes in advance, or up to messages if bytes
// is 0, as the library counts either bytes or messages. At most so many messages wait to be taken
// as well.
func deliver(cons jetstream.Consumer, messages, bytes int, left func(jetstream.Msg)) (*deliveries, error) {
	d := newDeliveries(messages, left)
	var bound jetstream.PullConsumeOpt = jetstream.PullMaxMessages(messages)
	if bytes > 0 {
		bound, d.mostBytes = jetstream.PullMaxBytes(bytes), min(bytes/8, mostQueued)
	}
	var err error
	d.cc, err = cons.Consume(d.put, bound, jetstream.PullExpiry(pullExpiry), jetstream.PullHeartbeat(pullHeartbeat),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { d.fail(err) }))
	return d, err
}

// fail notes what is wrong. A missed heartbeat gives way: behind another fault the library may have
// ended, and says nothing more.
func (d *deliveries) fail(err error) {
	if !errors.Is(err, jetstream.ErrNoHeartbeat) {
		select {
		case <-d.fault: //nolint:errcheck // it gives way
		default:
		}
	}
	select {
	case d.fault <- err:
	default:
	}
}

// put queues a message, and waits for room first: as long as it does the library requests nothing
// for it.
func (d *deliveries) put(m jetstream.Msg) {
	d.mu.Lock()
	for !d.closed && (len(d.queue) >= d.mostMessages || d.bytes >= d.mostBytes) {
		d.room.Wait()
	}
	closed := d.closed
	if !closed {
		d.queue = append(d.queue, m)
		d.bytes += size(m)
	}
	full := len(d.queue) >= d.mostMessages || d.bytes >= d.mostBytes
	d.mu.Unlock()
	if full {
		signal(d.full)
	}
	switch {
	case !closed:
		signal(d.ready)
	case d.left != nil:
		d.left(m)
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// gather waits for more to come, for as long as there is room for it.
func (d *deliveries) gather(ctx context.Context, wait time.Duration) {
	enough := time.NewTimer(wait)
	defer enough.Stop()
	select {
	case <-enough.C:
	case <-d.full:
	case <-ctx.Done():
	}
}

// take adds to batch what has come, up to most messages in all. If there is more, ready says so
// again.
func (d *deliveries) take(batch []jetstream.Msg, most int) []jetstream.Msg {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(d.queue), most-len(batch))
	batch = append(batch, d.queue[:n]...)
	for _, m := range d.queue[:n] {
		d.bytes -= size(m)
	}
	rest := copy(d.queue, d.queue[n:])
	clear(d.queue[rest:])
	if d.queue = d.queue[:rest]; rest > 0 {
		signal(d.ready)
	}
	d.room.Signal()
	return batch
}

// waiting reports whether something has come that was not taken.
func (d *deliveries) waiting() bool { return len(d.ready) > 0 }

// close ends the deliveries. What has come by then and nobody took has been given to left when it
// returns.
func (d *deliveries) close() {
	d.mu.Lock()
	d.closed = true
	queue := d.queue
	d.queue = nil
	d.mu.Unlock()
	d.room.Broadcast()
	if d.left == nil {
		d.cc.Stop()
		return
	}
	for _, m := range queue {
		d.left(m)
	}
	d.cc.Drain()
	<-d.cc.Closed()
}

// size is about what a message takes in memory.
func size(m jetstream.Msg) int { return headerBytes + len(m.Data()) }
