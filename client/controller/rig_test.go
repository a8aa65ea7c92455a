package controller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/queue"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).Start.func1"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/sysmem.init"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	)
}

// rig is a log that the test writes to in place of a reflector, an indexer and a queue, over
// real sockets.
type rig struct {
	t    *testing.T
	nats func() *stream.Conn
	// deltas, where set, is what replicas follow in place of the index.
	deltas  func() *deltalog.Conn
	options []nats.Option

	mu      sync.Mutex // guards what follows
	writers map[string]*stream.Writer
	term    uint64
	rv      int
	uids    map[string]string // of what lives
	// owners are those that objects have had, as a reflector writes them.
	owners map[string][]delta.Owner
	trace  string // traceparent of the records that put writes

	indexAddr, queueAddr string
	stopIndex, stopQueue func()
}

func newRig(t *testing.T, collections ...string) *rig {
	t.Helper()
	n := embeddedtest.NATS(t)
	r := &rig{t: t, writers: map[string]*stream.Writer{}, uids: map[string]string{}, owners: map[string][]delta.Owner{}, indexAddr: "127.0.0.1:0", queueAddr: "127.0.0.1:0"}
	r.options = []nats.Option{n.InProcess()}
	r.nats = func() *stream.Conn {
		t.Helper()
		conn, err := stream.Connect(t.Context(), stream.Config{Options: r.options, TombstoneTTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	for _, collection := range collections {
		r.lead(collection, false)
	}
	r.startIndex()
	r.startQueue()
	return r
}

// onEachSource runs a test with replicas that follow the index, and with some that follow the log.
func onEachSource(t *testing.T, test func(t *testing.T, r *rig), collections ...string) {
	t.Helper()
	for _, source := range []string{"index", "log"} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, collections...)
			if source == "log" {
				r.deltas = func() *deltalog.Conn {
					conn, err := deltalog.Connect(t.Context(), deltalog.Config{Options: r.options, TombstoneTTL: time.Minute})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(conn.Close)
					return conn
				}
			}
			test(t, r)
		})
	}
}

func collectionOf(resource string) delta.Collection {
	return delta.Collection{Cluster: "dev", Version: "v1", Resource: resource}
}

// lead begins a log as its next writer; a new epoch holds nothing.
func (r *rig) lead(resource string, newEpoch bool) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	conn := r.nats()
	deadline := time.Now().Add(time.Minute)
	for {
		r.term++
		w, err := conn.Writer(r.t.Context(), collectionOf(resource), stream.WriterConfig{Term: r.term, Holder: "test", NewEpoch: newEpoch})
		if errors.Is(err, stream.ErrUnavailable) && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(w.Close)
		r.writers[resource] = w
		break
	}
	r.rv++
	r.append(resource, delta.Record{Kind: delta.KindSynced, RV: strconv.Itoa(r.rv), Watermark: strconv.Itoa(r.rv)})
}

func (r *rig) append(resource string, records ...delta.Record) {
	r.t.Helper()
	w := r.writers[resource]
	if err := errors.Join(w.Append(r.t.Context(), records), w.Flush(r.t.Context())); err != nil {
		r.t.Error(err)
	}
}

// object is what the tests' objects are.
type object struct {
	Kind     string   `json:"kind"`
	Metadata metadata `json:"metadata"`
	Value    string   `json:"value"`
}

type metadata struct {
	Namespace       string  `json:"namespace,omitempty"`
	Name            string  `json:"name"`
	UID             string  `json:"uid"`
	ResourceVersion string  `json:"resourceVersion"`
	Owners          []owner `json:"ownerReferences,omitempty"`
}

