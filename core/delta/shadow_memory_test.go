package delta_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// listedPod is the i-th pod of a large cluster: of one of 500 templates, on one of a thirtieth as
// many nodes as there are pods. Its strings are its own, as those of an object that was just read
// are.
func listedPod(i, pods int) *delta.Object {
	t := i % 500
	owner := fmt.Sprintf("mailer-cron-%d-7znb9cmw25", t)
	return &delta.Object{
		Key: delta.Key(fmt.Sprintf("team-%d/%s-%06x", t%40, owner, i)), UID: fmt.Sprintf("c00cbd93-d2ea-4344-9a77-%012x", i),
		RV: strconv.Itoa(1_000_000_000 + i), Hash: uint64(i) + 1,
		Owners: []delta.Owner{{Kind: "ReplicaSet", Name: owner, UID: fmt.Sprintf("660dffbb-9ae7-4a76-9310-%012x", t), Controller: true}},
		Hints:  map[string][]string{"node": {fmt.Sprintf("ip-10-0-%d.eu-central-1.compute.internal", i%(pods/30+1))}},
		Labels: map[string][]string{
			"batch.kubernetes.io/job-name":       {"mailer-cron-" + strconv.Itoa(t)},
			"batch.kubernetes.io/controller-uid": {fmt.Sprintf("9ad0ffbb-9ae7-4a76-9310-%012x", t)},
		},
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

//nolint:paralleltest // it measures the heap
func TestAShadowHoldsAnObjectInAtMost250Bytes(t *testing.T) {
	const pods = 30_000 // 100,000 take as much each, and longer
	before := heap()
	s := delta.NewShadow(time.Hour)
	s.BeginList()
	for i := range pods {
		if _, ok := s.Listed(listedPod(i, pods), 1, t0); !ok {
			t.Fatalf("pod %d is not published", i)
		}
	}
	held := float64(heap()-before) / float64(pods)
	t.Logf("%d pods: %.0f bytes each", pods, held)
	if held > 250 {
		t.Errorf("%.0f bytes for each of %d pods, want at most 250", held, pods)
	}
	runtime.KeepAlive(s)
}

func BenchmarkShadowListed(b *testing.B) {
	const pods = 20_000
	objects := make([]*delta.Object, pods)
	for i := range objects {
		objects[i] = listedPod(i, pods)
	}
	for _, row := range []struct {
		name string
		warm bool
	}{{"first", false}, {"again", true}} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			var s *delta.Shadow
			for i := 0; b.Loop(); i++ {
				if s == nil || i%pods == 0 && !row.warm {
					s = delta.NewShadow(time.Hour)
					s.BeginList()
				}
				s.Listed(objects[i%pods], 1, t0)
			}
		})
	}
}
