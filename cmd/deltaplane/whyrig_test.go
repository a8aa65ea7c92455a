package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// nobodyThere is an address at which nothing answers.
const nobodyThere = "127.0.0.1:1"

// asking asks "deltaplane why" of the services at some addresses.
type asking struct {
	t                       *testing.T
	queue, index, reflector string
}

// why asks once, and waits for parts as long as a slow machine needs.
func (a asking) why(args ...string) *why.Answer {
	a.t.Helper()
	out, errs, code := command(a.t.Context(), "", append(append([]string{"why"}, args...),
		"-o", "json", "--timeout", "30s", "--queue-url", a.queue, "--index-url", a.index, "--reflector-url", a.reflector)...)
	answer := new(why.Answer)
	if err := json.Unmarshal([]byte(out), answer); err != nil {
		a.t.Fatalf("why %v exited with %d: %v\n%s%s", args, code, err, out, errs)
	}
	return answer
}

// names waits until the cause of a key is the one wanted, in a sentence that says what is needed.
func (a asking) names(want why.Cause, queue, key string, says ...string) *why.Answer {
	a.t.Helper()
	var last *why.Answer
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	for last == nil || last.Cause != want {
		if ctx.Err() != nil {
			a.t.Fatalf("the cause is %s, want %s:\n%+v", last.Cause, want, last)
		}
		last = a.why("queue", queue, key)
	}
	for _, text := range says {
		if !strings.Contains(last.Sentence, text) {
			a.t.Errorf("the sentence does not name %q: %s", text, last.Sentence)
		}
	}
	return last
}

// works runs a worker on a queue until the test ends.
func (s *servedQueue) works(t *testing.T, queue string, rec client.ReconcilerFunc) {
	t.Helper()
	w, err := client.NewWorker(s.conn, rec, client.WorkerConfig{Queue: queue, Name: "controllers-0/test", Concurrency: 2, Grace: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the worker: %v", err)
		}
	})
}

// fails runs a worker whose runs all end with an error.
func (s *servedQueue) fails(t *testing.T, queue string, err func(context.Context) error) {
	t.Helper()
	s.works(t, queue, func(ctx context.Context, _ client.Item) (client.Result, error) { return client.Result{}, err(ctx) })
}

// silent leases a key of a queue and says nothing more, as a process does that was stopped whole.
func (s *servedQueue) silent(t *testing.T, queue string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	w, err := queuev1.NewQueueServiceClient(s.conn).Work(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*queuev1.WorkRequest{
		{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "s-" + queue, Client: "stopped-0/test", Queues: []string{queue}}}},
		{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: 1}}},
	} {
		if err := w.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for {
		m, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetAssign() != nil {
			return
		}
	}
}

// pipeline is an API server, a log, a reflector and an index of this process.
type pipeline struct {
	asking
	kube          *kube.Client
	log           *embedded.NATS
	gate          *gate
	stopReflector func()
}

// gate is what stands between the log and the index.
type gate struct {
	*stream.Conn
	mu   sync.Mutex
	does func(ctx context.Context, b *delta.Batch) // to batches of what resource; guarded by mu
	of   string
}

// Read reads like the connection, through the gate.
func (g *gate) Read(ctx context.Context, col delta.Collection, cfg stream.ReadConfig, h stream.Handler) error {
	return g.Conn.Read(ctx, col, cfg, func(ctx context.Context, b delta.Batch) error {
		g.mu.Lock()
		does := g.does
		if g.of != col.Resource {
			does = nil
		}
		g.mu.Unlock()
		if does != nil {
			does(ctx, &b)
		}
		return h(ctx, b)
	})
}

// does puts something between the log and the index's collection of a resource.
func (g *gate) set(of string, does func(context.Context, *delta.Batch)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of, g.does = of, does
}

// hold keeps what comes for ever.
func hold(ctx context.Context, _ *delta.Batch) { <-ctx.Done() }

type runnable interface {
	Run(ctx context.Context) error
	Addr(ctx context.Context) (string, error)
}

