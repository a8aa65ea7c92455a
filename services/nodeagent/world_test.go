package nodeagent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/nodeagent"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// world is what an agent needs around it: an API server, the pipeline over real
// sockets, and a simulated runtime behind real gRPC.
type world struct {
	t       *testing.T
	kube    *kube.Client
	natsURL string
	addr    string // of the index
	index   *grpc.ClientConn
	runtime *criruntime.Server
	root    string

	stopIndex func()
}

// service is what every service of ours is to a test.
type service interface {
	Run(ctx context.Context) error
}

// run runs a service and returns what stops it and gives its error; the test's end does so too.
func (w *world) run(name string, s service) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(30 * time.Second):
			return fmt.Errorf("%s does not stop", name)
		}
	}
	w.t.Cleanup(func() { w.ok(stop()) })
	return stop
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Error(err)
		w.t.FailNow()
	}
}

func (w *world) telemetry(name, level string) *telemetry.Telemetry {
	w.t.Helper()
	tel, err := telemetry.Setup(w.t.Context(), telemetry.Config{Service: name, LogOutput: w.t.Output(), LogLevel: level})
	w.ok(err)
	return tel
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, root: t.TempDir(), addr: "127.0.0.1:0"}
	dc := devclustertest.Start(t, devcluster.Config{})
	var err error
	w.kube, err = kube.Load(kube.Config{URL: dc.URL()})
	w.ok(err)
	t.Cleanup(w.kube.Close)
	w.natsURL = embeddedtest.NATS(t).URL()
	r, err := reflector.New(reflector.Config{LivenessEvery: 500 * time.Millisecond}, w.stream(), w.kube, w.telemetry("reflector", "error"))
	w.ok(err)
	w.run("reflector", r)
	w.startIndex()
	w.index, err = client.Dial(w.addr, client.DialConfig{})
	w.ok(err)
	t.Cleanup(func() { w.index.Close() })
	w.startRuntime(criruntime.Config{})
	return w
}

func (w *world) startIndex() {
	w.t.Helper()
	x, err := indexer.New(indexer.Config{RPC: rpc.ServerConfig{Listen: w.addr}}, w.stream(), w.telemetry("indexer", "error"))
	w.ok(err)
	stop := w.run("indexer", x)
	w.stopIndex = func() { w.ok(stop()) }
	w.addr, err = x.Addr(w.t.Context())
	w.ok(err)
}

// startRuntime starts a runtime that remembers; a test that replaces one closes it before.
func (w *world) startRuntime(cfg criruntime.Config) {
	w.t.Helper()
	cfg.Dir = w.root + "/cri"
	var err error
	w.runtime, err = criruntime.New(cfg)
	w.ok(err)
	runtime := w.runtime
	w.t.Cleanup(func() { _ = runtime.Close() })
}

func (w *world) stream() *stream.Conn {
	w.t.Helper()
	conn, err := stream.Connect(w.t.Context(), stream.Config{URL: w.natsURL, Log: slog.New(slog.DiscardHandler)})
	w.ok(err)
	w.t.Cleanup(conn.Close)
	return conn
}

// newAgent makes the agent of node "n".
func (w *world) newAgent(mod func(*nodeagent.Config, *nodeagent.Deps)) *nodeagent.Agent {
	w.t.Helper()
	cfg := nodeagent.Config{
		Node: "n", RootDir: w.root + "/agent", LogRoot: w.root + "/logs", Grace: time.Second, Relist: 200 * time.Millisecond,
		Heartbeat: time.Second, Housekeeping: 200 * time.Millisecond,
		Admin: telemetry.AdminConfig{Listen: "off"},
	}
	deps := nodeagent.Deps{Kube: w.kube, Index: w.index, Runtime: w.runtime.Conn(), Telemetry: w.telemetry("agent", level())}
	if mod != nil {
		mod(&cfg, &deps)
	}
	a, err := nodeagent.New(cfg, deps)
	w.ok(err)
	return a
}

