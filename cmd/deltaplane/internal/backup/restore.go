package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// calling is a unary call of a client without its options.
func calling[R, A any](f func(context.Context, R, ...grpc.CallOption) (A, error)) func(context.Context, R) (A, error) {
	return func(ctx context.Context, r R) (A, error) { return f(ctx, r) }
}

// retryEvery is the pause between attempts at what is not there yet.
const retryEvery = 500 * time.Millisecond

// NewRestore is the command "restore".
func NewRestore() *cobra.Command {
	var d cli.DialFlags
	var merge bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put back what a backup has: added reflections, declared indexes, queues with their keys",
		Long: `Put back what "backup" kept in a file. The whole file is read and checked before anything is changed.

Where a reflection was added, an index declared, or a queue holds keys, nothing is changed unless
--merge is given. What is there stays then: a reflection, an index or a queue of the same name keeps
its form, and a key what it has, but that the earlier due time and the larger number of retries
hold and barriers are merged. To restore twice changes nothing more. Keys that were leased wait.

Restore when reflectors, indexers and queue servers are ready, and before workers run: a key that is
leased is tried again for --wait, and named if it is leased still. Indexes wait as long for their
collections. What is refused of one record does not keep the others from being restored.

It takes the rights to list and create reflections and indexes, and to list and administer queues.`,
		Example: `  deltaplane restore /var/backups/deltaplane.json`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			head, err := read(a[0], handler{})
			if err != nil {
				return err
			}
			p, closeAll, err := dial(&d)
			if err != nil {
				return err
			}
			defer closeAll()
			r := &restore{plane: p, queues: map[string]bool{}}
			if err := r.look(cmd.Context(), merge); err != nil {
				return err
			}
			r.until = time.Now().Add(wait)
			if err := r.run(cmd.Context(), a[0]); err != nil {
				return errors.Join(append([]error{err}, r.faults...)...)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "of %s: %s\n", head.MadeAt.Format(time.RFC3339), r.done)
			return errors.Join(r.faults...)
		},
	}
	d.Register(cmd.Flags())
	cmd.Flags().BoolVar(&merge, "merge", false, "restore although something is there, which stays")
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Minute, "how long to wait for collections of indexes, and for leased keys")
	return cmd
}

// restore puts a file back. What is refused of one record does not keep the others from it.
type restore struct {
	*plane
	queues map[string]bool // that are there
	until  time.Time
	done   counted
	faults []error

	queue   string // of the keys that follow
	pending []*queuev1.Item
	bytes   int
	indexes []*indexv1.Indexer // declared at the end: their collections come with the reflections
}

// errNotEmpty is why nothing is restored without --merge.
var errNotEmpty = fmt.Errorf("%w: something is there already, and --merge was not given", cli.ErrRefused)

// look learns what is there.
func (r *restore) look(ctx context.Context, merge bool) error {
	specs, err := r.reflections(ctx)
	if err != nil {
		return err
	}
	indexes, err := r.plane.indexes(ctx)
	if err != nil {
		return err
	}
	all, err := call(ctx, r.plane, calling(r.plane.queue.ListQueues), &queuev1.ListQueuesRequest{})
	if err != nil {
		return err
	}
	var found []error
	if !merge && len(specs) > 0 {
		found = append(found, fmt.Errorf("%d reflections were added", len(specs)))
	}
	if !merge && len(indexes) > 0 {
		found = append(found, fmt.Errorf("%d indexes are declared", len(indexes)))
	}
	for _, q := range all.GetQueues() {
		c, name := q.GetCounts(), q.GetConfig().GetName()
		if merge {
			r.queues[name] = true
		} else if n := c.GetReady() + c.GetDelayed() + c.GetProcessing() + c.GetDead(); n > 0 {
			found = append(found, fmt.Errorf("queue %s holds %d keys", name, n))
		}
	}
	if len(found) > 0 {
		return errors.Join(append([]error{errNotEmpty}, found...)...)
	}
	return nil
}

func (r *restore) run(ctx context.Context, path string) error {
	_, err := read(path, handler{
		reflection: func(s *reflectorv1.ReflectionSpec) error { return r.reflection(ctx, s) },
		index:      func(x *indexv1.Indexer) error { r.indexes = append(r.indexes, x); return nil },
		queue:      func(q *queuev1.QueueStatus) error { return r.configure(ctx, q) },
		key:        func(it *queuev1.Item) error { return r.key(ctx, it) },
	})
	if err == nil {
		err = r.flush(ctx)
	}
	for _, x := range r.indexes {
		if err == nil {
			err = r.index(ctx, x)
		}
	}
	return err
}

