package read

import (
	"encoding/base64"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

func TestPinsAreLetGoAfterTheirTTLAndBeyondTheirNumber(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	p := newPins(2, time.Minute, time.Hour, 1<<20)
	c := newPinned(t)
	one := func() []part { return []part{{c, store.New(store.Options{}).Snapshot()}} }
	a, b, d := one(), one(), one()
	ida, idb := p.hold("one", a, now), p.hold("one", b, now.Add(time.Second))
	if p.hold("one", a, now.Add(2*time.Second)) != ida {
		t.Error("a snapshot held twice got two numbers")
	}
	idd := p.hold("one", d, now.Add(3*time.Second))
	if p.get(idb, now) != nil || p.len() != 2 {
		t.Error("the snapshot least recently used is still held")
	}
	p.get(ida, now.Add(30*time.Second))
	p.expire(now.Add(time.Minute + 4*time.Second))
	if got := p.get(ida, now); len(got) != 1 || got[0] != a[0] || p.get(idd, now) != nil {
		t.Error("expiry does not go by the last use")
	}
}

func TestPinsOfAClientThatHoldsManyGoFirst(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	p := newPins(4, time.Hour, time.Hour, 1<<20)
	c := newPinned(t)
	one := func() []part { return []part{{c, store.New(store.Options{}).Snapshot()}} }
	kept := func(id uint64) bool { return p.byID[id] != nil }
	shared := one()
	first := p.hold("few", one(), now)
	both := p.hold("many", shared, now)
	if p.hold("few", shared, now) != both {
		t.Fatal("clients do not share what is the same")
	}
	var last []uint64
	for i := range 40 {
		last = append(last, p.hold("many", one(), now.Add(time.Duration(i+1)*time.Second)))
		if !kept(first) || !kept(both) {
			t.Fatalf("listing %d of another client took what a client with two pages through: %v %v", i, kept(first), kept(both))
		}
	}
	if p.len() != 4 || !kept(last[39]) || !kept(last[38]) || kept(last[37]) {
		t.Errorf("%d are held; want two of each client, and of the many the latest", p.len())
	}
	// A client that comes new takes from those with most, not from the oldest.
	third := p.hold("third", one(), now.Add(time.Hour/2))
	if !kept(first) || !kept(both) || kept(last[38]) || !kept(third) {
		t.Errorf("a new client's listing took first %v, shared %v, latest but one %v", !kept(first), !kept(both), !kept(last[38]))
	}
	// What many page through counts as the only one of somebody.
	crowd := newPins(2, time.Hour, time.Hour, 1<<20)
	popular := one()
	id := crowd.hold("a", popular, now)
	for _, name := range []string{"b", "c", "d", "e", "f", "g", "h", "i"} {
		crowd.hold(name, popular, now)
	}
	for i := range 5 {
		crowd.hold("a", one(), now.Add(time.Duration(i+1)*time.Second))
		if crowd.byID[id] == nil {
			t.Fatalf("listing %d of one client took what nine page through", i)
		}
	}
}

func TestPinsAreLetGoBeyondTheirAgeAndBytes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	c := newPinned(t)
	sequence := uint64(0)
	write := func(keys int) {
		var b store.Batch
		for i := range keys {
			sequence++
			b.Ops = append(b.Ops, store.Op{Put: store.NewObject(store.ObjectConfig{Key: string(rune('a' + i)), Epoch: 1, Sequence: sequence, Payload: make([]byte, 1000)})})
		}
		b.State = &store.State{Position: delta.Position{Epoch: 1, Sequence: sequence}, Synced: true}
		c.Store().Apply(b, now)
	}
	pinned := func() []part { return []part{{c, c.Snapshot()}} }
	write(10)
	p := newPins(10, time.Hour, 10*time.Minute, 12_000)
	used := p.hold("one", pinned(), now)
	if again := p.hold("one", pinned(), now.Add(5*time.Minute)); again != used {
		t.Error("the same snapshot got two numbers")
	}
	write(1)
	for at := 6 * time.Minute; at <= 15*time.Minute; at += time.Minute { // age counts from when it was last what the store held
		if p.get(used, now.Add(at)) == nil {
			t.Fatalf("a snapshot in use is gone after %v", at)
		}
	}
	if p.get(used, now.Add(16*time.Minute)) != nil {
		t.Error("a snapshot in use is kept beyond its age")
	}
	if p.expire(now.Add(16 * time.Minute)); p.len() != 0 {
		t.Error("a snapshot beyond its age is held")
	}
	now = now.Add(time.Hour)
	first := p.hold("one", pinned(), now)
	write(8)
	second := p.hold("one", pinned(), now)
	if p.expire(now); p.get(first, now) == nil || p.get(second, now) == nil {
		t.Error("snapshots are gone that hold 8 kB of 12")
	}
	write(4)
	if p.expire(now); p.get(first, now) != nil || p.get(second, now) == nil {
		t.Error("beyond the bytes the oldest is to go, and only that")
	}
	write(10)
	write(10)
	if p.expire(now); p.get(second, now) == nil {
		t.Error("a snapshot is taken to hold more than all of its 10 kB")
	}
}

