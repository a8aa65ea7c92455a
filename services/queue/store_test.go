package queue

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
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
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
			server := func() *rig {
				e, err := redis.New(redis.Config{URL: srv.URL()})
				if err != nil {
					t.Fatal(err)
				}
				return serve(t, Config{}, e)
			}
			r, ctx := server(), t.Context()
			r.configure(t)
			r.add(t, "a", "b", "c", "d", "e")
			w := r.work(t, &queuev1.Hello{SessionId: "w"})
			w.give(1)
			held := wait(t, w.leases)
			c := goredis.NewClient(&goredis.Options{Addr: srv.Addr()})
			defer c.Close()
			if err := c.ConfigSet(ctx, tc.option, tc.value).Err(); err != nil {
				t.Fatal(err)
			}
			_, err = r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{Key: "refused"}}})
			if rpc.Reason(err) != tc.reason || rpc.Code(err) != tc.code || rpc.RetryDelay(err) <= 0 {
				t.Errorf("Add = %v, want %s with RetryInfo", err, tc.reason)
			}
			servers := []*rig{r}
			if tc.starts {
				servers = append(servers, server())
			}
			for _, s := range servers {
				for began := time.Now(); ; time.Sleep(20 * time.Millisecond) { // until it has looked
					ready := s.svc.admin.Readiness(ctx)
					if ready.Ready && strings.Contains(fmt.Sprint(ready.Checks), "adds are refused") {
						break
					}
					if time.Since(began) > 20*time.Second {
						t.Fatalf("readiness %+v", ready)
					}
				}
				if got := s.refuses(t); len(got) != 1 || got[0] != tc.metric {
					t.Errorf("deltaplane_queue_store_refuses_adds is 1 for %q, want %q", got, tc.metric)
				}
				if n := s.counts(t); n.GetReady()+n.GetProcessing() < 3 {
					t.Errorf("Len = %v", n)
				}
				if items, err := s.ListItems(ctx, &queuev1.ListItemsRequest{Queue: q}); err != nil || len(items.GetItems()) < 3 {
					t.Errorf("ListItems = %v, %v", items, err)
				}
			}
			if s := w.settle(done, held)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				t.Errorf("Settle = %v", s)
			}
			next := wait(t, w.leases) // its credit came back
			if got, err := r.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: q, Keys: []string{"e"}}); err != nil || got.GetResults()[0].GetStatus() != queuev1.ItemStatus_ITEM_STATUS_DONE {
				t.Errorf("DeleteItems = %v, %v", got, err)
			}
			got, err := servers[len(servers)-1].Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "x", MaxItems: 10})
			if err != nil || len(got.GetLeases()) != 2 {
				t.Errorf("Get = %v, %v", got, err)
			}
			w.settle(done, next)
			if err := c.ConfigSet(ctx, tc.option, tc.mended).Err(); err != nil {
				t.Fatal(err)
			}
			for _, s := range servers {
				s.add(t, "mended")
			}
		})
	}
}

// refuses are the reasons for which the metric says that adds are refused.
func (r *rig) refuses(t *testing.T) []string {
	t.Helper()
	return refusing(t, r.tel)
}

func refusing(t *testing.T, tel *telemetry.Telemetry) (reasons []string) {
	t.Helper()
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "deltaplane_queue_store_refuses_adds" && m.GetGauge().GetValue() == 1 {
				reasons = append(reasons, m.GetLabel()[0].GetValue())
			}
		}
	}
	return reasons
}