// level is that of the agents' logs in tests.
func level() string {
	if testing.Verbose() && os.Getenv("DEBUG") != "" {
		return "debug"
	}
	return "info"
}

// start runs an agent and waits until it is ready.
func (w *world) start(mod func(*nodeagent.Config, *nodeagent.Deps)) (stop func() error) {
	w.t.Helper()
	a := w.newAgent(mod)
	stop = w.run("agent", a)
	w.eventually("the agent is ready", func() string {
		r := a.Ready(w.t.Context())
		if r.Ready {
			return ""
		}
		return fmt.Sprint(r.Checks)
	})
	return stop
}

// eventually waits until check returns "", and fails with what it last returned.
func (w *world) eventually(what string, check func() string) {
	w.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %s", what, problem)
		}
		<-tick.C
	}
}

var podResource = kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}

func ref(name string) kube.Ref {
	return kube.Ref{Resource: podResource, Namespace: "default", Name: name}
}

// create makes a pod bound to node n; annotations say what its containers do.
func (w *world) create(name string, spec map[string]any, annotations map[string]string) types.UID {
	w.t.Helper()
	full := map[string]any{
		"nodeName": "n", "restartPolicy": "Never", "terminationGracePeriodSeconds": 2,
		"containers": []map[string]any{{"name": "c", "image": "app:1"}},
	}
	maps.Copy(full, spec)
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "annotations": annotations}, "spec": full,
	})
	w.ok(err)
	raw, err := w.kube.Create(w.t.Context(), kube.Ref{Resource: podResource, Namespace: "default"}, body, kube.WriteOptions{})
	w.ok(err)
	var pod corev1.Pod
	w.ok(json.Unmarshal(raw, &pod))
	return pod.UID
}

// pod reads a pod from the API server; nil when there is none.
func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()
	raw, err := w.kube.Get(w.t.Context(), ref(name))
	if kube.IsNotFound(err) {
		return nil
	}
	w.ok(err)
	pod := new(corev1.Pod)
	w.ok(json.Unmarshal(raw, pod))
	return pod
}

// becomes waits until the pod's phase is one.
func (w *world) becomes(name string, phase corev1.PodPhase) *corev1.Pod {
	w.t.Helper()
	var last *corev1.Pod
	w.eventually(name+" becomes "+string(phase), func() string {
		if last = w.pod(name); last == nil {
			return "there is no such pod"
		}
		if last.Status.Phase == phase {
			return ""
		}
		text, _ := json.Marshal(last.Status)
		return string(text)
	})
	return last
}

// vanishes waits until the API server has the pod no longer.
func (w *world) vanishes(name string) {
	w.t.Helper()
	w.eventually(name+" vanishes", func() string {
		pod := w.pod(name)
		if pod == nil {
			return ""
		}
		text, _ := json.Marshal(pod)
		return string(text)
	})
}

// events are the Events about a pod, "reason: message".
func (w *world) events(name string) string {
	w.t.Helper()
	page, err := w.kube.List(w.t.Context(), kube.Resource{Version: "v1", Name: "events", Kind: "Event", Namespaced: true}, kube.ListOptions{})
	w.ok(err)
	var lines []string
	for _, item := range page.Items {
		var e corev1.Event
		w.ok(json.Unmarshal(item, &e))
		if e.InvolvedObject.Name == name {
			lines = append(lines, e.Reason+": "+e.Message)
		}
	}
	return strings.Join(lines, "\n")
}

// told waits until an Event about a pod holds a text.
func (w *world) told(name, text string) {
	w.t.Helper()
	w.eventually("an Event about "+name, func() string {
		if all := w.events(name); !strings.Contains(all, text) {
			return fmt.Sprintf("no Event holds %q:\n%s", text, all)
		}
		return ""
	})
}

// node reads node n.
func (w *world) node() *corev1.Node {
	w.t.Helper()
	raw, err := w.kube.Get(w.t.Context(), kube.Ref{Resource: kube.Resource{Version: "v1", Name: "nodes", Kind: "Node"}, Name: "n"})
	w.ok(err)
	n := new(corev1.Node)
	w.ok(json.Unmarshal(raw, n))
	return n
}

