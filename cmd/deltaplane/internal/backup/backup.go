package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// plane are the services whose state is kept, with a time limit for each call.
type plane struct {
	reflector reflectorv1.ReflectorServiceClient
	index     indexv1.IndexServiceClient
	queue     queuev1.QueueAdminServiceClient
	timeout   time.Duration
}

// dial connects to all three services.
func dial(d *cli.DialFlags) (*plane, func(), error) {
	var open []io.Closer
	closeAll := func() {
		for _, c := range open {
			_ = c.Close()
		}
	}
	var conns []*cli.CalledConn
	for _, target := range []string{d.Reflector, d.Index, d.Queue} {
		conn, err := cli.Dial(target, d.Config)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		open, conns = append(open, conn), append(conns, conn)
	}
	return &plane{
		reflectorv1.NewReflectorServiceClient(conns[0]), indexv1.NewIndexServiceClient(conns[1]), queuev1.NewQueueAdminServiceClient(conns[2]), d.Timeout,
	}, closeAll, nil
}

// call does one call within the time limit.
func call[R, A any](ctx context.Context, p *plane, f func(context.Context, R) (A, error), r R) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return f(ctx, r)
}

// counted is how many of each there are.
type counted struct{ reflections, indexes, queues, keys int }

func (c counted) String() string {
	return fmt.Sprintf("%d reflections, %d indexes, %d queues, %d keys", c.reflections, c.indexes, c.queues, c.keys)
}

// NewBackup is the command "backup".
func NewBackup() *cobra.Command {
	var d cli.DialFlags
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Keep what is nowhere else in a file: added reflections, declared indexes, queues with their keys",
		Long: `Keep in a file what neither the API server nor a configuration has: reflections that were added,
indexes that were declared, and the queues with their configuration and their keys, each with its
priority, due time, retries, barrier, saved state, expectations and reason. "restore" puts it back
after NATS or Redis were lost.

The file is JSON, a line each, and ends with a checksum. It is written whole or not at all, and only
its owner may read it: saved state is between workers.

It is not of one instant. A key that is in its queue all the while is in the file; one that is
leased or settled meanwhile is in it as it was before or after, and one that is new may be missing.
Back-off ids are left out: their delays begin again.

It takes the rights to list reflections and indexes, and to list and administer queues.`,
		Example: `  deltaplane backup /var/backups/deltaplane.json`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			p, closeAll, err := dial(&d)
			if err != nil {
				return err
			}
			defer closeAll()
			var n counted
			err = replace(a[0], func(w io.Writer) (err error) {
				n, err = p.backup(cmd.Context(), w)
				return err
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", a[0], n)
			return err
		},
	}
	d.Register(cmd.Flags())
	return cmd
}

// replace writes a file that only its owner may read, whole or not at all.
func replace(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func (p *plane) backup(ctx context.Context, out io.Writer) (n counted, err error) {
	w, err := newWriter(out, header{Version: version, MadeAt: time.Now().UTC().Truncate(time.Second), Build: cli.BuildVersion()})
	if err != nil {
		return n, err
	}
	specs, err := p.reflections(ctx)
	if err != nil {
		return n, err
	}
	for _, spec := range specs {
		if err := w.record(spec, func(l *line, raw json.RawMessage) { l.Reflection = raw }); err != nil {
			return n, err
		}
	}
	indexes, err := p.indexes(ctx)
	if err != nil {
		return n, err
	}
	for _, x := range indexes {
		if x.GetDefinition() == nil {
			return n, fmt.Errorf("index %s of %s cannot be kept: %s", x.GetName(), x.GetDeclaredFor(), x.GetLastError())
		}
		x = &indexv1.Indexer{Name: x.GetName(), DeclaredFor: x.GetDeclaredFor(), Definition: x.GetDefinition()}
		if err := w.record(x, func(l *line, raw json.RawMessage) { l.Index = raw }); err != nil {
			return n, err
		}
	}
	n.reflections, n.indexes = len(specs), len(indexes)
	queues, err := call(ctx, p, calling(p.queue.ListQueues), &queuev1.ListQueuesRequest{})
	if err != nil {
		return n, err
	}
	for _, q := range queues.GetQueues() {
		kept := &queuev1.QueueStatus{Config: q.GetConfig(), Closed: q.GetClosed(), Paused: q.GetPaused()}
		if err := w.record(kept, func(l *line, raw json.RawMessage) { l.Queue = raw }); err != nil {
			return n, err
		}
		n.queues++
		err := p.keys(ctx, q.GetConfig().GetName(), func(it *queuev1.Item) error {
			n.keys++
			return w.record(it, func(l *line, raw json.RawMessage) { l.Key = raw })
		})
		if err != nil {
			return n, err
		}
	}
	return n, w.close()
}

// reflections are the specs that were added.
func (p *plane) reflections(ctx context.Context) ([]*reflectorv1.ReflectionSpec, error) {
	all, err := call(ctx, p, calling(p.reflector.ListReflections), &reflectorv1.ListReflectionsRequest{})
	if err != nil {
		return nil, err
	}
	if !all.GetAddedKnown() {
		return nil, errors.New("the reflector does not tell all reflections that were added: it began a moment ago, is an earlier build, or a later build added some")
	}
	return all.GetAdded(), nil
}

// indexes are those that were declared.
func (p *plane) indexes(ctx context.Context) ([]*indexv1.Indexer, error) {
	all, err := call(ctx, p, calling(p.index.ListIndexers), &indexv1.ListIndexersRequest{Collection: "*"})
	return all.GetIndexers(), err
}

// keys gives each key of a queue to f. What is its holder's or of the moment is left out.
func (p *plane) keys(ctx context.Context, queue string, f func(*queuev1.Item) error) error {
	r := &queuev1.ListItemsRequest{Queue: queue, WithState: true, PageSize: 1000}
	for {
		page, err := call(ctx, p, calling(p.queue.ListItems), r)
		if err != nil {
			return err
		}
		for _, it := range page.GetItems() {
			if it.GetStateBytes() > 0 && len(it.GetSavedState()) == 0 {
				return fmt.Errorf("the queue service does not tell the saved state of key %q of queue %s: it is an earlier build", it.GetKey(), queue)
			}
			it = proto.CloneOf(it)
			it.Holder, it.Deadline, it.StateBytes, it.LastHolders = "", nil, 0, nil
			if err := f(it); err != nil {
				return err
			}
		}
		if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
			return nil
		}
	}
}
