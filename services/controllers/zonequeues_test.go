package controllers

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// A zone's rate is configured by every replica, whenever it has judged the zones.
func TestC14AZoneThatSpentItsTokenHasNoneAfterAChangeOfItsRate(t *testing.T) {
	t.Parallel()
	for _, redis := range []bool{false, true} {
		name, url := "memory", ""
		if redis {
			name, url = "redis", embeddedtest.Redis(t).URL()
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &flow{t: t, redisURL: url, queueAddr: "127.0.0.1:0"}
			f.startQueue()
			f.queue = f.dial(f.queueAddr)
			zone := nodelifecycle.Zone{Name: "one"}
			zones := func() *zoneQueues {
				return &zoneQueues{s: &Service{cfg: Config{Cluster: "dev"}, deps: Deps{Queue: f.queue}}, queues: map[nodelifecycle.Zone]*client.Queue{}, started: make(chan nodelifecycle.Zone, 64)}
			}
			a, b := zones(), zones()
			limit := func(z *zoneQueues, rate float64) {
				t.Helper()
				f.ok(z.Limit(t.Context(), zone, rate))
			}
			next := func(want string) {
				t.Helper()
				if got := f.lease(a.name(zone)); got != want {
					t.Fatalf("leased %q, want %q", got, want)
				}
			}
			limit(a, 0.001)
			for _, node := range []string{"n1", "n2", "n3"} {
				f.ok(a.Add(t.Context(), zone, node))
			}
			next("n1")
			limit(a, 0.001)
			limit(b, 0.001)
			next("")
			limit(b, 0) // every zone is down for a moment
			limit(b, 0.001)
			next("")
			limit(b, 0.002) // larger than before, and every zone's rate has a bucket of one node
			next("")
			changed := time.Now()
			limit(a, 2)
			f.eventually("the next node", func() string {
				switch got := f.lease(a.name(zone)); got {
				case "n2":
					return ""
				case "":
					return "none"
				default:
					return got
				}
			})
			if took := time.Since(changed); took < 500*time.Millisecond {
				t.Errorf("the next node %v after the rate changed to two a second", took)
			}
		})
	}
}

// lease takes a key of a queue that has one to give, or "".
func (f *flow) lease(queue string) string {
	f.t.Helper()
	got, err := queuev1.NewQueueServiceClient(f.queue).Get(f.t.Context(), &queuev1.GetRequest{Queue: queue, SessionId: "test", LeaseDuration: durationpb.New(time.Hour)})
	f.ok(err)
	for _, l := range got.GetLeases() {
		return l.GetKey()
	}
	return ""
}