// startPipeline starts all that mirrors the default resources; a reflector is missed after
// staleAfter.
func startPipeline(t *testing.T, queue string, staleAfter time.Duration) *pipeline {
	t.Helper()
	p := &pipeline{asking: asking{t: t, queue: queue}}
	tel := func(name string) *telemetry.Telemetry {
		tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: name, LogOutput: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		return tel
	}
	run := func(s func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, 1)
		go func() { done <- s(ctx) }()
		stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("a part: %v", err)
			}
		})
		t.Cleanup(stop)
		return stop
	}
	addr := func(s runnable) string {
		at, err := s.Addr(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	api, err := devcluster.New(devcluster.Config{Listen: "127.0.0.1:0", BookmarkEvery: 25 * time.Millisecond}, tel("devcluster").Log)
	if err != nil {
		t.Fatal(err)
	}
	run(api.Run)
	<-api.Ready()
	if p.kube, err = kube.Load(kube.Config{URL: api.URL()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kube.Close)
	if p.log, err = embedded.StartNATS(embedded.NATSConfig{Dir: filepath.Join(t.TempDir(), "nats")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(p.log.Stop))
	connect := func(name string) *stream.Conn {
		cfg := stream.Config{Name: name, Memory: true}
		cfg.Options = append(cfg.Options, p.log.InProcess())
		conn, err := stream.Connect(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return conn
	}
	off := telemetry.AdminConfig{Listen: "off"}
	p.gate = &gate{Conn: connect("indexer")}
	index, err := indexer.New(indexer.Config{Admin: off, DiscoverEvery: 50 * time.Millisecond, StaleAfter: staleAfter}, p.gate, tel("indexer"))
	if err != nil {
		t.Fatal(err)
	}
	run(index.Run)
	p.index = addr(index)
	mirror, err := reflector.New(reflector.Config{Admin: off, Cluster: "dev", LivenessEvery: 50 * time.Millisecond}, connect("reflector"), p.kube, tel("reflector"))
	if err != nil {
		t.Fatal(err)
	}
	p.stopReflector = run(mirror.Run)
	p.reflector = addr(mirror)
	p.node("first")
	until(t, func() bool {
		_, _, code := command(t.Context(), "", "get", "nodes", "first", "--index-url", p.index)
		return code == 0
	})
	return p
}

// node creates a node and returns its resource version.
func (p *pipeline) node(name string) string {
	p.t.Helper()
	answer, err := p.kube.Create(p.t.Context(), kube.Ref{Resource: kube.Resource{Version: "v1", Name: "nodes"}},
		[]byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+name+`"}}`), kube.WriteOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	var o struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(answer, &o); err != nil {
		p.t.Fatal(err)
	}
	return o.Metadata.ResourceVersion
}

// awaits has a worker of a queue read the index at a key's barrier, which it adds.
func (p *pipeline) awaits(s *servedQueue, queue, collection, rv string) {
	p.t.Helper()
	conn, err := client.Dial(p.index, client.DialConfig{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	index := client.NewIndex(conn)
	at := client.Revision{Epoch: p.epoch(index), RV: rv}
	s.must("queue", "configure", queue, "--rate-limiter", "exponential:10ms,10ms")
	s.works(p.t, queue, func(ctx context.Context, item client.Item) (client.Result, error) {
		_, _, err := index.Find(ctx, collection, item.Key, client.ReadOptions{AtLeast: item.AtLeast(collection), Timeout: 100 * time.Millisecond})
		if err == nil {
			err = client.Terminal(errors.New("the index has reached the barrier"))
		}
		return client.Result{}, err
	})
	q := client.NewQueue(s.conn, queue, "")
	if _, err := q.Add(p.t.Context(), client.AddItem{Key: "late", Barrier: client.Barrier{collection: at}}); err != nil {
		p.t.Fatal(err)
	}
}

// epoch is that of the nodes.
func (p *pipeline) epoch(index *client.Index) uint64 {
	p.t.Helper()
	_, bounds, err := index.Find(p.t.Context(), "dev/nodes.v1", "first", client.ReadOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return bounds.Epoch
}
