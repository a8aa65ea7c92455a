package controllerruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/writeback"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// Options say how an operator works. Name must be set.
type Options struct {
	// Name is the operator's, shared by its replicas. The queue of a controller is
	// "<cluster>/<name>/<controller>".
	Name string
	// Cluster is that of the collections. Default "dev".
	Cluster string
	// Identity names this replica to people. Default: the host name.
	Identity string
	// Local has the cache keep a store of every type that is read, as controller-runtime does, and
	// LocalFor of these types. It takes Go index functions, and memory in every replica.
	Local    bool
	LocalFor []crclient.Object
	// Revision is another one whenever handlers, predicates or mappers are other ones: the first
	// leader of a revision hands them every object. Default: the revision of the source code that
	// the program was built of, if it knows that.
	Revision string
	// FeedLease is how long the feed's key is leased, at least 1 s: another replica takes over from
	// a leader that hangs after that time, and from one that dies after 1 s. Default 1.8 s.
	FeedLease time.Duration
	// Lease is how long a key is leased, 1 s to 1 h; it is extended while its reconcile runs.
	// Default: the queue's, 30 s.
	Lease time.Duration
	// Grace is how long reconciles may go on once the manager stops. Default 20 s.
	Grace time.Duration
	// Queue is how queues behave: partitions and durability. Its rate limiter
	// must not be set: that of the controller is taken over.
	Queue client.QueueConfig
	// OnError is called with what fails and is tried again: op is "feed", "add" or another call of
	// the queue, about names a collection or a key. It must be quick and safe for concurrent use.
	// Without it these failures go to Log, one of each op a minute.
	OnError func(op, about string, err error)
	// Log receives what goes wrong. Default: slog.Default().
	Log *slog.Logger
}

// Operator is one replica of an operator: what its manager's cache, client, queues and reconcilers
// have in common. It is safe for concurrent use.
type Operator struct {
	o     Options
	index *client.Index
	conn  grpc.ClientConnInterface // to the queue service; nil without one
	guard *writeback.Guard

	mu          sync.Mutex // guards what follows
	seen        client.Barrier
	fed         client.Barrier
	collections map[schema.GroupVersionResource]string // full names
	queues      map[string]keptQueue
	waiting     int                        // controllers that have not started
	fault       chan error                 // holds the first one that the manager has to end with
	lead        *lead                      // of the cache that has started
	said        map[string]*attempt.Report // by op
}

// keptQueue is what the operator needs to know of a controller's queue.
type keptQueue interface {
	Flush(ctx context.Context) error
	ShuttingDown() bool
}

// New returns an operator on connections to an index and a queue service, which the caller closes
// after the manager has stopped. It connects to nobody yet. Without a queue connection every
// replica hands all changes to its handlers, as with controller-runtime's cache, and queues are the
// manager's: leader election is needed then.
func New(index, queue grpc.ClientConnInterface, o Options) (*Operator, error) {
	if index == nil {
		return nil, errors.New("controllerruntime: no connection to an index is given")
	}
	if o.Name == "" {
		return nil, errors.New("controllerruntime: Options.Name is empty")
	}
	if o.FeedLease != 0 && o.FeedLease < time.Second {
		return nil, fmt.Errorf("controllerruntime: Options.FeedLease is %v, at least 1s is possible", o.FeedLease)
	}
	if o.Lease != 0 && (o.Lease < time.Second || o.Lease > time.Hour) {
		return nil, fmt.Errorf("controllerruntime: Options.Lease is %v, 1s to 1h is possible", o.Lease)
	}
	if o.Identity == "" {
		o.Identity, _ = os.Hostname() // people see that it has none
	}
	o.Cluster, o.FeedLease = cmp.Or(o.Cluster, "dev"), cmp.Or(o.FeedLease, 1800*time.Millisecond)
	o.Revision, o.Log = cmp.Or(o.Revision, builtOf()), cmp.Or(o.Log, slog.Default()) //nolint:forbidigo // as the client does
	of := client.NewIndex(index)
	return &Operator{
		o: o, index: of, conn: queue, guard: writeback.New(of), seen: client.Barrier{}, fed: client.Barrier{}, queues: map[string]keptQueue{},
		collections: map[schema.GroupVersionResource]string{},
		fault:       make(chan error, 1), said: map[string]*attempt.Report{},
	}, nil
}

