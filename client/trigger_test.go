package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

var (
	jobs = delta.Collection{Cluster: "dev", Group: "batch", Version: "v1", Resource: "jobs"}
	pods = delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
)

// ledger is a queue service that writes down what is added.
type ledger struct {
	queuev1.UnimplementedQueueServiceServer
	queuev1.UnimplementedQueueAdminServiceServer
	mu         sync.Mutex
	generation string
	missing    bool // until configured
	refuse     error
	added      []*queuev1.AddItem
	delayed    []string
	configured int
}

func (l *ledger) Add(_ context.Context, req *queuev1.AddRequest) (*queuev1.AddResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missing {
		return nil, rpc.Status(errMissing, rules)
	}
	if l.refuse != nil {
		return nil, rpc.Status(l.refuse, rules)
	}
	l.added = append(l.added, req.GetItems()...)
	return &queuev1.AddResponse{Generation: l.generation}, nil
}

func (l *ledger) AddAfter(_ context.Context, req *queuev1.AddAfterRequest) (*queuev1.AddAfterResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delayed = append(l.delayed, fmt.Sprintf("%s+%s", req.GetItems()[0].GetKey(), req.GetDelay().AsDuration()))
	return &queuev1.AddAfterResponse{Generation: l.generation}, nil
}

func (l *ledger) ConfigureQueue(_ context.Context, req *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missing = false
	l.configured++
	return &queuev1.ConfigureQueueResponse{Config: req.GetConfig(), Generation: l.generation}, nil
}

func (l *ledger) ListQueues(context.Context, *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &queuev1.ListQueuesResponse{Generation: l.generation}, nil
}

func (l *ledger) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// take returns the keys added so far, and forgets them.
func (l *ledger) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var keys []string
	for _, item := range l.added {
		keys = append(keys, item.GetKey())
	}
	l.added = nil
	slices.Sort(keys)
	return keys
}

var (
	errMissing = errors.New("no such queue")
	errClosed  = errors.New("closed")
	errUnready = errors.New("not synced")
	rules      = []rpc.Rule{
		{Is: errMissing, Code: codes.NotFound, Reason: "QUEUE_NOT_FOUND"},
		{Is: errClosed, Code: codes.FailedPrecondition, Reason: "QUEUE_CLOSED"},
		{Is: errUnready, Code: codes.Unavailable, Reason: "COLLECTION_NOT_SYNCED"},
	}
)

// memory is a client.Memory.
type memory struct {
	mu sync.Mutex
	m  map[string]string
}

func (m *memory) Load(_ context.Context, name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.m[name], nil
}

func (m *memory) Save(_ context.Context, name, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.m[name] = value
	return nil
}

func (m *memory) remembered() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.m["job"]
}

// quiet is a log on which nothing happens.
type quiet struct{}

func (quiet) Consume(ctx context.Context, _ func(context.Context, client.Batch) error) error {
	<-ctx.Done()
	return nil
}

type triggerBench struct {
	*ledger
	*shelf
	*memory
	t *client.Trigger
}

// twoJobs is an index with two jobs, and a pod of a third that is gone.
func twoJobs(req *indexv1.ListRequest) (*indexv1.ListResponse, error) {
	rev := &deltav1.Revision{Epoch: 3, ResourceVersion: "50"}
	if req.GetCollection() == pods.String() {
		return &indexv1.ListResponse{Revision: rev, Objects: []*indexv1.Object{{Key: "ns/p", Payload: []byte(
			`{"metadata":{"name":"p","labels":{"node":"n1"},"ownerReferences":[{"kind":"Job","name":"gone","uid":"u"},{"kind":"Other","name":"x"}]}}`)}}}, nil
	}
	if req.GetPageToken() == "" {
		return &indexv1.ListResponse{Revision: rev, Objects: []*indexv1.Object{{Key: "ns/a"}}, NextPageToken: "t"}, nil
	}
	return &indexv1.ListResponse{Revision: rev, Objects: []*indexv1.Object{{Key: "ns/b"}}}, nil
}

