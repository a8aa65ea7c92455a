package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// onRedis runs a queue service on a Redis and returns a connection to it.
func onRedis(t *testing.T, url string) *grpc.ClientConn {
	t.Helper()
	addr := queuetest.Address(t, queue.Config{RedisURL: url, Admin: telemetry.AdminConfig{Listen: "off"}}, "error")
	return dial(t, addr, client.DialConfig{})
}

// diary is what workers did.
type diary struct {
	hold sync.RWMutex // keeps reconciles from going on

	mu    sync.Mutex
	done  map[string]int  // by key: reconciles that ended
	token map[string]bool // of leases that were worked on
	twice []string
}

func (d *diary) reconcile(_ context.Context, item client.Item) (client.Result, error) {
	time.Sleep(5 * time.Millisecond)
	d.hold.RLock()
	defer d.hold.RUnlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	id := fmt.Sprint(item.Key, " ", item.Token)
	if d.token[id] {
		d.twice = append(d.twice, id)
	}
	d.token[id] = true
	d.done[item.Key]++
	if d.done[item.Key] == 1 && strings.HasSuffix(item.Key, "77") {
		return client.Result{Outcome: client.OutcomeRateLimited}, nil // takes a token of the limiter
	}
	return client.Result{}, nil
}

// count is how many keys for which of holds are done.
func (d *diary) count(of func(key string) bool) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for key := range d.done {
		if of(key) {
			n++
		}
	}
	return n
}

func TestAWorkerGoesOnWithTheMastersThatAreThere(t *testing.T) {
	t.Parallel()
	const name, parts = "dev/test", 6
	c := embeddedtest.Cluster(t, 3, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "5000")
	conn := onRedis(t, c.URL())
	q := client.NewQueue(conn, name, "")
	if _, err := q.Configure(t.Context(), client.QueueConfig{Partitions: parts, Lease: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	down := c.Of(fmt.Sprintf("dp:{%s/0}:st", name)) // that of the limiters
	away := map[int]bool{}
	for p := range parts {
		away[p] = c.Of(fmt.Sprintf("dp:{%s/%d}:st", name, p)) == down
	}
	healthy := func(key string) bool { return !away[engine.PartitionOf(key, parts)] }
	anything := func(string) bool { return true }

	d := &diary{done: map[string]int{}, token: map[string]bool{}}
	var lost sync.Map
	w, err := client.NewWorker(conn, client.ReconcilerFunc(d.reconcile), client.WorkerConfig{
		Queue: name, Concurrency: 4, Prefetch: 8, OnLost: func(key string) { lost.Store(key, true) },
	})
	if err != nil {
		t.Fatal(err)
	}
	background(t, w)

	// One goroutine adds without an end, a key in each call.
	ctx, stop := context.WithCancel(t.Context())
	var added []string
	var adding sync.WaitGroup
	for feeder := range 2 { // one for each kind, so that neither waits for the other
		adding.Go(func() {
			var mine []string
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("ns/%d-%d", feeder, i)
				if healthy(key) != (feeder == 0) {
					continue
				}
				if _, err := q.Add(ctx, client.Keys(key)...); err == nil {
					mine = append(mine, key)
				}
				time.Sleep(2 * time.Millisecond)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			added = append(added, mine...)
		})
	}
	// rate waits for so many more keys of healthy partitions. A worker that stands still brings none.
	rate := func(keys int) time.Duration {
		t.Helper()
		began, want := time.Now(), d.count(healthy)+keys
		for d.count(healthy) < want {
			if time.Since(began) > time.Minute {
				t.Fatalf("%d keys of healthy partitions did not come within a minute", keys)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return time.Since(began)
	}
	for d.count(anything) < 100 {
		time.Sleep(10 * time.Millisecond)
	}
	before := rate(100)
	down.Kill()
	t.Logf("100 keys of healthy partitions: %v before, %v at once, %v then", before, rate(100), rate(100))

	// What can be counted is, and what cannot is named.
	if _, err := q.Len(t.Context()); rpc.Reason(err) != "STORE_UNAVAILABLE" || !strings.Contains(err.Error(), "partitions [") {
		t.Errorf("Len = %v", err)
	}
	raw, admin := queuev1.NewQueueServiceClient(conn), queuev1.NewQueueAdminServiceClient(conn)
	some, err := raw.Len(t.Context(), &queuev1.LenRequest{Queue: name, Partial: true})
	if err != nil {
		t.Fatal(err)
	}
	for p := range parts {
		if slices.Contains(some.GetUnreachable(), int32(p)) != away[p] {
			t.Errorf("partition %d, away %v: %v is unreachable", p, away[p], some.GetUnreachable())
		}
	}
	if list, err := admin.ListItems(t.Context(), &queuev1.ListItemsRequest{Queue: name, Partial: true, PageSize: 1000}); err != nil || len(list.GetUnreachable()) == 0 {
		t.Errorf("ListItems = %v unreachable, %v", list.GetUnreachable(), err)
	}
	if list, err := admin.ListQueues(t.Context(), &queuev1.ListQueuesRequest{Partial: true}); err == nil && !slices.Equal(list.GetQueues()[0].GetUnreachable(), some.GetUnreachable()) {
		t.Errorf("ListQueues = %v", list)
	}
	// A server and a worker that are started now work as well. The first one takes what it can at
	// once, so it is held up.
	d.hold.Lock()
	other := onRedis(t, c.URL())
	fresh := &diary{done: map[string]int{}, token: map[string]bool{}}
	w2, err := client.NewWorker(other, client.ReconcilerFunc(fresh.reconcile), client.WorkerConfig{Queue: name, Concurrency: 4})
	if err != nil {
		t.Fatal(err)
	}
	background(t, w2)
	began := time.Now()
	for fresh.count(healthy) < 3 && time.Since(began) < time.Minute {
		time.Sleep(20 * time.Millisecond)
	}
	d.hold.Unlock()
	if n := fresh.count(healthy); n < 3 {
		t.Errorf("a worker on a server that was started meanwhile did %d keys", n)
	}

	down.Start()
	c.Wait()
	stop()
	adding.Wait()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		n, err := q.Len(t.Context())
		if err == nil && n.Ready+n.Processing+n.Delayed+n.Dirty == 0 {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("left: %v, %v", n, err)
		}
	}
	missed := 0
	for _, key := range added {
		if d.done[key]+fresh.done[key] == 0 {
			missed++
		}
	}
	if missed > 0 || len(d.twice)+len(fresh.twice) > 0 {
		t.Errorf("%d of %d acknowledged keys were not worked on; leases worked on twice: %v %v", missed, len(added), d.twice, fresh.twice)
	}
	for id := range d.token {
		if fresh.token[id] {
			t.Errorf("lease %s was worked on by both workers", id)
		}
	}
}
