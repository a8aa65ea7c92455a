package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/nodeagent/nodeagenttest"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// flow is the whole of Deltaplane in this process, over real sockets: dev
// cluster, NATS, reflector, indexer, queue, and controllers as a test starts them.
type flow struct {
	t            *testing.T
	kube         *kube.Client
	deltas       *deltalog.Conn
	index, queue *grpc.ClientConn
	queueAddr    string
	natsURL      string
	log          *pipe  // to NATS
	redisURL     string // empty: the memory engine
	resources    []reflector.Resource
	stopQueue    func()

	indexAddr string

	stopReflector, stopIndex func()
	nodes                    *nodeagenttest.Nodes // nil on a real API server
}

// livenessEvery is how often the log tells that its collections are followed.
const livenessEvery = 500 * time.Millisecond

// service is what every service of ours is to a test.
type service interface {
	Run(ctx context.Context) error
}

// run runs a service and returns what stops it; the test's end does so too.
func (f *flow) run(name string, s service) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context())) // stops come in the order of the cleanups
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				f.t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			f.t.Errorf("%s does not stop", name)
		}
	}
	f.t.Cleanup(stop)
	return stop
}

func (f *flow) telemetry(name string) *telemetry.Telemetry {
	f.t.Helper()
	tel, err := telemetry.Setup(f.t.Context(), telemetry.Config{Service: name, LogOutput: f.t.Output(), LogLevel: "warn"})
	if err != nil {
		f.t.Fatal(err)
	}
	return tel
}