func newTrigger(t *testing.T, mod func(*client.TriggerConfig)) (*triggerBench, func()) {
	t.Helper()
	b := &triggerBench{ledger: &ledger{generation: "g1"}, shelf: &shelf{list: twoJobs}, memory: &memory{m: map[string]string{}}}
	conn, stop := serve(t, func(r grpc.ServiceRegistrar) {
		queuev1.RegisterQueueServiceServer(r, b.ledger)
		queuev1.RegisterQueueAdminServiceServer(r, b.ledger)
		indexv1.RegisterIndexServiceServer(r, b.shelf)
	})
	cfg := client.TriggerConfig{Name: "job", Primary: jobs, Others: map[delta.Collection]client.Mapper{pods: client.OwnersOf("Job")}}
	if mod != nil {
		mod(&cfg)
	}
	var err error
	b.t, err = client.NewTrigger(client.NewQueue(conn, "dev/job", ""), client.NewIndex(conn), quiet{}, b.memory, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b, stop
}

func record(col delta.Collection, key, rv string, mod func(*delta.Record)) delta.Record {
	r := delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Collection: col, Key: delta.Key(key), RV: rv, Epoch: 3}
	if mod != nil {
		mod(&r)
	}
	return r
}

func ownedBy(names ...string) func(*delta.Record) {
	return func(r *delta.Record) {
		for _, name := range names {
			r.Owners = append(r.Owners, delta.Owner{Kind: "Job", Name: name})
		}
		r.Owners = append(r.Owners, delta.Owner{Kind: "ReplicaSet", Name: "not-this"})
		r.Trace = "trace-" + r.RV
	}
}

func TestARecordsKeysAreAddedBehindTheirBarrier(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, stop := newTrigger(t, nil)
		defer stop()
		err := b.t.Handle(t.Context(), client.Batch{Collection: pods, Records: []delta.Record{
			record(pods, "ns/p1", "9", ownedBy("a")),
			record(pods, "ns/p2", "10", ownedBy("a", "b")),
			record(pods, "other/p3", "8", ownedBy("a")),
			{Kind: delta.KindProgress, Epoch: 3},
		}})
		if err != nil {
			t.Fatal(err)
		}
		barrier := func(rv string) []*deltav1.CollectionRevision {
			return []*deltav1.CollectionRevision{{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: rv}}}
		}
		want := []*queuev1.AddItem{
			{Key: "ns/a", Barrier: barrier("10"), Traceparent: "trace-10"},
			{Key: "ns/b", Barrier: barrier("10"), Traceparent: "trace-10"},
			{Key: "other/a", Barrier: barrier("8"), Traceparent: "trace-8"},
		}
		if diff := cmp.Diff(want, b.added, protocmp.Transform()); diff != "" {
			t.Errorf("added (-want +got)\n%s", diff)
		}
	})
}

func TestARecordIsNotDoneBeforeItsAddIsAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, stop := newTrigger(t, nil)
		defer stop()
		b.set(func() { b.refuse = errClosed })
		batch := client.Batch{Collection: jobs, Records: []delta.Record{record(jobs, "ns/a", "1", nil)}}
		if err := b.t.Handle(t.Context(), batch); !errors.Is(err, client.ErrQueueClosed) {
			t.Errorf("Handle = %v, want ErrQueueClosed", err)
		}
		b.set(func() { b.refuse = nil })
		if err := b.t.Handle(t.Context(), batch); err != nil {
			t.Error(err)
		}
		if got := b.take(); !slices.Equal(got, []string{"ns/a"}) {
			t.Errorf("added %v", got)
		}
	})
}

func TestAGapOrAnOverflowAddsEveryKeyAlsoOfOwnersThatAreGone(t *testing.T) {
	t.Parallel()
	every := []string{"ns/a", "ns/b", "ns/gone"}
	for name, batch := range map[string]client.Batch{
		"gap":      {Collection: jobs, Gap: "new_epoch"},
		"overflow": {Collection: pods, Records: []delta.Record{record(pods, "ns/p", "1", func(r *delta.Record) { r.Overflow = true })}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, stop := newTrigger(t, nil)
				defer stop()
				if err := b.t.Handle(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
				if got := b.take(); !slices.Equal(got, every) {
					t.Errorf("added %v, want %v", got, every)
				}
			})
		})
	}
}

