package transaction

import (
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
)

// auditEvery is how often a transaction of a partition in use also looks over some of
// its keys for such as are held without a deadline, which nothing would end: 256
// keys, which take Redis 0.4 ms; eight times as many while the numbers of held
// keys and of deadlines differ.
const auditEvery = 10 * time.Second

// audit puts an audit into the next transaction when it is time for one. A partition
// that holds nothing is given no transaction for it.
func (d *Dispatcher) audit() {
	if time.Since(d.audited) < auditEvery {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.holds && len(d.pending) == 0 {
		return
	}
	d.audited = time.Now()
	d.pending = append(d.pending, &Call{Ops: []workqueue.Op{{Kind: workqueue.OpAudit, Count: d.auditAt}}, Done: d.wasAudited})
	d.waiting++
}

// wasAudited tells of what an audit found.
func (d *Dispatcher) wasAudited(c *Call) {
	if c.Err != nil {
		return // the next one looks at the same keys
	}
	r := c.Reply(0)
	d.auditAt = int(r.Next)
	if r.Count == 0 {
		return
	}
	metrics.Count(d.Metrics.Repaired, r.Count)
	d.queues.Log.Warn("keys were held without a lease; each got one, and is handed out again when it ends unsettled",
		slog.String(telemetry.KeyQueue, d.Name), slog.Int(telemetry.KeyCount, r.Count), slog.Duration(telemetry.KeyAfter, d.Queue.Stored.Config().MaxLease))
}

// auditIn is how long until the next audit, given what a transaction left held.
func (d *Dispatcher) auditIn(held int) time.Duration {
	if d.holds = held != 0; !d.holds {
		return time.Hour
	}
	return max(auditEvery-time.Since(d.audited), 0)
}
