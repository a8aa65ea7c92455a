package nodeagent_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// cut is a connection to a runtime that a test can make fail as one whose socket is gone.
type cut struct {
	grpc.ClientConnInterface
	off atomic.Bool
}

// noNetwork is a connection to a runtime that says it has no network for pods.
type noNetwork struct {
	grpc.ClientConnInterface
	off atomic.Bool
}

func (c *noNetwork) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if r, ok := reply.(*runtimeapi.StatusResponse); ok && err == nil && c.off.Load() {
		for _, condition := range r.GetStatus().GetConditions() {
			if condition.GetType() == runtimeapi.NetworkReady {
				condition.Status, condition.Reason, condition.Message = false, "NetworkPluginNotReady", "no network plugin"
			}
		}
	}
	return err
}

var errOff = status.Error(codes.Unavailable, "connection refused by the test")

func (c *cut) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if c.off.Load() {
		return errOff
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (c *cut) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if c.off.Load() {
		return nil, errOff
	}
	return c.ClientConnInterface.NewStream(ctx, desc, method, opts...)
}

func TestARuntimeThatIsDownMakesTheNodeNotReadyAndIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	line := &cut{ClientConnInterface: w.runtime.Conn()}
	line.off.Store(true)
	w.run("agent", w.newAgent(func(_ *nodeagent.Config, d *nodeagent.Deps) { d.Runtime = line }))
	w.eventually("the node is registered", func() string {
		if w.nodeOrNil() == nil {
			return "there is no node"
		}
		return ""
	})
	if message := w.nodeReady(corev1.ConditionFalse); !strings.Contains(message, "runtime") {
		t.Errorf("the node is not ready for %q, want the runtime named", message)
	}
	w.create("early", nil, runs(forever))
	line.off.Store(false)
	w.nodeReady(corev1.ConditionTrue)
	w.becomes("early", corev1.PodRunning)

	line.off.Store(true) // in the middle
	w.nodeReady(corev1.ConditionFalse)
	w.create("meanwhile", nil, runs("100ms"))
	w.remove("early", nil)
	line.off.Store(false)
	w.nodeReady(corev1.ConditionTrue)
	w.becomes("meanwhile", corev1.PodSucceeded)
	w.vanishes("early")
}

// slow is a connection to a runtime that takes its time.
type slow struct {
	grpc.ClientConnInterface
	by time.Duration
}

func (s slow) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.by):
	}
	return s.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func TestANodeIsFirstReportedWhenItsRuntimeWasAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run("agent", w.newAgent(func(_ *nodeagent.Config, d *nodeagent.Deps) {
		d.Runtime = slow{w.runtime.Conn(), 500 * time.Millisecond}
	}))
	w.eventually("the node is registered", func() string {
		if w.nodeOrNil() == nil {
			return "there is no node"
		}
		return ""
	})
	for _, c := range w.node().Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			t.Errorf("Ready is %s (%s): the node would be tainted for nothing", c.Status, c.Message)
		}
	}
}

func TestAnIndexThatIsAwayOrRestartsEndsNoPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(func(c *nodeagent.Config, _ *nodeagent.Deps) {
		c.CrashLoop = kuberuntime.Backoff{Initial: 200 * time.Millisecond, Max: 400 * time.Millisecond}
	})
	uid := w.create("runs", nil, runs(forever))
	gone := w.create("gone", nil, runs(forever))
	w.create("crash", map[string]any{"restartPolicy": "Always"}, map[string]string{criruntime.RunSecondsAnnotation: "100ms"})
	w.becomes("runs", corev1.PodRunning)
	w.becomes("gone", corev1.PodRunning)
	restarts := func() int32 {
		if s := w.pod("crash").Status.ContainerStatuses; len(s) == 1 {
			return s[0].RestartCount
		}
		return 0
	}
	w.eventually("the agent knows the third", func() string {
		if restarts() == 0 {
			return "it was not restarted"
		}
		return ""
	})
	w.stopIndex()
	before := restarts()
	w.eventually("containers are restarted while the index is away", func() string {
		if restarts() < before+3 {
			return "not yet"
		}
		return ""
	})
	w.remove("gone", new(int64(0)))
	if got := w.containers(gone); !slices.Equal(got, []string{"c/0 running"}) {
		t.Errorf("containers are %v: nobody can have told of the deletion yet", got)
	}
	w.startIndex() // knows nothing at first, then all: one pod is gone from it
	w.eventually("the pod that was removed meanwhile is ended", func() string { return strings.Join(w.containers(gone), " ") })
	if got := w.containers(uid); !slices.Equal(got, []string{"c/0 running"}) {
		t.Errorf("containers are %v, want the one that ran before", got)
	}
}

