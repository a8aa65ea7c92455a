package informer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/indexer/servetest"
)

var pods = delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}

// plane is a real log with a writer, and an indexer on it that can be exchanged
// behind one connection.
type plane struct {
	conn  *stream.Conn
	w     *stream.Writer
	term  uint64
	rv    int
	uids  int
	pods  map[string]string // key -> "uid labels rv" of what there is
	index *client.Index

	mu    sync.Mutex
	addr  string
	conns []net.Conn
	stop  func()
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	n := embeddedtest.NATS(t)
	conn, err := stream.Connect(t.Context(), stream.Config{Options: []nats.Option{n.InProcess()}, TombstoneTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	p := &plane{conn: conn, pods: map[string]string{}}
	p.lead(t, false)
	p.swap(t)
	grpcConn, err := client.Dial("index", client.DialConfig{Dialer: p.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { grpcConn.Close() })
	p.index = client.NewIndex(grpcConn)
	return p
}

// lead writes as the next leader; a new epoch repeats what there is.
func (p *plane) lead(t *testing.T, newEpoch bool) {
	t.Helper()
	p.term++
	w, err := p.conn.Writer(t.Context(), pods, stream.WriterConfig{Term: p.term, Holder: "test", NewEpoch: newEpoch})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	p.w = w
	if newEpoch {
		for key, is := range p.pods {
			f := strings.SplitN(is, " ", 3)
			p.write(t, record(key, f[0], f[1], f[2]))
		}
	}
	p.rv++
	p.write(t, delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(p.rv), Watermark: strconv.Itoa(p.rv)})
}

func (p *plane) write(t *testing.T, r delta.Record) {
	t.Helper()
	r.Watermark = strconv.Itoa(p.rv)
	if err := errors.Join(p.w.Append(t.Context(), []delta.Record{r}), p.w.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func record(key, uid, label, rv string) delta.Record {
	ns, name, _ := strings.Cut(key, "/")
	payload := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":%q,"labels":{"app":%q}}}`, name, ns, uid, rv, label)
	return delta.Record{
		Kind: delta.KindDelta, Key: delta.Key(key), UID: uid, RV: rv, Type: delta.Updated, Payload: payload, Encoding: delta.EncodingJSON, Hash: delta.Hash(payload),
	}
}

// put writes a pod, of a new UID when there is none or again is set.
func (p *plane) put(t *testing.T, key, label string, again bool) client.Revision {
	t.Helper()
	p.rv++
	uid, _, there := strings.Cut(p.pods[key], " ")
	if !there || again {
		p.uids++
		uid = fmt.Sprintf("00000000-0000-4000-8000-%012d", p.uids)
	}
	p.write(t, record(key, uid, label, strconv.Itoa(p.rv)))
	p.pods[key] = fmt.Sprintf("%s %s %d", uid, label, p.rv)
	return client.Revision{RV: strconv.Itoa(p.rv)}
}

func (p *plane) delete(t *testing.T, key string) client.Revision {
	t.Helper()
	p.rv++
	p.write(t, delta.Record{Kind: delta.KindDelta, Key: delta.Key(key), RV: strconv.Itoa(p.rv), Type: delta.Deleted, DeleteReason: delta.Observed})
	delete(p.pods, key)
	return client.Revision{RV: strconv.Itoa(p.rv)}
}

// swap puts another indexer in place of the present one.
func (p *plane) swap(t *testing.T) {
	t.Helper()
	addr, stop := servetest.Serve(t, p.conn, func(c *indexer.Config) { c.RingChanges = 16 })
	p.mu.Lock()
	old := p.stop
	p.addr, p.stop = addr, stop
	p.mu.Unlock()
	if old != nil {
		old()
	}
}

func (p *plane) dial(ctx context.Context, _ string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", p.addr)
	if err == nil {
		p.conns = append(p.conns, conn)
	}
	return conn, err
}

func (p *plane) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// pod is what Kubernetes' types would be decoded to.
type pod struct {
	Metadata struct {
		Name, Namespace, UID, ResourceVersion string
		Labels                                map[string]string
	}
}

func (p *pod) is() string {
	return fmt.Sprintf("%s %s %s", p.Metadata.UID, p.Metadata.Labels["app"], p.Metadata.ResourceVersion)
}

// follow runs an informer of pods with a handler that keeps what it receives.
func (p *plane) follow(t *testing.T, scope informer.Scope) (*informer.Shared[*pod], *mirror) {
	t.Helper()
	i, err := informer.New(p.index, informer.Config[*pod]{
		Collection: "dev/pods.v1", Scope: scope, Decode: informer.JSON[pod], BookmarkEvery: time.Second,
		Indexers: map[string]informer.IndexFunc[*pod]{"app": func(p *pod) ([]string, error) { return []string{p.Metadata.Labels["app"]}, nil }},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &mirror{t: t, pods: map[string]*pod{}}
	reg, err := i.AddHandler(m, informer.HandlerOptions{Buffer: 8})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { _ = i.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-i.Stopped() })
	if err := informer.WaitFor(timeout(t, time.Minute), i, reg); err != nil {
		t.Fatal(err, i.Status().Err)
	}
	return i, m
}

// mirror is a handler that must end up with what the store has, by notifications that fit together.
type mirror struct {
	t       *testing.T
	mu      sync.Mutex
	pods    map[string]*pod
	reasons []string
	told    atomic.Int64
}

func (m *mirror) key(p *pod) string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

func (m *mirror) OnAdd(p *pod, _ bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[m.key(p)] != nil {
		m.t.Errorf("add of %s, which is known", m.key(p))
	}
	m.pods[m.key(p)] = p
	m.told.Add(1)
}

func (m *mirror) OnUpdate(old, p *pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[m.key(p)] != old || old.Metadata.UID != p.Metadata.UID {
		m.t.Errorf("update of %s from %s to %s, which is not what is known", m.key(p), old.is(), p.is())
	}
	m.pods[m.key(p)] = p
	m.told.Add(1)
}

func (m *mirror) OnDelete(d informer.Deletion[*pod]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[d.Key] == nil {
		m.t.Errorf("deletion of %s, which is not known", d.Key)
	}
	m.reasons = append(m.reasons, d.Key+" "+d.Reason.String())
	delete(m.pods, d.Key)
	m.told.Add(1)
}

func (m *mirror) has() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]string{}
	for key, p := range m.pods {
		out[key] = p.is()
	}
	return out
}

// settle waits until the handler has what it must have.
func (m *mirror) settle(t *testing.T, want map[string]string) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		diff := cmp.Diff(want, m.has())
		if diff == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("the handler does not know what there is (-want +got)\n%s", diff)
		}
	}
}

