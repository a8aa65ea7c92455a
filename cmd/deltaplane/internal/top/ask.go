package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// Bounds of what one look asks about keys.
const (
	mostQueues = 10
	mostItems  = 200
	atOnce     = 8
)

// sample is what the parts said at one time. What did not answer is nil.
type sample struct {
	at          time.Time
	reflections *reflectorv1.ListReflectionsResponse
	collections *indexv1.ListCollectionsResponse
	queues      *queuev1.ListQueuesResponse
	held        []item
	backoffs    []item
	unlooked    int64 // held and delayed keys that were not looked at
	silent      []Silence
}

// item is a key and its queue.
type item struct {
	queue string
	*queuev1.Item
}

// parts are connections to the services.
type parts struct {
	flags                   *cli.DialFlags
	reflector, index, queue *grpc.ClientConn
}

// connect makes the connections; that nobody listens is found out by asking.
func connect(d *cli.DialFlags) (*parts, error) {
	p := &parts{flags: d}
	config := d.Config
	config.Extra = slices.Concat(config.Extra, []grpc.DialOption{grpc.WithDisableRetry()}) // the next look is near
	for _, one := range []struct {
		target string
		conn   **grpc.ClientConn
	}{{d.Reflector, &p.reflector}, {d.Index, &p.index}, {d.Queue, &p.queue}} {
		c, err := cli.Connect(one.target, config)
		if err != nil {
			p.close()
			return nil, err
		}
		*one.conn = c
	}
	return p, nil
}

func (p *parts) close() {
	for _, c := range []*grpc.ClientConn{p.reflector, p.index, p.queue} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// ask asks every part at the same time.
func (p *parts) ask(ctx context.Context) *sample {
	ctx, cancel := context.WithTimeout(ctx, p.flags.Timeout)
	defer cancel()
	s := &sample{}
	var mu sync.Mutex // of silent
	var all sync.WaitGroup
	part := func(name, address string, call func() error) {
		all.Go(func() {
			if err := guarded(call); err != nil {
				mu.Lock()
				defer mu.Unlock()
				s.silent = append(s.silent, p.silence(name, address, err))
			}
		})
	}
	part("reflector", p.flags.Reflector, func() (err error) {
		s.reflections, err = reflectorv1.NewReflectorServiceClient(p.reflector).ListReflections(ctx, &reflectorv1.ListReflectionsRequest{})
		return err
	})
	part("index", p.flags.Index, func() (err error) {
		s.collections, err = indexv1.NewIndexServiceClient(p.index).ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		return err
	})
	part("queue", p.flags.Queue, func() (err error) {
		admin := queuev1.NewQueueAdminServiceClient(p.queue)
		if s.queues, err = admin.ListQueues(ctx, &queuev1.ListQueuesRequest{Partial: true}); err != nil {
			return err
		}
		return s.keys(ctx, admin)
	})
	all.Wait()
	s.at = time.Now()
	slices.SortFunc(s.silent, func(a, b Silence) int { return cmp.Compare(a.Part, b.Part) })
	return s
}

// fault is what a call panicked with.
type fault struct{ value any }

func (f *fault) Error() string { return fmt.Sprintf("panic: %v", f.value) }

// guarded returns a panic of call as an error: in a goroutine it would end the process, and leave
// the terminal as the screen has it.
func guarded(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &fault{p}
		}
	}()
	return call()
}

func (p *parts) silence(name, address string, err error) Silence {
	why, _, _ := strings.Cut(cli.Message(err), "\n")
	word := "does not answer"
	switch rpc.Code(err) {
	case codes.DeadlineExceeded:
		why = fmt.Sprintf("nothing came within %v", p.flags.Timeout)
	case codes.PermissionDenied, codes.Unauthenticated:
		word = "refuses"
	}
	if _, panicked := errors.AsType[*fault](err); panicked {
		word = "is not understood"
	}
	return Silence{Part: name, Address: address, Why: word + ": " + why, err: err}
}

// keys reads the keys that are held and those in back-off, of the queues that have most of them, a
// few queues at a time. What is not there when ctx ends is not looked at.
func (s *sample) keys(ctx context.Context, admin queuev1.QueueAdminServiceClient) error {
	var mu sync.Mutex // of s
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, look := range []struct {
		count  func(*queuev1.Counts) int64
		states []queuev1.State
		into   *[]item
	}{
		{func(c *queuev1.Counts) int64 { return c.GetProcessing() + c.GetDirty() }, []queuev1.State{queuev1.State_STATE_PROCESSING, queuev1.State_STATE_DIRTY}, &s.held},
		{func(c *queuev1.Counts) int64 { return c.GetDelayed() }, []queuev1.State{queuev1.State_STATE_DELAYED}, &s.backoffs},
	} {
		queues := slices.Clone(s.queues.GetQueues())
		slices.SortStableFunc(queues, func(a, b *queuev1.QueueStatus) int {
			return cmp.Compare(look.count(b.GetCounts()), look.count(a.GetCounts()))
		})
		for i, q := range queues {
			name, left := q.GetConfig().GetName(), look.count(q.GetCounts())
			if left <= 0 {
				break
			}
			g.Go(func() error {
				var items []item
				var err error
				if i < mostQueues {
					err = guarded(func() (err error) {
						items, left, err = itemsOf(ctx, admin, name, look.states, left)
						return err
					})
				}
				mu.Lock()
				defer mu.Unlock()
				*look.into = append(*look.into, items...)
				s.unlooked += max(left, 0)
				return err
			})
		}
	}
	return g.Wait()
}

// itemsOf reads keys of a queue until it has as many as there are, and how many it has not seen.
func itemsOf(ctx context.Context, admin queuev1.QueueAdminServiceClient, queue string, states []queuev1.State, left int64) (items []item, unseen int64, err error) {
	for _, state := range states {
		if left <= 0 {
			break
		}
		page, err := admin.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queue, State: state, PageSize: mostItems, Partial: true})
		switch rpc.Code(err) {
		case codes.OK:
		case codes.NotFound: // it was removed meanwhile
			return items, 0, nil
		case codes.DeadlineExceeded:
			return items, left, nil
		default:
			return items, left, fmt.Errorf("keys of %s: %w", queue, err)
		}
		for _, it := range page.GetItems() {
			items = append(items, item{queue, it})
		}
		left -= int64(len(page.GetItems()))
	}
	return items, left, nil
}