func (f *flow) ok(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func newFlow(t *testing.T) *flow {
	t.Helper()
	f := newFlowOn(t, cluster(t))
	f.startNodes(2, 0)
	return f
}

func newFlowOn(t *testing.T, kc *kube.Client) *flow {
	t.Helper()
	return newFlowOf(t, kc, "")
}

// newFlowWith keeps the queues in Redis.
func newFlowWith(t *testing.T, redisURL string) *flow {
	t.Helper()
	f := newFlowOf(t, cluster(t), redisURL)
	f.startNodes(2, 0)
	return f
}

func newFlowOf(t *testing.T, kc *kube.Client, redisURL string) *flow {
	t.Helper()
	f := &flow{t: t, kube: kc, redisURL: redisURL, resources: reflector.DefaultResources()}
	f.start()
	return f
}

// startNodes runs agents of simulated nodes, and waits until they are ready.
func (f *flow) startNodes(n int, heartbeat time.Duration) {
	f.t.Helper()
	f.nodes = nodeagenttest.Start(f.t, nodeagenttest.Config{Kube: f.kube, Index: f.index, Nodes: n, Heartbeat: heartbeat})
	f.eventually("nodes are ready", func() string {
		page, err := f.kube.List(f.t.Context(), kube.Nodes, kube.ListOptions{})
		f.ok(err)
		if ready := strings.Count(string(bytes.Join(page.Items, nil)), `"KubeletReady"`); ready < n {
			return fmt.Sprint(ready)
		}
		return ""
	})
}

func (f *flow) start() {
	f.t.Helper()
	nats := embeddedtest.NATS(f.t)
	f.log = newPipe(f.t, strings.TrimPrefix(nats.URL(), "nats://"))
	f.natsURL = "nats://" + f.log.lis.Addr().String()
	f.deltas = reached(f, func() (*deltalog.Conn, error) {
		return deltalog.Connect(f.t.Context(), deltalog.Config{URL: f.natsURL})
	})
	f.startReflector()
	f.indexAddr = "127.0.0.1:0"
	f.startIndex()
	f.index = f.dial(f.indexAddr)
	f.queueAddr = "127.0.0.1:0"
	f.startQueue()
	f.queue = f.dial(f.queueAddr)
}

func (f *flow) startReflector() {
	f.t.Helper()
	r, err := reflector.New(reflector.Config{
		Resources: f.resources, LivenessEvery: livenessEvery,
		LeaseTTL: 10 * time.Second, // a busy machine must not depose it
	}, f.connect(), f.kube, f.telemetry("reflector"))
	f.ok(err)
	f.stopReflector = f.run("reflector", r)
}

func (f *flow) startIndex() {
	f.t.Helper()
	x, err := indexer.New(indexer.Config{RPC: rpc.ServerConfig{Listen: f.indexAddr}}, f.connect(), f.telemetry("indexer"))
	f.ok(err)
	f.stopIndex = f.run("indexer", x)
	f.indexAddr, err = x.Addr(f.t.Context())
	f.ok(err)
}

// startQueue starts a queue service; on the memory engine it remembers nothing
// of the one before.
func (f *flow) startQueue() {
	f.t.Helper()
	q, err := queue.New(queue.Config{RPC: rpc.ServerConfig{Listen: f.queueAddr}, RedisURL: f.redisURL}, f.telemetry("queue"))
	f.ok(err)
	f.stopQueue = f.run("queue", q)
	f.queueAddr, err = q.Addr(f.t.Context())
	f.ok(err)
}

func (f *flow) connect() *stream.Conn {
	return reached(f, func() (*stream.Conn, error) {
		return stream.Connect(f.t.Context(), stream.Config{URL: f.natsURL, Log: slog.New(slog.DiscardHandler)})
	})
}

// reached is a connection to NATS, however long that takes.
func reached[C interface{ Close() }](f *flow, connect func() (C, error)) (conn C) {
	f.t.Helper()
	f.eventually("a connection to NATS", func() string {
		var err error
		if conn, err = connect(); err != nil {
			return err.Error()
		}
		return ""
	})
	f.t.Cleanup(conn.Close)
	return conn
}

func (f *flow) dial(addr string) *grpc.ClientConn {
	f.t.Helper()
	conn, err := client.Dial(addr, client.DialConfig{})
	f.ok(err)
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

func (f *flow) controllers(name string, mod func(*Config)) (*Service, func()) {
	f.t.Helper()
	cfg := Config{Identity: name, Check: 200 * time.Millisecond, Grace: 5 * time.Second, Lease: 5 * time.Second}
	if mod != nil {
		mod(&cfg)
	}
	s, err := New(cfg, Deps{Log: f.deltas, Kube: f.kube, Index: f.index, Queue: f.queue, Telemetry: f.telemetry(name)})
	f.ok(err)
	return s, f.run(name, s)
}

// eventually waits until check returns "", and fails with what it last returned.
func (f *flow) eventually(what string, check func() string) {
	f.t.Helper()
	deadline := time.Now().Add(2 * time.Minute) // whatever else the machine does
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: %s", what, problem)
		}
		<-tick.C
	}
}

func (f *flow) createJob(name string, parallelism, completions int, run string) {
	f.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":%q},"spec":{"parallelism":%d,"completions":%d,"template":{
		"metadata":{"annotations":{%q:%q}},"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`,
		name, parallelism, completions, criruntime.RunSecondsAnnotation, run)
	if _, err := f.kube.Create(f.t.Context(), kube.Ref{Resource: kube.Jobs, Namespace: "default"}, []byte(body), kube.WriteOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *flow) job(name string) *batchv1.Job {
	j, err := jobWriter{f.kube}.Job(f.t.Context(), "default", name)
	if err != nil {
		f.t.Fatal(err)
	}
	return j
}

func (f *flow) pods(ofJob string) []corev1.Pod {
	pods, _, err := jobWriter{f.kube}.ListPods(f.t.Context(), "default", "job-name="+ofJob)
	if err != nil {
		f.t.Fatal(err)
	}
	return pods
}

func complete(j *batchv1.Job) string {
	for _, c := range j.Status.Conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return fmt.Sprintf("not complete: %+v", j.Status)
}

