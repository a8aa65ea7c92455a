package indexer_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// fleetOf is several replicas behind one name, each always at its own address.
type fleetOf struct {
	w       *world
	dirs    []string
	addrs   []string
	running []*replica
	client  indexv1.IndexServiceClient
	conn    *grpc.ClientConn
}

func (w *world) replicas(t *testing.T, n int) *fleetOf {
	t.Helper()
	f := &fleetOf{w: w, running: make([]*replica, n), addrs: make([]string, n)}
	var at []resolver.Address
	for i := range n {
		f.dirs = append(f.dirs, t.TempDir())
		f.begin(t, i)
		w.caughtUp(t, f.running[i])
		f.running[i].healthy(t)
		at = append(at, resolver.Address{Addr: f.running[i].addr})
	}
	names := manual.NewBuilderWithScheme("replicas")
	names.InitialState(resolver.State{Addresses: at})
	conn, err := rpc.Dial("replicas:///index", rpc.DialConfig{Extra: []grpc.DialOption{grpc.WithResolvers(names)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	f.conn, f.client = conn, indexv1.NewIndexServiceClient(conn)
	return f
}

// healthy waits until the replica says so: what it has caught up with, its health
// tells a little later, and until then nobody is sent there.
func (r *replica) healthy(t *testing.T) {
	t.Helper()
	health := healthpb.NewHealthClient(connect(t, r.addr))
	eventually(t, func() string {
		resp, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: indexv1.IndexService_ServiceDesc.ServiceName})
		if err != nil {
			return err.Error()
		}
		if resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			return resp.GetStatus().String()
		}
		return ""
	})
}

func (f *fleetOf) begin(t *testing.T, i int) {
	f.running[i] = f.w.index(t, func(c *indexer.Config) {
		keeping(f.dirs[i])(c)
		c.Replica = fmt.Sprint("replica-", i)
		c.RPC = rpc.ServerConfig{Listen: f.addrs[i], DrainGrace: 150 * time.Millisecond}
	})
	f.addrs[i] = f.running[i].addr
}

func TestReplicasBehindOneNameAnswerAsOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	f := w.replicas(t, 2)
	ctx := t.Context()

	// Page tokens: the other replica says where to go on, and nothing is missing.
	gone, began := 0, time.Now()
	for n := 0; n < 6 || gone == 0 && time.Since(began) < 30*time.Second; n++ { // on a busy machine one connection may come late
		var keys []string
		req := &indexv1.ListRequest{Collection: "pods", PageSize: 1, View: indexv1.View_VIEW_KEYS}
		for {
			resp, err := f.client.List(ctx, req)
			if rpc.Reason(err) == "SNAPSHOT_GONE" {
				gone++
				req.PageToken = rpc.Info(err).GetMetadata()["page_token"]
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, keysOf(resp.GetObjects())...)
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if !slices.Equal(keys, []string{"a/one", "a/two", "b/one", "b/two"}) {
			t.Errorf("pages from both = %q", keys)
		}
	}
	if gone == 0 {
		t.Error("every page came from one replica")
	}

	// Revisions: any replica that is asked waits until it has the write.
	for i := range 20 {
		w.put(t, pod("a/one", options{node: fmt.Sprint("n", i)}))
		rev := &deltav1.Revision{Epoch: w.w.Epoch(), ResourceVersion: strconv.Itoa(w.rv)}
		if _, err := f.client.WaitForRevision(ctx, &indexv1.WaitForRevisionRequest{Revisions: []*deltav1.CollectionRevision{{Collection: "pods", Revision: rev}}}); err != nil {
			t.Fatal(err)
		}
		resp, err := f.client.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: &indexv1.Consistency{AtLeast: rev}})
		if err != nil || resp.GetObject().GetResourceVersion() != rev.GetResourceVersion() {
			t.Fatalf("read at %s = %v, %v", rev.GetResourceVersion(), resp.GetObject().GetResourceVersion(), err)
		}
	}

	// Definitions declared on one are on both; an index that is not ready may be retried.
	if _, err := f.client.AddIndexers(ctx, &indexv1.AddIndexersRequest{Collection: "pods", Indexers: []*indexv1.IndexerDefinition{byField("phase", "status.phase")}}); err != nil {
		t.Fatal(err)
	}
	for _, r := range f.running {
		eventually(t, func() string {
			if _, err := r.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: "pods", Index: "phase", Value: "Running"}); err != nil {
				return err.Error()
			}
			return ""
		})
	}
}

// follower reads a watch, and resumes it wherever it is sent.
type follower struct {
	seen    map[string]int // key -> version
	resumed int
	gaps    int
	last    atomic.Int64 // highest version seen
}