type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// put writes an object and returns its resource version.
func (r *rig) put(resource, key, value string, owners ...string) string {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rv++
	id, rv := resource+" "+key, strconv.Itoa(r.rv)
	if r.uids[id] == "" {
		r.uids[id] = "uid-" + rv
	}
	namespace, name := delta.Key(key).Namespace(), delta.Key(key).Name()
	o := object{Kind: "Thing", Value: value, Metadata: metadata{Namespace: namespace, Name: name, UID: r.uids[id], ResourceVersion: rv}}
	record := delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: delta.Key(key), UID: r.uids[id], RV: rv, Watermark: rv, Encoding: delta.EncodingJSON, Trace: r.trace}
	for _, of := range owners {
		is := owner{APIVersion: "v1", Kind: "Pod", Name: of, UID: r.uids["pods "+namespace+"/"+of]}
		o.Metadata.Owners = append(o.Metadata.Owners, is)
		if owner := (delta.Owner{Kind: is.Kind, Name: is.Name, UID: is.UID}); !slices.Contains(r.owners[id], owner) {
			r.owners[id] = append(r.owners[id], owner)
		}
	}
	record.Owners = slices.Clone(r.owners[id])
	record.Payload, _ = json.Marshal(o)
	record.Hash = delta.Hash(record.Payload)
	r.append(resource, record)
	return rv
}

// traced is put of a record that has the context of its event.
func (r *rig) traced(trace, resource, key, value string, owners ...string) {
	r.t.Helper()
	r.trace = trace
	r.put(resource, key, value, owners...)
	r.trace = ""
}

func (r *rig) delete(resource, key string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rv++
	rv, id := strconv.Itoa(r.rv), resource+" "+key
	r.append(resource, delta.Record{
		Kind: delta.KindDelta, Type: delta.Deleted, DeleteReason: delta.Observed, Key: delta.Key(key), RV: rv, Watermark: rv, Owners: slices.Clone(r.owners[id]),
	})
	delete(r.uids, id)
}

type service interface {
	Run(ctx context.Context) error
	Addr(ctx context.Context) (string, error)
}

func (r *rig) run(s service) (addr string, stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("a service: %v", err)
		}
	})
	r.t.Cleanup(stop)
	addr, err := s.Addr(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return addr, stop
}

func (r *rig) telemetry(name string) *telemetry.Telemetry {
	r.t.Helper()
	tel, err := telemetry.Setup(r.t.Context(), telemetry.Config{Service: name, LogOutput: io.Discard})
	if err != nil {
		r.t.Fatal(err)
	}
	return tel
}

func (r *rig) startIndex() { r.indexAddr, r.stopIndex = r.newIndex(r.indexAddr, r.nats()) }

func (r *rig) newIndex(listen string, conn *stream.Conn) (addr string, stop func()) {
	r.t.Helper()
	s, err := indexer.New(indexer.Config{
		RPC: rpc.ServerConfig{Listen: listen}, Admin: telemetry.AdminConfig{Listen: "off"}, DiscoverEvery: 20 * time.Millisecond,
	}, conn, r.telemetry("indexer"))
	if err != nil {
		r.t.Fatal(err)
	}
	return r.run(s)
}

// startQueue starts a queue service that remembers nothing of the one before.
func (r *rig) startQueue() {
	r.t.Helper()
	s, err := queue.New(queue.Config{RPC: rpc.ServerConfig{Listen: r.queueAddr}, Admin: telemetry.AdminConfig{Listen: "off"}}, r.telemetry("queue"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.queueAddr, r.stopQueue = r.run(s)
}

// replica is a controller that runs, on connections of its own.
type replica struct {
	*controller.Controller
	name  string
	stop  func() // waits
	lines lines
	err   chan error

	mu     sync.Mutex // guards the rest
	events []controller.Event
}

// lines are connections that can be cut for ever, as when a process or its machine dies.
type lines struct {
	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func (l *lines) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		conn.Close()
		return nil, errors.New("the machine is dead")
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

func (l *lines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	for _, conn := range l.conns {
		conn.Close()
	}
}

// replica runs a controller until the test ends or it is stopped.
func (r *rig) replica(name string, build func(*controller.Controller), rec func(context.Context, *replica, controller.Request) (controller.Result, error), change func(*controller.Options)) *replica {
	r.t.Helper()
	p := &replica{name: name, err: make(chan error, 1)}
	dial := func(addr string) *grpc.ClientConn {
		conn, err := client.Dial(addr, client.DialConfig{Dialer: p.lines.dial})
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { conn.Close() })
		return conn
	}
	o := controller.Options{
		Name: "test", Identity: name, Check: 500 * time.Millisecond, Grace: 5 * time.Second, Log: slog.New(slog.DiscardHandler),
		Queue: client.QueueConfig{RateLimiter: client.Exponential(5*time.Millisecond, time.Second)},
		OnEvent: func(e controller.Event) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.events = append(p.events, e)
		},
	}
	if change != nil {
		change(&o)
	}
	if r.deltas != nil {
		o.Deltas = r.deltas()
	}
	p.Controller = controller.New(dial(r.indexAddr), dial(r.queueAddr), o)
	build(p.Controller)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.err <- p.Run(ctx, func(ctx context.Context, req controller.Request) (controller.Result, error) { return rec(ctx, p, req) })
	}()
	p.stop = func() { cancel(); <-done }
	r.t.Cleanup(p.stop)
	return p
}

