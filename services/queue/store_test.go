package queue_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestAStoreThatRefusesAddsGoesOnWithEverythingElse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		option, value, mended, reason, metric string
		code                                  codes.Code
		starts                                bool // a server may be started then
	}{
		{"maxmemory", "1mb", "0", "STORE_FULL", "full", codes.ResourceExhausted, true},
		{"maxmemory-policy", "allkeys-lru", "noeviction", "STORE_UNFIT", "evicts", codes.Unavailable, false},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			t.Parallel()
			srv, err := embedded.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(srv.Stop)
			server := func() *queuetest.Rig {
				e, err := redis.New(redis.Config{URL: srv.URL()})
				if err != nil {
					t.Fatal(err)
				}
				return queuetest.Serve(t, queue.Config{}, e)
			}
			r, ctx := server(), t.Context()
			r.Configure(t)
			r.AddKeys(t, "a", "b", "c", "d", "e")
			w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
			w.Give(1)
			held := queuetest.Wait(t, w.Leases)
			c := goredis.NewClient(&goredis.Options{Addr: srv.Addr()})
			defer c.Close()
			if err := c.ConfigSet(ctx, tc.option, tc.value).Err(); err != nil {
				t.Fatal(err)
			}
			_, err = r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "refused"}}})
			if rpc.Reason(err) != tc.reason || rpc.Code(err) != tc.code || rpc.RetryDelay(err) <= 0 {
				t.Errorf("Add = %v, want %s with RetryInfo", err, tc.reason)
			}
			servers := []*queuetest.Rig{r}
			if tc.starts {
				servers = append(servers, server())
			}
			for _, s := range servers {
				for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // until it has looked
					ready := s.Svc.Admin().Readiness(ctx)
					if ready.Ready && strings.Contains(fmt.Sprint(ready.Checks), "adds are refused") {
						break
					}
					if time.Since(began) > 20*time.Second {
						t.Fatalf("readiness %+v", ready)
					}
				}
				if got := s.Refuses(t); len(got) != 1 || got[0] != tc.metric {
					t.Errorf("deltaplane_queue_store_refuses_adds is 1 for %q, want %q", got, tc.metric)
				}
				if n := s.Counts(t); n.GetReady()+n.GetProcessing() < 3 {
					t.Errorf("Len = %v", n)
				}
				if items, err := s.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queuetest.Q}); err != nil || len(items.GetItems()) < 3 {
					t.Errorf("ListItems = %v, %v", items, err)
				}
			}
			if s := w.Settle(queuetest.Done, held)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				t.Errorf("Settle = %v", s)
			}
			next := queuetest.Wait(t, w.Leases) // its credit came back
			if got, err := r.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: queuetest.Q, Keys: []string{"e"}}); err != nil || got.GetResults()[0].GetStatus() != queuev1.ItemStatus_ITEM_STATUS_DONE {
				t.Errorf("DeleteItems = %v, %v", got, err)
			}
			got, err := servers[len(servers)-1].Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "x", MaxItems: 10})
			if err != nil || len(got.GetLeases()) != 2 {
				t.Errorf("Get = %v, %v", got, err)
			}
			w.Settle(queuetest.Done, next)
			if err := c.ConfigSet(ctx, tc.option, tc.mended).Err(); err != nil {
				t.Fatal(err)
			}
			for _, s := range servers {
				s.AddKeys(t, "mended")
			}
		})
	}
}
