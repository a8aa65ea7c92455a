package watch

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
)

// What is counted is about what a request takes, or the limit would bound
// nothing. It is not parallel: it looks at the heap.
func TestRequestsAreCountedAsWhatTheyTake(t *testing.T) { //nolint:paralleltest // as it says
	known := map[string]string{}
	for i := range 50_000 {
		known[fmt.Sprintf("namespace-%d/some-pod-with-a-name-%d", i%50, i)] = fmt.Sprint(1_000_000 + i)
	}
	body, err := proto.Marshal(&indexv1.WatchRequest{Known: known})
	if err != nil {
		t.Fatal(err)
	}
	terms := make([]string, filter.MaxTerms)
	for i := range terms {
		terms[i] = fmt.Sprintf("label-%d!=v%d", i, i)
	}
	selector := strings.Join(terms, ",")
	selection, err := proto.Marshal(&indexv1.WatchRequest{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	c := newWatched(t)
	for what, take := range map[string]func() (held any, counted int){
		"known": func() (any, int) {
			req := &indexv1.WatchRequest{}
			if err := proto.Unmarshal(body, req); err != nil {
				t.Fatal(err)
			}
			return req, knownSize(req.GetKnown())
		},
		"selector": func() (any, int) {
			req := &indexv1.WatchRequest{}
			if err := proto.Unmarshal(selection, req); err != nil {
				t.Fatal(err)
			}
			f, err := watchFilter(c, req)
			if err != nil {
				t.Fatal(err)
			}
			key, _ := groupKey(&f, req)
			return []any{req, f, key}, watchCost(req)
		},
	} {
		const n = 8
		var held [n]any
		counted, before := 0, heap()
		for i := range held {
			var size int
			held[i], size = take()
			counted += size
		}
		took := int(heap() - before)
		runtime.KeepAlive(held)
		if counted < took*6/10 || counted > took*2 {
			t.Errorf("%s: counted as %d bytes each, takes %d", what, counted/n, took/n)
		}
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A state that there is no memory to share is written by each watch for itself,
// and is the same.
func TestAStateWithoutMemoryToShareIsTheSame(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 10_000, 1 << 20} {
		all, s := newTestWatches(t, testConfig{requests: limit.Limit{Name: "all", Most: most}})
		var pods []delta.Record
		for i := range 50 {
			r := indexertest.Record(uint64(i+1), 0)
			r.Key = delta.Key(fmt.Sprintf("n/p%02d", i))
			r.Payload = fmt.Appendf(nil, `{"metadata":{"namespace":"n","name":"p%02d"},"spec":{"pad":%q}}`, i, strings.Repeat("x", 300))
			pods = append(pods, r)
		}
		c := all.Know(indexertest.Pods)
		mustFeed(t, c, delta.Batch{Reset: true, Records: append(pods, indexertest.Synced(51)), Replayed: true, Next: 52})
		hubOf(c).most = chunkSize{7, 1 << 20}
		var readers [3]*watcher
		var states [3]*state
		for i := range readers {
			readers[i] = &watcher{s: s, c: c, hub: hubOf(c)}
			if _, err := hubOf(c).join(readers[i], "all", "full"); err != nil {
				t.Fatal(err)
			}
			defer hubOf(c).leave(readers[i])
			var err error
			if states[i], err = hubOf(c).begin(readers[i], false); err != nil {
				t.Fatal(err)
			}
		}
		var last [3]string
		var ends [3]bool
		var n [3]int
		for !ends[0] || !ends[1] || !ends[2] {
			i := rand.IntN(3)
			if ends[i] {
				continue
			}
			ch, err := states[i].chunk(n[i], last[i], nil)
			if err != nil || ch == nil {
				t.Fatalf("part %d: %v, %v", n[i], ch, err)
			}
			if want := fmt.Sprintf("n/p%02d", min(7*n[i]+6, 49)); ch.last != want {
				t.Fatalf("with %d bytes, reader %d: part %d ends with %s, want %s", most, i, n[i], ch.last, want)
			}
			last[i], ends[i] = ch.last, ch.end
			n[i]++
			if used := s.requests.Used(); used > most {
				t.Fatalf("%d bytes are held, at most %d may be", used, most)
			}
		}
		if used := s.requests.Used(); (used > 0) != (most > 1) {
			t.Errorf("with %d bytes: %d are held", most, used)
		}
		for i := range states {
			states[i].leave()
		}
		states[0].close()
		if used := s.requests.Used(); used != 0 {
			t.Errorf("with %d bytes: %d are still held when all have the state", most, used)
		}
	}
}