// count is how many events of a kind there were.
func (p *replica) count(kind controller.EventKind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, e := range p.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (p *replica) first(kind controller.EventKind) controller.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.events, func(e controller.Event) bool { return e.Kind == kind }); i >= 0 {
		return p.events[i]
	}
	return controller.Event{}
}

// unreached is the last failure of a run that waited for a revision: on a slow machine a call may
// fail by its deadline before that.
func (p *replica) unreached() controller.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range slices.Backward(p.events) {
		if e.Kind == controller.EventReconcileFailed && errors.Is(e.Err, client.ErrRevisionNotReached) {
			return e
		}
	}
	return controller.Event{}
}

func (p *replica) leads() bool {
	return p.count(controller.EventLeading) > p.count(controller.EventLed)
}

func (r *rig) leader(of ...*replica) *replica {
	r.t.Helper()
	var is *replica
	r.eventually("somebody leads", func() string {
		for _, p := range of {
			if p.leads() {
				is = p
				return ""
			}
		}
		return "nobody"
	})
	return is
}

func (r *rig) ready(of ...*replica) {
	r.t.Helper()
	for _, p := range of {
		r.eventually(p.name+" is ready", func() string {
			if err := p.Ready(); err != nil {
				return err.Error()
			}
			return ""
		})
	}
}

func (r *rig) eventually(what string, check func() string) {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute) // whatever else the machine does
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: %s", what, problem)
		}
		<-tick.C
	}
}

// ledger is what reconciles saw, over all replicas.
type ledger struct {
	mu      sync.Mutex
	runs    int
	of      map[string]int
	last    map[string]string // value, or "gone"
	running map[string]bool
	twice   []string
}

func newLedger() *ledger {
	return &ledger{of: map[string]int{}, last: map[string]string{}, running: map[string]bool{}}
}

// reconcile reads the pod of a key.
func (l *ledger) reconcile(ctx context.Context, p *replica, req controller.Request) (controller.Result, error) {
	l.mu.Lock()
	if l.running[req.Key()] {
		l.twice = append(l.twice, req.Key())
	}
	l.running[req.Key()] = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running[req.Key()] = false
	}()
	pod, err := controller.Get[object](ctx, p.Controller, "pods", req.Key())
	value := "gone"
	switch {
	case err == nil:
		value = pod.Value
	case !errors.Is(err, client.ErrKeyNotFound):
		return controller.Result{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs++
	l.of[req.Key()]++
	l.last[req.Key()] = value
	return controller.Result{}, nil
}

func (l *ledger) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs
}

func (l *ledger) ran(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[key]
}

// shows waits until every key was last seen as wanted.
func (l *ledger) shows(r *rig, want map[string]string) {
	r.t.Helper()
	r.eventually("every key was seen as it is", func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		for key, value := range want {
			if l.last[key] != value {
				return fmt.Sprintf("%s was seen as %q, is %q", key, l.last[key], value)
			}
		}
		return ""
	})
}

// settled waits until everything that was written before has been reconciled.
func (r *rig) settled(l *ledger, marker string) {
	r.t.Helper()
	r.put("pods", "ns/marker", marker)
	l.shows(r, map[string]string{"ns/marker": marker})
	conn, err := client.Dial(r.queueAddr, client.DialConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	q := client.NewQueue(conn, "dev/test", "")
	r.eventually("the queue is empty", func() string {
		n, err := q.Len(r.t.Context())
		if err != nil || n.Ready+n.Processing > 0 {
			return fmt.Sprint(n, err)
		}
		return ""
	})
}

func forPods(c *controller.Controller) { c.For("pods") }

// dialed is a connection that lasts as long as the test.
func dialed(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := client.Dial(addr, client.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