func TestAGapWaitsForTheIndex(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, stop := newTrigger(t, nil)
		defer stop()
		b.shelf.list = func(*indexv1.ListRequest) (*indexv1.ListResponse, error) { return nil, rpc.Status(errUnready, rules) }
		err := b.t.Handle(t.Context(), client.Batch{Collection: jobs, Gap: "new_consumer"})
		if !errors.Is(err, client.ErrNotSynced) {
			t.Errorf("Handle = %v, want ErrNotSynced, so that the batch comes again", err)
		}
	})
}

func TestARoundReadsNoIndexThatIsBehindWhatTheQueueWasTold(t *testing.T) {
	t.Parallel()
	b, stop := newTrigger(t, nil)
	defer stop()
	asked := map[string]client.Revision{}
	b.shelf.mu.Lock()
	b.shelf.list = func(req *indexv1.ListRequest) (*indexv1.ListResponse, error) {
		at := req.GetConsistency().GetAtLeast()
		asked[req.GetCollection()] = client.Revision{Epoch: at.GetEpoch(), RV: at.GetResourceVersion()}
		return twoJobs(req)
	}
	b.shelf.mu.Unlock()
	batch := client.Batch{Collection: jobs, Records: []delta.Record{record(jobs, "ns/a", "9", nil), record(jobs, "ns/b", "12", nil), record(jobs, "ns/c", "11", nil)}}
	if err := b.t.Handle(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if err := b.t.Sweep(t.Context(), client.SweepGeneration); err != nil {
		t.Fatal(err)
	}
	want := map[string]client.Revision{jobs.String(): {Epoch: batch.Records[1].Epoch, RV: "12"}, pods.String(): {}}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("read at least (-want +got)\n%s", diff)
	}
}

func TestANewGenerationAddsEveryKeyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, stop := newTrigger(t, func(c *client.TriggerConfig) { c.Resync = time.Hour })
		defer stop()
		if b.t.Ready() == nil {
			t.Error("ready before it began")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.t.Run(ctx) }()
		every := []string{"ns/a", "ns/b", "ns/gone"}

		time.Sleep(time.Minute) // the first start is a new generation; asking again is not
		if got := b.take(); !slices.Equal(got, every) {
			t.Errorf("at the first start added %v, want %v", got, every)
		}
		if err := b.t.Ready(); err != nil {
			t.Errorf("Ready() = %v", err)
		}
		if got := b.remembered(); got != "g1" {
			t.Errorf("remembers %q, want g1", got)
		}

		b.set(func() { b.generation, b.missing = "g2", true }) // the store was lost
		err := b.t.Handle(ctx, client.Batch{Collection: jobs, Records: []delta.Record{record(jobs, "ns/a", "60", nil)}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got, want := b.take(), append([]string{"ns/a"}, every...); !slices.Equal(got, want) {
			t.Errorf("after the loss added %v, want %v", got, want)
		}
		b.set(func() {
			if b.configured < 2 || b.delayed[len(b.delayed)-1] != "@resync+1h0m0s" {
				t.Errorf("configured %d times, delayed %v: want the queue and the resync key made again", b.configured, b.delayed)
			}
		})

		b.set(func() { b.generation = "g3" }) // nobody adds: it is noticed all the same
		time.Sleep(time.Minute)
		if got := b.take(); !slices.Equal(got, every) {
			t.Errorf("after a silent change added %v, want %v", got, every)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

func TestAKnownGenerationAddsNothingAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, stop := newTrigger(t, nil)
		defer stop()
		b.memory.m["job"] = "g1"
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.t.Run(ctx) }()
		time.Sleep(time.Minute)
		if got := b.take(); got != nil {
			t.Errorf("added %v, want nothing", got)
		}
		if err := b.t.Ready(); err != nil {
			t.Errorf("Ready() = %v", err)
		}
		cancel()
		<-done
	})
}

func TestAGenerationIsRememberedOnlyWhenEveryKeyWasAdded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, stop := newTrigger(t, nil)
		defer stop()
		b.set(func() { b.refuse = errClosed })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.t.Run(ctx) }()
		time.Sleep(time.Minute)
		if got := b.remembered(); got != "" {
			t.Errorf("remembers %q though nothing could be added", got)
		}
		if err := b.t.Ready(); !errors.Is(err, client.ErrQueueClosed) {
			t.Errorf("Ready() = %v, want why", err)
		}
		b.set(func() { b.refuse = nil })
		time.Sleep(time.Minute)
		if got := b.remembered(); got != "g1" {
			t.Errorf("remembers %q, want g1", got)
		}
		cancel()
		<-done
	})
}

