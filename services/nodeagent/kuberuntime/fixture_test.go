package kuberuntime_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// node is a runtime and the manager of one node on it.
type node struct {
	t   *testing.T
	rt  *criruntime.Server
	cfg kuberuntime.Config
	m   *kuberuntime.Manager
	rec *recorder
}

func newNode(t *testing.T, cfg kuberuntime.Config) *node {
	t.Helper()
	rt, err := criruntime.New(criruntime.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Errorf("close the runtime: %v", err)
		}
	})
	if cfg.Node == "" {
		cfg.Node = "n1"
	}
	n := &node{t: t, rt: rt, cfg: cfg, rec: &recorder{}}
	n.restart()
	return n
}

// restart is a new agent: what it keeps in memory is gone.
func (n *node) restart() {
	n.t.Helper()
	m, err := kuberuntime.New(n.cfg, cri.NewClient(n.rt.Conn()), kuberuntime.Deps{
		Recorder: n.rec, Log: slog.New(slog.NewTextHandler(n.t.Output(), nil)),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.m = m
}

func (n *node) status(pod *corev1.Pod) *container.PodStatus {
	n.t.Helper()
	s, err := n.m.PodStatus(n.t.Context(), pod.UID, pod.Namespace, pod.Name)
	if err != nil {
		n.t.Fatalf("status: %v", err)
	}
	return s
}

func (n *node) sync(pod *corev1.Pod) kuberuntime.Result {
	n.t.Helper()
	return n.m.SyncPod(n.t.Context(), pod, n.status(pod), kuberuntime.Inputs{})
}

// mustSync syncs a pod that nothing is wrong with.
func (n *node) mustSync(pod *corev1.Pod) {
	n.t.Helper()
	if r := n.sync(pod); r.Err != nil {
		n.t.Fatalf("sync: %v", r.Err)
	}
}

// state writes down a pod: NAME/ATTEMPT:STATE for each container, by name and attempt.
func (n *node) state(pod *corev1.Pod) string {
	n.t.Helper()
	var out []string
	for _, c := range n.status(pod).Containers {
		s := fmt.Sprintf("%s/%d:%s", c.Name, c.Attempt, c.State)
		if c.State == container.Exited {
			s += fmt.Sprintf("(%d)", c.ExitCode)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// eventually waits until a pod is in a state.
func (n *node) eventually(pod *corev1.Pod, want string) {
	n.t.Helper()
	var got string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if got = n.state(pod); got == want {
			return
		}
		pause(n.t.Context(), 5*time.Millisecond)
	}
	n.t.Fatalf("the pod is %q, want %q", got, want)
}

// pause waits a moment, of a test's own clock within a bubble.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Event(_ kube.Involved, eventType, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, eventType+" "+reason+" "+message)
}

func (r *recorder) has(part string) bool { return r.count(part) > 0 }

func (r *recorder) count(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.events {
		if strings.Contains(e, part) {
			n++
		}
	}
	return n
}

// newPod is a pod with containers of these names that run for ever.
func newPod(name string, policy corev1.RestartPolicy, containers ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), Annotations: map[string]string{
			criruntime.RunSecondsAnnotation: "forever",
		}},
		Spec: corev1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: new(int64(2))},
	}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c, Image: "app:1", ImagePullPolicy: corev1.PullIfNotPresent})
	}
	return p
}

// with sets an annotation, by key and value.
func with(p *corev1.Pod, kv ...string) *corev1.Pod {
	for i := 0; i < len(kv); i += 2 {
		p.Annotations[kv[i]] = kv[i+1]
	}
	return p
}

// pod is what the runtime lists of a pod.
func (n *node) pod(pod *corev1.Pod) container.Pod {
	n.t.Helper()
	pods, err := n.m.Pods(n.t.Context(), true)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range pods {
		if p.UID == pod.UID {
			return p
		}
	}
	return container.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
}

// idOf is the container a request is about.
func idOf(request any) string {
	r, ok := request.(interface{ GetContainerId() string })
	if !ok {
		return ""
	}
	return r.GetContainerId()
}
