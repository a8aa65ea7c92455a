package indexer_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/stream"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

func TestReadsGoOnWhileTheLogIsAwayAndCatchUpAfterwards(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start := func(listen string) *embedded.NATS {
		n, err := embedded.StartNATS(embedded.NATSConfig{Dir: dir, Listen: listen})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Stop)
		return n
	}
	first := start("127.0.0.1:0")
	url := first.URL()
	w := &world{dial: func() (*stream.Conn, error) {
		return stream.Connect(t.Context(), stream.Config{URL: url, TombstoneTTL: time.Minute})
	}}
	w.conn = w.connect(t)
	w.start(t, fleet()...)
	r := w.index(t, func(c *indexer.Config) { c.StaleAfter = 50 * time.Millisecond })
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{Namespace: "b"})
	v.expect(t, "+b/one", "+b/two", "end")
	first.Stop()
	if got := list(t, r); len(got) != 4 {
		t.Errorf("while the log is away = %q", got)
	}
	ahead := at(0, w.rv+1)
	ahead.Timeout = durationpb.New(20 * time.Millisecond)
	_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: ahead})
	wantStatus(t, "a revision that cannot come", err, codes.DeadlineExceeded, "REVISION_NOT_REACHED", "")
	eventually(t, func() string {
		all, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
		if err != nil || !all.GetCollections()[0].GetStale() {
			return fmt.Sprint("not called stale: ", all, err)
		}
		return ""
	})
	start(url[len("nats://"):])
	w.put(t, pod("b/one", options{node: "n9"}), gone("b/two"))
	w.caughtUp(t, r)
	v.expect(t, "~b/one", "-b/two:observed")
}

// TestRandomHistoriesEndWithTheSourceOnEveryReplica writes random changes with
// hot keys, so that readers meet holes, new leaders and new epochs, while
// pages are read; at the end every replica is compared with the source.
func TestRandomHistoriesEndWithTheSourceOnEveryReplica(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 4))
			w := newWorld(t)
			w.start(t)
			replicas := []*replica{w.index(t, nil)}
			source := map[string]string{} // key -> resource version
			for range 120 {
				var records []delta.Record
				for range 1 + rng.IntN(30) {
					key := fmt.Sprintf("n%d/p%d", rng.IntN(3), rng.IntN(40))
					if rng.IntN(3) == 0 {
						key = "n0/hot"
					}
					if rng.IntN(4) == 0 {
						records = append(records, gone(key))
					} else {
						records = append(records, pod(key, options{node: fmt.Sprint("n", rng.IntN(5)), labels: fmt.Sprintf("app=a%d", rng.IntN(3))}))
					}
				}
				w.put(t, records...)
				for _, rec := range records {
					if delete(source, string(rec.Key)); rec.Type != delta.Deleted {
						source[string(rec.Key)] = rec.RV
					}
				}
				switch rng.IntN(25) {
				case 0:
					w.w = w.lead(t, pods, false)
					w.sync(t)
				case 1: // a new epoch lists everything again
					w.w = w.lead(t, pods, true)
					records = records[:0]
					for key := range source {
						records = append(records, pod(key, options{node: "relisted"}))
					}
					w.put(t, records...)
					for _, rec := range records {
						source[string(rec.Key)] = rec.RV
					}
					w.sync(t)
				case 2:
					if len(replicas) < 3 {
						replicas = append(replicas, w.index(t, nil))
					}
				}
			}
			for i, r := range replicas {
				w.caughtUp(t, r)
				got := map[string]string{}
				req := &indexv1.ListRequest{Collection: "pods", PageSize: 9}
				for {
					resp, err := r.List(t.Context(), req)
					if err != nil {
						t.Fatal(err)
					}
					for _, o := range resp.GetObjects() {
						got[o.GetKey()] = o.GetResourceVersion()
					}
					if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
						break
					}
				}
				for key, rv := range source {
					if got[key] != rv {
						t.Errorf("replica %d has %s at %q, want %s", i, key, got[key], rv)
					}
				}
				if len(got) != len(source) {
					t.Errorf("replica %d has %d objects, want %d", i, len(got), len(source))
				}
			}
		})
	}
}