func (f *follower) run(ctx context.Context, client indexv1.IndexServiceClient) error {
	f.seen = map[string]int{}
	var from *deltav1.Position
	for ctx.Err() == nil {
		stream, err := client.Watch(ctx, &indexv1.WatchRequest{Collection: "pods", Resume: from})
		for err == nil {
			var resp *indexv1.WatchResponse
			if resp, err = stream.Recv(); err != nil {
				break
			}
			if resp.GetGap() != nil {
				f.gaps++
			}
			for _, e := range resp.GetEvents().GetEvents() {
				rv, _ := strconv.Atoi(e.GetObject().GetResourceVersion())
				if was := f.seen[e.GetObject().GetKey()]; rv < was {
					return fmt.Errorf("%s goes back from %d to %d", e.GetObject().GetKey(), was, rv)
				}
				f.seen[e.GetObject().GetKey()] = rv
				f.last.Store(max(f.last.Load(), int64(rv)))
			}
			if p := resp.GetPosition(); p != nil {
				from = p
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if rpc.Code(err) != codes.Unavailable {
			return fmt.Errorf("a watch ends with %w", err)
		}
		f.resumed++
		if !pause(ctx, max(rpc.RetryDelay(err), 10*time.Millisecond)) {
			return nil
		}
	}
	return nil
}

func TestARollingRestartFailsNoCallAndLeavesNoGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	f := w.replicas(t, 3)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	var calls atomic.Int64
	for i := range 4 {
		load.Go(func() {
			for ctx.Err() == nil {
				var err error
				switch i {
				case 0:
					_, err = f.client.List(ctx, &indexv1.ListRequest{Collection: "pods"})
				case 1:
					_, err = f.client.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}})
				default:
					_, err = f.client.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "b/one"})
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("call %d: %v (%s)", calls.Load(), err, rpc.Reason(err))
					return
				}
				calls.Add(1)
			}
		})
	}
	watchers := make([]*follower, 6)
	for i := range watchers {
		watchers[i] = &follower{}
		load.Go(func() {
			if err := watchers[i].run(ctx, f.client); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, func() string {
		for i, x := range watchers {
			if x.last.Load() == 0 {
				return fmt.Sprintf("watch %d has not begun", i)
			}
		}
		return ""
	})
	w.rv++ // the writer's versions go on while replicas come and go
	for round := range 2 {
		for i := range f.running {
			w.put(t, pod("a/one", options{node: fmt.Sprint("n", round, i)}), pod(fmt.Sprintf("new/p-%d-%d", round, i), options{}))
			f.running[i].stop()
			w.put(t, pod("a/two", options{node: fmt.Sprint("n", round, i)}), gone(fmt.Sprintf("new/p-%d-%d", round, i)))
			f.begin(t, i)
			w.caughtUp(t, f.running[i])
		}
	}
	w.put(t, pod("z/last", options{}))
	eventually(t, func() string {
		for i, x := range watchers {
			if got := x.last.Load(); got < int64(w.rv) {
				return fmt.Sprintf("watch %d is at %d, not at %d", i, got, w.rv)
			}
		}
		return ""
	})
	stop()
	load.Wait()
	resumed := 0
	for i, x := range watchers {
		resumed += x.resumed
		if x.gaps > 0 {
			t.Errorf("watch %d had %d gaps", i, x.gaps)
		}
		for round := range 2 { // what came and went meanwhile was seen too
			for j := range f.running {
				if x.seen[fmt.Sprintf("new/p-%d-%d", round, j)] == 0 {
					t.Errorf("watch %d missed new/p-%d-%d", i, round, j)
				}
			}
		}
	}
	if resumed == 0 || calls.Load() < 100 {
		t.Errorf("%d watches were sent elsewhere during %d calls: nothing was tested", resumed, calls.Load())
	}
	t.Logf("%d calls, %d watches sent elsewhere", calls.Load(), resumed)
}

// tokensUsed counts the page tokens that a replica was given, by result.
func tokensUsed(t *testing.T, r *replica, result string) (n float64) {
	t.Helper()
	families, err := r.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "deltaplane_indexer_page_tokens_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == result {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// manyPods are more than some pages of objects.
func manyPods(n int) []delta.Record {
	records := make([]delta.Record, n)
	for i := range records {
		records[i] = pod(fmt.Sprintf("a/p-%04d", i), options{node: "n1"})
	}
	return records
}

func TestAListingOfManyPagesIsOfOneSnapshotBehindAnyBalancer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const objects, page = 900, 100
	w.start(t, manyPods(objects)...)
	f := w.replicas(t, 3)
	plain := func(n int) *client.Index { // gRPC's own round robin, as other connections have
		names := manual.NewBuilderWithScheme("plain")
		var at []resolver.Address
		for _, addr := range f.addrs[:n] {
			at = append(at, resolver.Address{Addr: addr})
		}
		names.InitialState(resolver.State{Addresses: at})
		conn, err := grpc.NewClient("plain:///index", grpc.WithResolvers(names), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return client.NewIndex(conn)
	}
	elsewhere := func() (n float64) {
		for _, r := range f.running {
			n += tokensUsed(t, r, "elsewhere")
		}
		return n
	}
	ctx := t.Context()
	for _, c := range []struct {
		name string
		x    *client.Index
	}{{"our own connection", client.NewIndex(f.conn)}, {"round robin over two", plain(2)}, {"round robin over three", plain(3)}} {
		before := elsewhere()
		for i := range 4 {
			w.put(t, pod("a/p-0000", options{node: "n1"})) // the replicas need not be at the same version
			objs, rev, err := c.x.List(ctx, "pods", client.ListOptions{PageSize: page, ReadOptions: client.ReadOptions{View: client.ViewKeys}})
			if err != nil || len(objs) != objects || rev.IsZero() {
				t.Fatalf("%s: List %d = %d objects at %v, %v", c.name, i, len(objs), rev, err)
			}
			objs, _, err = c.x.List(ctx, "pods", client.ListOptions{PageSize: page, Index: "node", Values: []string{"n1"}})
			if err != nil || len(objs) != objects {
				t.Fatalf("%s: List %d by index = %d objects, %v", c.name, i, len(objs), err)
			}
			n := 0
			for _, err := range c.x.All(ctx, "pods", client.ListOptions{PageSize: page}) {
				if n++; err != nil {
					t.Fatalf("%s: All %d: %v", c.name, i, err)
				}
			}
			if n != objects {
				t.Fatalf("%s: All %d yields %d objects", c.name, i, n)
			}
		}
		refused := elsewhere() - before
		if refused != 0 && c.name == "our own connection" {
			t.Errorf("%s: %v pages were asked of the wrong replica", c.name, refused)
		}
		if refused == 0 && c.name != "our own connection" {
			t.Errorf("%s: every page came to its replica: nothing was tested", c.name)
		}
	}
}