// nodeOrNil reads node n; nil when there is none.
func (w *world) nodeOrNil() *corev1.Node {
	w.t.Helper()
	_, err := w.kube.Get(w.t.Context(), kube.Ref{Resource: kube.Resource{Version: "v1", Name: "nodes", Kind: "Node"}, Name: "n"})
	if kube.IsNotFound(err) {
		return nil
	}
	return w.node()
}

// indexed reports whether the index has a pod.
func (w *world) indexed(key string) bool {
	w.t.Helper()
	obj, _, err := client.NewIndex(w.index).Find(w.t.Context(), "dev/pods.v1", key, client.ReadOptions{})
	w.ok(err)
	return obj != nil
}

// allContainers are those of all pods in the runtime, as "pod container".
func (w *world) allContainers() []string {
	w.t.Helper()
	resp, err := w.cri().ListContainers(w.t.Context(), &runtimeapi.ListContainersRequest{})
	w.ok(err)
	var all []string
	for _, c := range resp.GetContainers() {
		all = append(all, c.GetLabels()[container.LabelPodName]+" "+c.GetMetadata().GetName())
	}
	return all
}

// deaf is a client of the API server that a test can cut off, while others still reach it.
type deaf struct {
	client *kube.Client
	deaf   atomic.Bool
}

// deafKube returns such a client, by a proxy of its own.
func (w *world) deafKube() *deaf {
	w.t.Helper()
	d := &deaf{}
	target, err := url.Parse(w.kube.Address())
	w.ok(err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if d.deaf.Load() {
			http.Error(rw, "switched off by the test", http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(rw, r)
	}))
	w.t.Cleanup(srv.Close)
	d.client, err = kube.Load(kube.Config{URL: srv.URL})
	w.ok(err)
	w.t.Cleanup(d.client.Close)
	return d
}

// nodeReady waits until the node's condition Ready has a status.
func (w *world) nodeReady(want corev1.ConditionStatus) (message string) {
	w.t.Helper()
	w.eventually("the node's Ready is "+string(want), func() string {
		for _, c := range w.node().Status.Conditions {
			if c.Type == corev1.NodeReady {
				message = c.Message
				if c.Status == want {
					return ""
				}
				return string(c.Status) + ": " + c.Message
			}
		}
		return "there is no such condition"
	})
	return message
}

// cri is a client of the runtime, beside the agent.
func (w *world) cri() *cri.Client { return cri.NewClient(w.runtime.Conn()) }

// containers are those of a pod in the runtime, dead ones too, as "name/attempt state".
func (w *world) containers(uid types.UID) []string {
	w.t.Helper()
	resp, err := w.cri().ListContainers(w.t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{container.LabelPodUID: string(uid)},
	}})
	w.ok(err)
	var all []string
	for _, c := range resp.GetContainers() {
		all = append(all, fmt.Sprintf("%s/%d %s", c.GetMetadata().GetName(), c.GetMetadata().GetAttempt(), strings.ToLower(strings.TrimPrefix(c.GetState().String(), "CONTAINER_"))))
	}
	slices.Sort(all)
	return all
}

// statuses are the containers of a pod in full; one that vanishes meanwhile is left out.
func (w *world) statuses(uid types.UID) []*runtimeapi.ContainerStatus {
	w.t.Helper()
	resp, err := w.cri().ListContainers(w.t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{container.LabelPodUID: string(uid)},
	}})
	w.ok(err)
	var all []*runtimeapi.ContainerStatus
	for _, c := range resp.GetContainers() {
		s, err := w.cri().ContainerStatus(w.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
		if cri.IsNotFound(err) {
			continue
		}
		w.ok(err)
		all = append(all, s.GetStatus())
	}
	return all
}

// remove deletes a pod; grace nil leaves it to the pod.
func (w *world) remove(name string, grace *int64) {
	w.t.Helper()
	_, err := w.kube.Delete(w.t.Context(), ref(name), kube.DeleteOptions{Grace: grace})
	w.ok(err)
}