func TestAnInformerOnARealIndexer(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.put(t, "ns/a", "web", false)
	p.put(t, "ns/b", "db", false)
	p.put(t, "other/c", "web", false)
	all, told := p.follow(t, informer.Scope{})
	web, webTold := p.follow(t, informer.Scope{Labels: "app=web", Namespaces: []string{"ns"}})
	ctx := timeout(t, time.Minute)

	// A write is seen by a read that waits for it, also one that is outside of the scope.
	for _, rev := range []client.Revision{p.put(t, "ns/b", "web", false), p.put(t, "other/c", "db", false)} {
		for _, i := range []*informer.Shared[*pod]{all, web} {
			if err := i.Store().AtLeast(ctx, rev); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := web.Store().ByIndex("app", "web"); err != nil || len(got) != 2 {
		t.Errorf("by index: %d, %v; want ns/a and ns/b", len(got), err)
	}
	p.put(t, "ns/a", "db", false) // leaves the filter
	p.put(t, "ns/b", "web", true) // made again
	p.delete(t, "other/c")
	told.settle(t, p.pods)
	webTold.settle(t, map[string]string{"ns/b": p.pods["ns/b"]})
	if diff := cmp.Diff([]string{"ns/a filtered", "ns/b observed"}, webTold.reasons); diff != "" {
		t.Errorf("reasons (-want +got)\n%s", diff)
	}
	late := &mirror{t: t, pods: map[string]*pod{}}
	reg, err := all.AddHandler(late, informer.HandlerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := informer.WaitFor(ctx, reg); err != nil {
		t.Fatal(err)
	}
	late.settle(t, p.pods)
}

func TestAWatchOfARealIndexerTellsDifferences(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.put(t, "ns/same", "x", false)
	p.put(t, "ns/changed", "x", false)
	p.put(t, "ns/new", "x", false)
	known := client.Known{Epoch: p.w.Epoch(), Versions: map[string]string{"ns/same": "2", "ns/changed": "1", "ns/gone": "1"}}
	for name, c := range map[string]struct {
		epoch uint64
		want  []string
	}{
		"the epoch":     {known.Epoch, []string{"1 ns/changed", "1 ns/new", "3 ns/gone"}},
		"another epoch": {known.Epoch - 1, []string{"1 ns/changed", "1 ns/new", "1 ns/same", "3 ns/gone"}},
	} {
		known.Epoch = c.epoch
		var got []string
		for e, err := range p.index.Watch(timeout(t, time.Minute), "dev/pods.v1", client.WatchOptions{
			Known: func() client.Known { return known }, AtLeast: client.Revision{RV: strconv.Itoa(p.rv)},
		}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Type == client.EventInitialEnd {
				break
			}
			if e.Type != client.EventGap {
				got = append(got, fmt.Sprintf("%d %s", e.Type, e.Object.Key))
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: differences (-want +got)\n%s", name, diff)
		}
	}
}

// A random history with connections that break, indexers that are exchanged and an epoch that
// begins: in the end every handler knows what there is, and no notification was out of place.
func TestNothingIsMissedWhileIndexersComeAndGo(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	for n := range 20 {
		p.put(t, fmt.Sprintf("ns/p%d", n), "web", false)
	}
	all, told := p.follow(t, informer.Scope{})
	web, webTold := p.follow(t, informer.Scope{Labels: "app=web"})
	r := rand.New(rand.NewPCG(7, uint64(time.Now().UnixNano()))) //nolint:gosec // a test's history
	for n := range 600 {
		key := fmt.Sprintf("ns/p%d", r.IntN(40))
		if _, there := p.pods[key]; there && r.IntN(4) == 0 {
			p.delete(t, key)
		} else {
			p.put(t, key, []string{"web", "db"}[r.IntN(2)], r.IntN(8) == 0)
		}
		switch n % 200 {
		case 60:
			p.cut()
		case 110:
			p.swap(t)
		case 160:
			p.lead(t, n > 300)
		}
	}
	want := map[string]string{}
	for key, is := range p.pods {
		if strings.Contains(is, " web ") {
			want[key] = is
		}
	}
	told.settle(t, p.pods)
	webTold.settle(t, want)
	ctx := timeout(t, time.Minute)
	for i, want := range map[*informer.Shared[*pod]]int{all: len(p.pods), web: len(want)} {
		if err := i.Store().AtLeast(ctx, client.Revision{RV: strconv.Itoa(p.rv)}); err != nil {
			t.Error(err)
		}
		if got := i.Status(); got.Keys != want || got.Gaps == 0 {
			t.Errorf("status %+v, want %d keys and a gap at the new epoch", got, want)
		}
	}
}