// NewCache is for manager.Options.NewCache. Its caches answer Get and List from the index and keep
// nothing, but for the types that Options say are local. Handlers that are added to its informers
// run on the replica that leads the operator's feed, see [Everywhere].
func (o *Operator) NewCache(cfg *rest.Config, options cache.Options) (cache.Cache, error) {
	return newCache(o, cfg, options)
}

// fail has the manager end with an error: interfaces that have none to return call it.
func (o *Operator) fail(err error) {
	select {
	case o.fault <- err:
	default:
	}
}

func (o *Operator) report(op, about string, err error) {
	if o.o.OnError != nil {
		o.o.OnError(op, about, err)
		return
	}
	o.mu.Lock()
	if o.said[op] == nil {
		o.said[op] = &attempt.Report{}
	}
	due := o.said[op].Due("") // each of a busy operator's keys would be too much
	o.mu.Unlock()
	if !due {
		return
	}
	o.o.Log.Error("operator failed", slog.String("operator", o.o.Name), slog.String("op", op), slog.String("about", about), slog.Any("error", err))
}

// queueFailed reports what a queue could not do. One that cannot be made ends the manager.
func (o *Operator) queueFailed(name, op, key string, err error) {
	if e, ok := errors.AsType[*client.Error](err); ok && op == "configure" && (e.Code == codes.InvalidArgument || e.Code == codes.Unimplemented) {
		o.fail(fmt.Errorf("controllerruntime: queue of controller %q: %w", name, err))
		return
	}
	o.report(op, cmp.Or(key, name), err)
}

// queueName names the queue of a controller, or of the feed.
func (o *Operator) queueName(of string) string { return o.o.Cluster + "/" + o.o.Name + "/" + of }

// unstarted is how many controllers have no queue yet.
func (o *Operator) unstarted() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waiting
}

// started says that a controller that was waited for has its queue.
func (o *Operator) started() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting--; o.lead != nil {
		o.lead.wakeUp()
	}
}

// keep has the feed wait for what handlers add to a queue.
func (o *Operator) keep(name string, q keptQueue) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, twice := o.queues[name]; twice {
		return fmt.Errorf("controllerruntime: two controllers have the name %q", name)
	}
	o.queues[name] = q
	if o.lead != nil {
		o.lead.wakeUp()
	}
	return nil
}

func (o *Operator) keptQueues() []keptQueue {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Values(o.queues))
}

// shuttingDown reports whether one of the queues ignores what is added to it.
func (o *Operator) shuttingDown() bool {
	return slices.ContainsFunc(o.keptQueues(), keptQueue.ShuttingDown)
}

// barrier is what handlers have received so far: a key that one adds is about nothing newer.
func (o *Operator) barrier() client.Barrier {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := make(client.Barrier, len(o.fed))
	b.Merge(o.fed)
	return b
}

// hasSeen reports whether this process has seen states as new as a barrier.
func (o *Operator) hasSeen(b client.Barrier) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for collection, at := range b {
		if seen := o.seen[collection]; seen.IsZero() || seen.Compare(at) < 0 {
			return false
		}
	}
	return true
}

// feeds notes that handlers are about to receive a state.
func (o *Operator) feeds(collection string, at client.Revision) {
	if at.IsZero() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fed.Raise(collection, at)
	o.seen.Raise(collection, at)
}

// least is what a read must see: what this process has seen, and what the context's reconcile must.
func (o *Operator) least(ctx context.Context, collection string) client.Revision {
	o.mu.Lock()
	b := client.Barrier{collection: o.seen[collection]}
	o.mu.Unlock()
	if h := handOf(ctx); h != nil {
		b.Raise(collection, h.AtLeast(collection))
	}
	return b[collection]
}

// sees notes what a watch is about to tell, which may be in part: what begins later is no older.
func (o *Operator) sees(collection string, at client.Bounds) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, told := range [...]client.Revision{at.Revision, at.Upper} {
		if !told.IsZero() {
			o.seen.Raise(collection, told)
		}
	}
}

// saw notes an answer. The next read of this process is not older.
func (o *Operator) saw(ctx context.Context, collection string, at client.Bounds) {
	o.mu.Lock()
	if !at.Revision.IsZero() {
		o.seen.Raise(collection, at.Revision)
	}
	o.mu.Unlock()
	if h := handOf(ctx); h != nil {
		h.Saw(collection, at)
	}
}

// builtOf is the revision of the source code that the program was built of; empty when not known.
func builtOf() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	of := []string{info.Main.Version}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" || s.Key == "vcs.time" {
			of = append(of, s.Value)
		}
	}
	return strings.Join(of, " ")
}