func TestADelayIsShorterByWhatItsRecordsWereGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		delays := map[string]time.Duration{"ns/long": time.Second, "ns/short": 50 * time.Millisecond}
		b, stop := newTrigger(t, func(c *client.TriggerConfig) {
			c.Others[pods] = client.Self()
			c.Delay = func(r *delta.Record) time.Duration { return delays[string(r.Key)] }
			c.Gather = map[delta.Collection]time.Duration{pods: 100 * time.Millisecond}
		})
		defer stop()
		for _, col := range []delta.Collection{pods, jobs} {
			for _, key := range []string{"ns/long", "ns/short"} {
				if err := b.t.Handle(t.Context(), client.Batch{Collection: col, Records: []delta.Record{record(col, key, "9", nil)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if want := []string{"ns/long+900ms", "ns/long+1s", "ns/short+50ms"}; !slices.Equal(b.delayed, want) {
			t.Errorf("delayed %v, want %v", b.delayed, want)
		}
		if got := b.take(); !slices.Equal(got, []string{"ns/short"}) {
			t.Errorf("added %v at once", got)
		}
	})
}

func TestTheResyncIsADelayedKeyOfTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, stop := newTrigger(t, func(c *client.TriggerConfig) { c.Resync = time.Hour })
		defer stop()
		var others []string
		rec := b.t.Wrap(client.ReconcilerFunc(func(_ context.Context, item client.Item) (client.Result, error) {
			others = append(others, item.Key)
			return client.Result{}, nil
		}))
		res, err := rec.Reconcile(t.Context(), client.Item{Key: client.ResyncKey})
		if err != nil || res.After < time.Hour || res.After > 66*time.Minute {
			t.Errorf("resync = %+v, %v; want it again in an hour", res, err)
		}
		if got := b.take(); !slices.Equal(got, []string{"ns/a", "ns/b", "ns/gone"}) {
			t.Errorf("added %v", got)
		}
		if _, err := rec.Reconcile(t.Context(), client.Item{Key: "ns/a"}); err != nil || !slices.Equal(others, []string{"ns/a"}) {
			t.Errorf("other keys: %v, %v", others, err)
		}
	})
}

func TestMappers(t *testing.T) {
	t.Parallel()
	r := record(pods, "ns/p", "1", func(r *delta.Record) {
		r.Owners = []delta.Owner{{Kind: "Job", Name: "now"}, {Kind: "Job", Name: "before"}, {Kind: "Node", Name: "n"}}
		r.Hints = map[string][]string{"node": {"n1", "n0"}}
		r.Labels = map[string][]string{"app": {"web", ""}}
	})
	full := r
	full.Overflow = true
	for name, c := range map[string]struct {
		m    client.Mapper
		want []string
		all  bool // with an overflow
	}{
		"self":   {client.Self(), []string{"ns/p"}, false},
		"owners": {client.OwnersOf("Job"), []string{"ns/now", "ns/before"}, true},
		"hint":   {client.Hint("node"), []string{"n1", "n0"}, true},
	} {
		got, all := c.m(&r)
		if !slices.Equal(got, c.want) || all {
			t.Errorf("%s: %v, %v; want %v", name, got, all, c.want)
		}
		if _, all := c.m(&full); all != c.all {
			t.Errorf("%s: overflow says all = %v, want %v", name, all, c.all)
		}
	}
}

func TestTriggerConfigFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := client.NewTrigger(nil, nil, nil, nil, client.TriggerConfig{
		Others: map[delta.Collection]client.Mapper{pods: nil}, Gather: map[delta.Collection]time.Duration{jobs: 1100 * time.Millisecond},
	})
	for _, want := range []string{"name is empty", "primary collection", "dev/pods.v1 has no mapper", "gather 1.1s of collection dev/jobs.v1.batch"} {
		if err == nil || !contains(err, want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}
