package indexer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/message"
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

func TestAnswersCountUntilTheTransportLetsGo(t *testing.T) {
	t.Parallel()
	s := serving(t, func(c *Config) { c.MaxRequestBytes = 1 << 20 })
	large := func() *message.Writer {
		o := message.New()
		o.Raw(1, make([]byte, 700<<10))
		return o
	}
	o := large()
	if err := s.charge(t.Context(), o, 0); err != nil {
		t.Fatal(err)
	}
	err := s.charge(t.Context(), large(), 0)
	if st := rpc.Status(err, fault.Rules); rpc.Code(st) != codes.ResourceExhausted || rpc.Reason(st) != "REQUEST_MEMORY" || rpc.Info(st).GetMetadata()["limit_name"] != "max_request_bytes" || rpc.RetryDelay(st) <= 0 {
		t.Errorf("a second large answer: %v, want RESOURCE_EXHAUSTED REQUEST_MEMORY that names the limit, with RetryInfo", err)
	}
	parts := o.Parts()
	if s.requests.Used() == 0 {
		t.Error("an answer that is being sent is not counted")
	}
	parts.Free()
	if n := s.requests.Used(); n != 0 {
		t.Errorf("%d bytes are counted when it was sent", n)
	}
	if err := s.charge(t.Context(), large(), 0); err != nil { // and its connection breaks
		t.Errorf("when the first was sent: %v", err)
	}
	for began := time.Now(); s.requests.Used() != 0; runtime.GC() {
		if time.Since(began) > time.Minute {
			t.Fatal("an answer that nobody sends is counted for ever")
		}
		time.Sleep(time.Millisecond)
	}
	small := func() *message.Writer {
		o := message.New()
		o.Text(1, strings.Repeat("x", 2000))
		return o
	}
	o = small()
	if err := s.charge(t.Context(), o, 0); err != nil || !o.Lease.Lent || s.requests.Used() < o.Own() {
		t.Errorf("a small answer: %v, %d bytes are counted, lent: %v; want it lent, with its buffer", err, s.requests.Used(), o.Lease.Lent)
	}
	parts = o.Parts()
	if s.requests.Used() == 0 {
		t.Error("a small answer that is being sent is not counted")
	}
	parts.Free()
	if n := s.requests.Used(); n != 0 {
		t.Errorf("%d bytes are counted when the small answer was sent", n)
	}
	var waiting []*message.Writer
	var refused error
	for refused == nil && len(waiting) < 1000 {
		o := small()
		if refused = s.charge(t.Context(), o, 0); refused == nil {
			waiting = append(waiting, o)
		}
		if n := s.requests.Used(); n > 1<<20 {
			t.Fatalf("%d bytes are held by %d small answers", n, len(waiting))
		}
	}
	if !errors.Is(refused, fault.ErrRequestMemory) || len(waiting) < 50 {
		t.Errorf("%d small answers wait, and then: %v", len(waiting), refused)
	}
	for _, o := range waiting[1:] {
		o.Free()
	}
	if waiting = nil; s.requests.Used() == 0 {
		t.Error("one that still waits is not counted")
	}
	for began := time.Now(); s.requests.Used() != 0; runtime.GC() {
		if time.Since(began) > time.Minute {
			t.Fatal("a small answer that nobody sends is counted for ever")
		}
		time.Sleep(time.Millisecond)
	}
}

// A state that there is no memory to share is written by each watch for itself,
// and is the same.
func TestAStateWithoutMemoryToShareIsTheSame(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 10_000, 1 << 20} {
		s := serving(t, func(c *Config) { c.MaxRequestBytes = most })
		var pods []podFacts
		for i := range 50 {
			pods = append(pods, podFacts{namespace: "n", name: fmt.Sprintf("p%02d", i), pad: 300})
		}
		c := s.fill(t, "dev", pods)
		hubOf(c).most = chunkSize{7, 1 << 20}
		var readers [3]*watcher
		var states [3]*state
		for i := range readers {
			readers[i] = &watcher{s: s.watches, c: c, hub: hubOf(c)}
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

func TestRequestsThatHoldTooMuchAreErrorsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := serving(t, func(c *Config) { c.MaxRequestBytes = 10 })
	_, err := s.requests.Hold("one", 6, "x")
	if !errors.Is(err, fault.ErrRequestMemory) {
		t.Fatalf("more than a half: %v", err)
	}
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Meta["limit_name"] != "max_client_request_bytes" || f.Meta["limit"] != "5" {
		t.Errorf("%v, want the limit of one client", err)
	}
}

func TestTheDefaultShareOfAClient(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ all, want int }{{0, 2500}, {40, 40}, {200, 100}, {1000, 250}} {
		cfg := Config{MaxWatchers: row.all}
		if got := cfg.withDefaults().MaxClientWatchers; got != row.want {
			t.Errorf("of %d watches one client may have %d, want %d", row.all, got, row.want)
		}
	}
	for _, row := range []struct{ budget, want int }{{0, 256 << 20}, {1 << 20, 64 << 20}, {1 << 30, 128 << 20}, {64 << 30, 256 << 20}} {
		if got := (Config{MemoryBudget: row.budget}).withDefaults().MaxRequestBytes; got != row.want {
			t.Errorf("beside %d bytes requests may hold %d, want %d", row.budget, got, row.want)
		}
	}
}
