package controllers

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// A zone's rate is configured by every replica, whenever it has judged the zones.
func TestAZoneThatSpentItsTokenHasNoneAfterAChangeOfItsRate(t *testing.T) {
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

func TestAZonesQueueIsNamedAsItsNodesAreLabelled(t *testing.T) {
	t.Parallel()
	names := map[string]nodelifecycle.Zone{}
	for zone, want := range map[nodelifecycle.Zone]string{
		{Region: "eu-west-1", Name: "eu-west-1a"}: "dev/nodelifecycle/eu-west-1/eu-west-1a",
		{Name: "zone-a"}:          "dev/nodelifecycle/-/zone-a",
		{Region: "a_2D.b"}:        "dev/nodelifecycle/a_2D.b/-",
		{}:                        "dev/nodelifecycle/-/-",
		{Name: "-"}:               "dev/nodelifecycle/-/__2D",
		{Name: "a/b ü"}:           "dev/nodelifecycle/-/_a_2Fb_20_C3_BC",
		{Name: "a_2Fb_20_C3_BC"}:  "dev/nodelifecycle/-/a_2Fb_20_C3_BC",
		{Name: "_a_2Fb_20_C3_BC"}: "dev/nodelifecycle/-/__5Fa_5F2Fb_5F20_5FC3_5FBC",
		{Region: strings.Repeat("r", 63), Name: "a.b_c"}: "dev/nodelifecycle/" + strings.Repeat("r", 63) + "/a.b_c",
	} {
		got := ZoneQueue("dev", zone)
		if got != want {
			t.Errorf("the queue of %+v is %q, want %q", zone, got, want)
		}
		if other, taken := names[got]; taken {
			t.Errorf("%+v and %+v have one queue, %s", zone, other, got)
		}
		names[got] = zone
	}
}

// replicas answers as an index of which each replica is at another revision.
type replicas struct {
	wire

	at string
}

func (r *replicas) Invoke(_ context.Context, _ string, req, resp any, _ ...grpc.CallOption) error {
	at := &deltav1.Revision{Epoch: 3, ResourceVersion: r.at}
	switch resp := resp.(type) {
	case *indexv1.ListCollectionsResponse:
		for _, name := range []string{"dev/nodes.v1", "dev/leases.v1.coordination.k8s.io"} {
			resp.Collections = append(resp.Collections, &indexv1.CollectionStatus{Collection: name, Synced: true, Revision: at, LiveAt: timestamppb.Now()})
		}
	case *indexv1.ListResponse:
		r.listed = req.(*indexv1.ListRequest)
		resp.Objects, resp.QuarantinedKeys, resp.Revision = []*indexv1.Object{{Key: "a", Payload: []byte("{}")}, {Key: "b"}}, []string{"b"}, at
	}
	return nil
}

func TestZonesAreNeverJudgedByAnEarlierStateThanBefore(t *testing.T) {
	t.Parallel()
	r := &replicas{}
	a := &nodeAdapter{reads: &reads{index: client.NewIndex(r), log: slog.New(slog.DiscardHandler)}, nodes: "dev/nodes.v1", leases: "dev/leases.v1.coordination.k8s.io"}
	for _, c := range []struct{ at, least, want string }{
		{"40", "", "40"},
		{"50", "45", "50"},
		{"40", "45", "50"}, // another replica, which is behind
		{"40", "", "50"},
		{"50", "70", "70"},
		{"60", "", "60"},
	} {
		r.at = c.at
		nodes, err := a.all(t.Context(), c.least)
		if err != nil || len(nodes) != 1 {
			t.Fatalf("%q, %v; want the one node that can be read", nodes, err)
		}
		if got := r.listed.GetConsistency().GetAtLeast().GetResourceVersion(); got != c.want {
			t.Errorf("a replica at %s, at least %q: asked for %q, want %q", c.at, c.least, got, c.want)
		}
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