// refused keeps the error of one record, and returns those that concern all.
func (r *restore) refused(what string, err error) error {
	switch rpc.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.PermissionDenied, codes.Unauthenticated, codes.Unknown, codes.Unimplemented:
		return fmt.Errorf("%s: %w", what, err)
	}
	r.faults = append(r.faults, fmt.Errorf("%s: %w", what, err))
	return nil
}

func (r *restore) reflection(ctx context.Context, spec *reflectorv1.ReflectionSpec) error {
	_, err := call(ctx, r.plane, calling(r.reflector.AddReflection), &reflectorv1.AddReflectionRequest{Spec: spec})
	if err != nil {
		return r.refused(fmt.Sprintf("reflection of %s in %s", spec.GetResource(), spec.GetCluster()), err)
	}
	r.done.reflections++
	return nil
}

func (r *restore) index(ctx context.Context, x *indexv1.Indexer) error {
	req := &indexv1.AddIndexersRequest{Collection: x.GetDeclaredFor(), Indexers: []*indexv1.IndexerDefinition{x.GetDefinition()}}
	for {
		_, err := call(ctx, r.plane, calling(r.plane.index.AddIndexers), req)
		if err == nil {
			r.done.indexes++
			return nil
		}
		if rpc.Code(err) != codes.NotFound || !r.again(ctx) {
			return r.refused(fmt.Sprintf("index %s of %s", x.GetName(), x.GetDeclaredFor()), err)
		}
	}
}

// again waits a moment, and reports whether there is time for another attempt.
func (r *restore) again(ctx context.Context) bool {
	if time.Now().After(r.until) {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(retryEvery):
		return true
	}
}

func (r *restore) configure(ctx context.Context, q *queuev1.QueueStatus) error {
	if err := r.flush(ctx); err != nil {
		return err
	}
	r.queue = q.GetConfig().GetName()
	if r.queues[r.queue] {
		r.done.queues++
		return nil
	}
	_, err := call(ctx, r.plane, calling(r.plane.queue.ConfigureQueue), &queuev1.ConfigureQueueRequest{Config: q.GetConfig()})
	if err == nil && q.GetPaused() {
		_, err = call(ctx, r.plane, calling(r.plane.queue.PauseQueue), &queuev1.PauseQueueRequest{Queue: r.queue})
	}
	if err == nil && q.GetClosed() {
		_, err = call(ctx, r.plane, calling(r.plane.queue.CloseQueue), &queuev1.CloseQueueRequest{Queue: r.queue})
	}
	if err != nil {
		return r.refused("queue "+r.queue, err)
	}
	r.done.queues++
	return nil
}

// What one request may hold: the server takes 1,000 keys, and 2 MiB.
const (
	maxKeys  = 1000
	maxBytes = 1 << 20
)

func (r *restore) key(ctx context.Context, it *queuev1.Item) error {
	r.pending, r.bytes = append(r.pending, it), r.bytes+proto.Size(it)
	if len(r.pending) < maxKeys && r.bytes < maxBytes {
		return nil
	}
	return r.flush(ctx)
}

// flush puts the keys back that were gathered. Those that are leased are tried again.
func (r *restore) flush(ctx context.Context) error {
	for len(r.pending) > 0 {
		what := "keys of queue " + r.queue
		answer, err := call(ctx, r.plane, calling(r.plane.queue.RestoreItems), &queuev1.RestoreItemsRequest{Queue: r.queue, Items: r.pending})
		if err != nil {
			first := r.pending[0].GetKey()
			r.pending, r.bytes = nil, 0
			return r.refused(fmt.Sprintf("%s from %q on", what, first), err)
		}
		held := map[string]bool{}
		for _, x := range answer.GetResults() {
			if x.GetStatus() == queuev1.ItemStatus_ITEM_STATUS_HELD {
				held[x.GetKey()] = true
			}
		}
		all := len(r.pending)
		r.pending = slices.DeleteFunc(r.pending, func(it *queuev1.Item) bool { return !held[it.GetKey()] })
		r.done.keys += all - len(r.pending)
		if len(r.pending) > 0 && !r.again(ctx) {
			for _, it := range r.pending {
				r.faults = append(r.faults, fmt.Errorf("%w: key %q of queue %s is leased, and was not restored", cli.ErrRefused, it.GetKey(), r.queue))
			}
			r.pending = nil
		}
	}
	r.bytes = 0
	return nil
}