func TestWhatRunsAndIsNoPodOfTheNodeIsEndedOnlyWhenTheAPIServerSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.start(nil)
	uid := w.create("orphan", nil, runs(forever))
	kept := w.create("kept", nil, runs(forever))
	w.becomes("orphan", corev1.PodRunning)
	w.becomes("kept", corev1.PodRunning)
	w.ok(stop())
	w.remove("orphan", new(int64(0)))
	w.eventually("the index knows", func() string {
		if w.indexed("default/orphan") {
			return "it still has the pod"
		}
		return ""
	})
	line := w.deafKube()
	w.start(func(_ *nodeagent.Config, d *nodeagent.Deps) { d.Kube = line.client })
	line.deaf.Store(true) // registered; now the API server is away
	w.create("new", nil, runs(forever))
	w.eventually("the agent works", func() string {
		for _, c := range w.allContainers() {
			if strings.HasPrefix(c, "new ") {
				return ""
			}
		}
		return "the new pod was not started"
	})
	if got := w.containers(uid); !slices.Equal(got, []string{"c/0 running"}) {
		t.Errorf("containers are %v: nobody has confirmed that the pod is gone", got)
	}
	line.deaf.Store(false)
	w.eventually("the orphan is ended", func() string { return strings.Join(w.containers(uid), " ") })
	if got := w.containers(kept); !slices.Equal(got, []string{"c/0 running"}) {
		t.Errorf("containers are %v, want the one that ran before", got)
	}
}

func TestAnAgentKilledInTheMiddleOfAStartStartsNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	quick := func(c *nodeagent.Config, _ *nodeagent.Deps) { c.Grace = time.Nanosecond }
	stop := w.start(quick)
	uid := w.create("slow", map[string]any{"containers": []map[string]any{
		{"name": "a", "image": "app:1"}, {"name": "b", "image": "slow/app:1"}, {"name": "c", "image": "app:1"},
	}}, runs(forever))
	w.eventually("the first container runs", func() string {
		if got := w.containers(uid); !slices.Contains(got, "a/0 running") {
			return "have " + strings.Join(got, " ")
		}
		return ""
	})
	w.ok(stop()) // the second is being pulled
	w.start(quick)
	w.becomes("slow", corev1.PodRunning)
	w.eventually("all run", func() string {
		if got := w.containers(uid); !slices.Equal(got, []string{"a/0 running", "b/0 running", "c/0 running"}) {
			return "have " + strings.Join(got, " ")
		}
		return ""
	})
}

func TestPodsWaitForANetworkWhenToldSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	line := &noNetwork{ClientConnInterface: w.runtime.Conn()}
	line.off.Store(true)
	a := w.newAgent(func(c *nodeagent.Config, d *nodeagent.Deps) { c.WaitForNetwork, d.Runtime = true, line })
	w.run("agent", a)
	w.create("waits", nil, runs(forever))
	w.create("host", map[string]any{"hostNetwork": true}, runs(forever))
	w.becomes("host", corev1.PodRunning)
	w.told("waits", "NetworkNotReady: ")
	if message := w.nodeReady(corev1.ConditionFalse); !strings.Contains(message, "network") {
		t.Errorf("the node is not ready for %q, want the network named", message)
	}
	line.off.Store(false)
	w.becomes("waits", corev1.PodRunning)
}

func TestAPodThatWasFailedWhileItsAgentWasAwayIsEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.start(nil)
	uid := w.create("failed", nil, runs(forever))
	w.becomes("failed", corev1.PodRunning)
	w.ok(stop())
	_, err := w.kube.Patch(t.Context(), kube.Ref{Resource: podResource, Namespace: "default", Name: "failed", Subresource: "status"},
		kube.MergePatch, []byte(`{"status":{"phase":"Failed","reason":"NodeLost"}}`), kube.WriteOptions{})
	w.ok(err)
	w.start(nil)
	w.eventually("its container is ended", func() string {
		if got := w.containers(uid); !slices.Equal(got, []string{"c/0 exited"}) {
			return "have " + strings.Join(got, " ")
		}
		return ""
	})
}

func TestAnAPIServerThatIsAwayStopsNoRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	line := w.deafKube()
	w.start(func(c *nodeagent.Config, d *nodeagent.Deps) {
		c.CrashLoop = kuberuntime.Backoff{Initial: 200 * time.Millisecond, Max: 400 * time.Millisecond}
		d.Kube = line.client
	})
	_, err := w.kube.Create(t.Context(), kube.Ref{Resource: kube.Resource{Version: "v1", Name: "configmaps", Kind: "ConfigMap", Namespaced: true}, Namespace: "default"},
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"b"}}`), kube.WriteOptions{})
	w.ok(err)
	uid := w.create("crash", map[string]any{
		"restartPolicy": "Always",
		"volumes":       []map[string]any{{"name": "v", "configMap": map[string]any{"name": "settings"}}},
		"containers":    []map[string]any{{"name": "c", "image": "app:1", "volumeMounts": []map[string]any{{"name": "v", "mountPath": "/v"}}}},
	}, runs("100ms"))
	latest := func() (n uint32) {
		for _, s := range w.statuses(uid) {
			n = max(n, s.GetMetadata().GetAttempt())
		}
		return n
	}
	w.eventually("it is restarted", func() string {
		if latest() < 1 {
			return "not yet: " + w.events("crash")
		}
		return ""
	})
	line.deaf.Store(true)
	before := latest()
	w.eventually("it is restarted while the API server is away", func() string {
		if latest() < before+4 {
			return "not yet"
		}
		return ""
	})
	line.deaf.Store(false)
	w.eventually("the status catches up", func() string {
		s := w.pod("crash").Status.ContainerStatuses
		if len(s) == 1 && uint32(s[0].RestartCount) >= before+4 {
			return ""
		}
		return "not yet"
	})
}