func TestAJobBecomesPodsThroughTheWholeFlow(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	a, stopA := f.controllers("a", nil)
	_, stopB := f.controllers("b", nil)
	f.eventually("ready", func() string {
		r := a.Ready(t.Context())
		if r.Ready {
			return ""
		}
		return fmt.Sprint(r.Checks)
	})
	for i := range 10 {
		f.createJob(fmt.Sprintf("j%d", i), 2, 5, "50ms")
	}
	for i := range 10 {
		name := fmt.Sprintf("j%d", i)
		f.eventually(name, func() string { return complete(f.job(name)) })
		pods := f.pods(name)
		if j := f.job(name); len(pods) != 5 || j.Status.Succeeded != 5 {
			t.Errorf("%s: %d pods, %d succeeded; want exactly 5", name, len(pods), j.Status.Succeeded)
		}
		for _, p := range pods {
			if len(p.Finalizers) > 0 {
				t.Errorf("%s keeps its finalizers %v after the Job ended", p.Name, p.Finalizers)
			}
		}
	}
	f.eventually("events", func() string {
		page, err := f.kube.List(t.Context(), kube.Resource{Version: "v1", Name: "events", Kind: "Event", Namespaced: true}, kube.ListOptions{Scope: kube.Scope{Namespace: "default"}})
		if err != nil {
			return err.Error()
		}
		reasons := map[string]int{}
		for _, raw := range page.Items {
			var e corev1.Event
			if err := json.Unmarshal(raw, &e); err != nil {
				return err.Error()
			}
			if e.InvolvedObject.Kind == "Job" {
				reasons[e.Reason]++
			}
		}
		if reasons["SuccessfulCreate"] < 10 || reasons["Completed"] < 10 {
			return fmt.Sprint("reasons: ", reasons)
		}
		return ""
	})
	stopA()
	stopB()
}

func TestALostQueueIsHealedByAddingEveryKey(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	f.controllers("a", nil)
	f.createJob("slow", 2, 6, "300ms")
	f.eventually("pods", func() string {
		if len(f.pods("slow")) == 0 {
			return "none yet"
		}
		return ""
	})
	f.stopQueue()
	f.createJob("born-meanwhile", 1, 1, "50ms")
	f.startQueue() // the memory engine without a directory: everything is gone
	f.eventually("slow", func() string { return complete(f.job("slow")) })
	f.eventually("born-meanwhile", func() string { return complete(f.job("born-meanwhile")) })
	if n := len(f.pods("slow")); n != 6 {
		t.Errorf("%d pods, want exactly 6", n)
	}
}

func TestADeletedJobLeavesNoFinalizer(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	f.controllers("a", nil)
	f.createJob("doomed", 3, 3, "forever")
	f.eventually("pods run", func() string {
		if n := len(f.pods("doomed")); n != 3 {
			return fmt.Sprint(n, " pods")
		}
		return ""
	})
	if _, err := f.kube.Delete(t.Context(), kube.Jobs.Ref("default", "doomed"), kube.DeleteOptions{Propagation: kube.Background}); err != nil {
		t.Fatal(err)
	}
	f.eventually("pods are gone", func() string {
		var left []string
		for _, p := range f.pods("doomed") {
			left = append(left, fmt.Sprint(p.Name, p.Finalizers))
		}
		return strings.Join(left, " ")
	})
}

func TestAReplicaThatStopsHandsItsKeysOn(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	_, stopA := f.controllers("a", nil)
	for i := range 5 {
		f.createJob(fmt.Sprintf("j%d", i), 2, 8, "200ms")
	}
	f.eventually("begun", func() string {
		if f.job("j0").Status.Active == 0 {
			return "not yet"
		}
		return ""
	})
	stopA()
	f.controllers("b", nil)
	for i := range 5 {
		name := fmt.Sprintf("j%d", i)
		f.eventually(name, func() string { return complete(f.job(name)) })
		if n := len(f.pods(name)); n != 8 {
			t.Errorf("%s: %d pods, want exactly 8", name, n)
		}
	}
}
