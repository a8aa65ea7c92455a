package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/deltalog"
)

// Options say how a [Controller] works. Name must be set.
type Options struct {
	// Name is the controller's, shared by its replicas.
	Name string
	// Cluster is that of the collections named without one; with Name it is the name of the
	// queue, "dev/owner-notes". Default "dev".
	Cluster string
	// Identity names this replica to people. Default: the host name.
	Identity string
	// Kind is the kind of For's objects, as owner references name it. Default: the kind whose
	// plural the collection's resource is, as kubectl guesses it.
	Kind string
	// ClusterScoped says that For's objects have no namespace.
	ClusterScoped bool
	// Concurrency is how many keys this replica reconciles at once. Default 8.
	Concurrency int
	// Lease is how long a key is leased, 1 s to 1 h; it is extended while the reconcile runs.
	// Default: the queue's, 30 s.
	Lease time.Duration
	// FeedLease is how long the feed's key is leased, at least 1 s: another replica takes over
	// from a leader that hangs after that time, and from one that dies after 1 s. Where
	// replicas or the queue often stand still for as long, a longer one makes the leadership
	// change less often, which costs repeated keys. Default 1.8 s.
	FeedLease time.Duration
	// Timeout bounds one reconcile. Default 5 min.
	Timeout time.Duration
	// Grace is how long reconciles may go on once Run's context has ended. Default 20 s.
	Grace time.Duration
	// Resync is the time between two rounds over every key, −1 for none. Default 10 h.
	Resync time.Duration
	// Check is how often each replica makes sure that somebody may lead the feed, and that the
	// queue's store lost nothing. Default 5 s.
	Check time.Duration
	// StartTimeout is how long a collection may be one that no index serves, before Run fails:
	// services may start in any order. Default 30 s.
	StartTimeout time.Duration
	// Queue is how the queue behaves: its back-off, partitions and durability.
	Queue client.QueueConfig
	// Deltas, where set, is the delta log: For and Owns then follow it in place of watches of the
	// index, where they have no [Selection]. What is promised is the same. All replicas should agree,
	// since a leader of the other kind reads every collection from its state. The caller closes it
	// after Run.
	Deltas *deltalog.Conn
	// Live GETs a path of a cluster's API server, "/api/v1/namespaces/shop/pods?labelSelector=app",
	// and returns the body of the answer, which must be JSON. With client-go it is
	// rest.Get().RequestURI(path).DoRaw(ctx). The paths are those of lists, of which the metadata
	// is looked at. [Controller.WroteUnversioned] and [Controller.DeleteCollection] need it.
	Live func(ctx context.Context, cluster, path string) ([]byte, error)
	// Log receives the events, and failures of connections. Default: slog.Default().
	Log *slog.Logger
	// Tracer makes spans of changes that become keys, of reconciles and of their writes by
	// [Controller.Transport], in the trace of what caused them where that is recorded; see
	// [client.WorkerConfig]. Default: none.
	Tracer trace.TracerProvider
	// Metrics is where the controller's metrics are registered. Default: nowhere.
	Metrics prometheus.Registerer
	// OnEvent is called with every event. It must be quick and safe for concurrent use.
	OnEvent func(Event)
}

func (o Options) withDefaults() Options {
	o.Cluster = cmp.Or(o.Cluster, "dev")
	o.Concurrency = cmp.Or(o.Concurrency, 8)
	o.FeedLease = cmp.Or(o.FeedLease, 1800*time.Millisecond)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Minute)
	o.Grace = cmp.Or(o.Grace, 20*time.Second)
	o.Resync = cmp.Or(o.Resync, 10*time.Hour)
	o.Check = cmp.Or(o.Check, 5*time.Second)
	o.StartTimeout = cmp.Or(o.StartTimeout, 30*time.Second)
	o.Queue.Lease = cmp.Or(o.Queue.Lease, o.Lease)
	if o.Log == nil {
		o.Log = slog.Default() //nolint:forbidigo // a library's user finds out what fails without being asked for a logger
	}
	o.Log = o.Log.With(slog.String("controller", o.Name))
	if o.Identity == "" {
		o.Identity, _ = os.Hostname()
		o.Identity = cmp.Or(o.Identity, "controller")
	}
	return o
}

func (o Options) validate() error {
	var faults []error
	fault := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("controller: "+format, args...))
		}
	}
	fault(o.Name != "", "name is empty")
	fault(o.Concurrency > 0 && o.Concurrency <= 10_000, "concurrency %d is not within 1 and 10000", o.Concurrency)
	fault(o.Lease == 0 || o.Lease >= time.Second && o.Lease <= time.Hour, "lease %v is not within 1s and 1h", o.Lease)
	fault(o.FeedLease >= time.Second && o.FeedLease <= time.Hour, "feed lease %v is not within 1s and 1h", o.FeedLease)
	fault(o.Timeout > 0, "timeout %v is not above zero", o.Timeout)
	fault(o.Grace > 0, "grace %v is not above zero", o.Grace)
	fault(o.Check > 0, "check %v is not above zero", o.Check)
	fault(o.StartTimeout > 0, "start timeout %v is not above zero", o.StartTimeout)
	return errors.Join(faults...)
}