func TestATokenIsReadByItsMakerOnlyAsItWasMade(t *testing.T) {
	t.Parallel()
	ours, theirs := newSigner(), newSigner()
	made := token{
		query: 3, pin: 7, passed: 500, cluster: "eu", after: "n/a",
		uppers: uppers{"eu": {Epoch: 3, RV: "70"}, "us": {Epoch: 1}},
	}
	text := ours.write(made)
	got, err := ours.read(text, 3)
	if made.maker = ours.maker; err != nil || !reflect.DeepEqual(got, made) {
		t.Fatalf("read = %+v, %v, want %+v", got, err, made)
	}
	if got, err := theirs.read(text, 3); err != nil || !reflect.DeepEqual(got, made) {
		t.Errorf("another process reads %+v, %v, want the place in it", got, err)
	}
	forged := made
	forged.pin = 8
	other := &signer{maker: ours.maker, key: theirs.key}
	for name, bad := range map[string]string{
		"cut":                  text[:len(text)-3],
		"longer":               text + "AAAA",
		"another pin":          other.write(forged),
		"not base64":           "!!" + text,
		"of another version":   base64.RawURLEncoding.EncodeToString(append([]byte{9}, make([]byte, 60)...)),
		"very long":            strings.Repeat("A", MaxToken+4),
		"one bit of it turned": text[:20] + string(text[20]^1) + text[21:],
	} {
		if _, err := ours.read(bad, 3); rpc.Violations(rpc.Status(err, nil))["page_token"] == "" {
			t.Errorf("a token that is %s is read: %v", name, err)
		}
	}
	if _, err := ours.read(text, 4); rpc.Violations(rpc.Status(err, nil))["page_token"] == "" {
		t.Errorf("a token of another request is read: %v", err)
	}
}

func TestRequestsThatDifferInMoreThanThePageHaveDifferentPrints(t *testing.T) {
	t.Parallel()
	base := func() *indexv1.ListRequest {
		return &indexv1.ListRequest{Collection: "pods", Namespaces: []string{"a", "b"}}
	}
	want := requestPrint(base())
	for name, change := range map[string]func(*indexv1.ListRequest){
		"page token":  func(r *indexv1.ListRequest) { r.PageToken = "x" },
		"page size":   func(r *indexv1.ListRequest) { r.PageSize = 3 },
		"consistency": func(r *indexv1.ListRequest) { r.Consistency = &indexv1.Consistency{} },
	} {
		r := base()
		if change(r); requestPrint(r) != want {
			t.Errorf("%s makes another request of it", name)
		}
	}
	for name, change := range map[string]func(*indexv1.ListRequest){
		"collection": func(r *indexv1.ListRequest) { r.Collection = "jobs" },
		"namespaces": func(r *indexv1.ListRequest) { r.Namespaces = []string{"ab"} },
		"clusters":   func(r *indexv1.ListRequest) { r.Clusters = []string{"*"} },
		"labels":     func(r *indexv1.ListRequest) { r.LabelSelector = "a" },
		"fields":     func(r *indexv1.ListRequest) { r.FieldSelector = "a" },
		"view":       func(r *indexv1.ListRequest) { r.View = indexv1.View_VIEW_KEYS },
		"mask":       func(r *indexv1.ListRequest) { r.FieldMask = &fieldmaskpb.FieldMask{Paths: []string{"a"}} },
	} {
		r := base()
		if change(r); requestPrint(r) == want {
			t.Errorf("%s does not count", name)
		}
	}
	if requestPrint(&indexv1.ByIndexRequest{Collection: "pods"}) == requestPrint(&indexv1.ListRequest{Collection: "pods"}) {
		t.Error("two methods share their tokens")
	}
}

// A value of an index may be nearly as long as an object.
func TestATokenHoldsALongValue(t *testing.T) {
	t.Parallel()
	s := newSigner()
	long := token{query: 3, pin: 2, passed: 4, uppers: uppers{}, after: strings.Repeat("v", 3<<19)}
	got, err := s.read(s.write(long), 3)
	if long.maker = s.maker; err != nil || !reflect.DeepEqual(got, long) {
		t.Errorf("a token of %d bytes: %v", len(s.write(long)), err)
	}
}

func FuzzTokensNeverPanicAndSurviveWriting(f *testing.F) {
	s := newSigner()
	f.Add(s.write(token{query: 3, pin: 2, passed: 4, after: "n/a"}))
	f.Add(newSigner().write(token{query: 3, pin: 2, passed: 1 << 63, cluster: "eu", after: "n/a"}))
	f.Add("")
	f.Add(strings.Repeat("A", 64))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := s.read(text, 3)
		if err != nil {
			return
		}
		again, err := s.read(s.write(got), 3)
		if got.maker = s.maker; err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("token %+v does not survive writing: %+v, %v", got, again, err)
		}
	})
}

// newPinned is a collection that is filled by hand.
func newPinned(t *testing.T) *follow.Collection {
	t.Helper()
	tel := &telemetry.Telemetry{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Tracer: noop.NewTracerProvider()}
	all, err := follow.New(follow.Config{DiscoverEvery: time.Second}, indexertest.DeadLog{TTL: time.Hour}, tel)
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Open(nil, func(*follow.Collection) follow.Observer { return nil }); err != nil {
		t.Fatal(err)
	}
	return all.Know(indexertest.Pods)
}
