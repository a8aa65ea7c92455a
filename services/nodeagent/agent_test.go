package nodeagent_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/node"
)

const forever = "forever"

func runs(seconds string) map[string]string {
	return map[string]string{criruntime.RunSecondsAnnotation: seconds}
}

func TestAPodRunsAndEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var reg *prometheus.Registry
	w.start(func(_ *nodeagent.Config, d *nodeagent.Deps) { reg = d.Telemetry.Registry })
	w.create("once", nil, runs("1"))
	w.becomes("once", corev1.PodRunning)
	pod := w.becomes("once", corev1.PodSucceeded)
	if s := pod.Status.ContainerStatuses; len(s) != 1 || s[0].State.Terminated == nil || s[0].State.Terminated.ExitCode != 0 || s[0].RestartCount != 0 {
		t.Errorf("container statuses are %+v", s)
	}
	w.create("fails", nil, map[string]string{criruntime.RunSecondsAnnotation: "100ms", criruntime.ExitCodeAnnotation: "3"})
	pod = w.becomes("fails", corev1.PodFailed)
	if s := pod.Status.ContainerStatuses; len(s) != 1 || s[0].State.Terminated == nil || s[0].State.Terminated.ExitCode != 3 {
		t.Errorf("container statuses are %+v, want exit code 3", s)
	}
	if v := w.node().Status.NodeInfo.ContainerRuntimeVersion; !strings.Contains(v, "://") {
		t.Errorf("the node's runtime is %q, want NAME://VERSION", v)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		if q := w.node().Status.Allocatable[name]; q.Sign() <= 0 {
			t.Errorf("the node has %s of %s: no scheduler gives it a pod that asks for some", q.String(), name)
		}
	}
	families, err := reg.Gather()
	w.ok(err)
	for _, name := range []string{
		"kubelet_pod_worker_duration_seconds", "kubelet_pod_worker_start_duration_seconds", "kubelet_pod_start_duration_seconds",
		"kubelet_working_pods", "kubelet_desired_pods", "kubelet_runtime_operations_duration_seconds", "kubelet_running_pods",
	} {
		if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name }) {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// What falls due is synced by the loop though nobody tells any news.
func TestACrashingContainerIsRestartedByTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(func(c *nodeagent.Config, _ *nodeagent.Deps) {
		c.CrashLoop = kuberuntime.Backoff{Initial: time.Second, Max: 2 * time.Second}
	})
	uid := w.create("crash", map[string]any{"restartPolicy": "OnFailure"}, map[string]string{
		criruntime.RunSecondsAnnotation: "50ms", criruntime.ExitCodeAnnotation: "1",
	})
	begun, ended := map[uint32]time.Time{}, map[uint32]time.Time{}
	w.eventually("five instances", func() string {
		for _, s := range w.statuses(uid) {
			if at := s.GetStartedAt(); at > 0 { // one that is made may not run yet
				begun[s.GetMetadata().GetAttempt()] = time.Unix(0, at)
			}
			if at := s.GetFinishedAt(); at > 0 {
				ended[s.GetMetadata().GetAttempt()] = time.Unix(0, at)
			}
		}
		if len(begun) < 5 {
			return "not yet"
		}
		return ""
	})
	// The first restart is at once, then 1, 2, 2 s after the exit; never early, and not by the
	// wait after an error, which is longer than what a busy machine costs.
	for attempt, wait := range []time.Duration{0, time.Second, 2 * time.Second, 2 * time.Second} {
		n := uint32(attempt)
		if end, ok := ended[n]; ok {
			if late := begun[n+1].Sub(end) - wait; late < 0 || late > 8*time.Second {
				t.Errorf("restart %d came %v after its time", n+1, late)
			}
		}
	}
	w.eventually("the status tells", func() string {
		s := w.pod("crash").Status.ContainerStatuses
		if len(s) == 1 && s[0].RestartCount >= 4 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == kuberuntime.ReasonCrashLoopBackOff &&
			s[0].LastTerminationState.Terminated != nil && s[0].LastTerminationState.Terminated.ExitCode == 1 {
			return ""
		}
		return fmt.Sprintf("%+v", s)
	})
	w.told("crash", "BackOff: ")
}

func TestADeletedPodGetsItsGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	w.create("polite", map[string]any{"terminationGracePeriodSeconds": 600}, runs(forever))
	stubborn := runs(forever)
	stubborn[criruntime.IgnoreTermAnnotation] = "true"
	uid := w.create("stubborn", nil, stubborn)
	w.becomes("polite", corev1.PodRunning)
	w.becomes("stubborn", corev1.PodRunning)
	begin := time.Now()
	w.remove("stubborn", nil)
	w.remove("polite", nil)
	w.vanishes("polite") // without its grace
	w.vanishes("stubborn")
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("the pod that ignores SIGTERM vanished after %v, want its grace of 2 s", took)
	}
	w.eventually("its containers are removed", func() string { return strings.Join(w.containers(uid), " ") })
}

func TestAShorterDeletionHastensTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	stubborn := runs(forever)
	stubborn[criruntime.IgnoreTermAnnotation] = "true"
	w.create("stubborn", map[string]any{"terminationGracePeriodSeconds": 600}, stubborn)
	w.becomes("stubborn", corev1.PodRunning)
	w.remove("stubborn", nil)
	w.eventually("the deletion is seen", func() string {
		if w.pod("stubborn").DeletionTimestamp == nil {
			return "no deletion stamp"
		}
		return ""
	})
	w.remove("stubborn", new(int64(1))) // what shortens the grace cancels the end under way
	w.vanishes("stubborn")
}

func TestAnAgentTakesOverWhatRunsAndStartsNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.start(nil)
	w.create("deleted", nil, runs(forever))
	ends := w.create("ends", nil, runs("2"))
	w.becomes("deleted", corev1.PodRunning)
	w.becomes("ends", corev1.PodRunning)
	w.ok(stop())
	created := w.create("new", nil, runs("100ms"))
	w.remove("deleted", nil)
	w.start(nil)
	if pod := w.becomes("ends", corev1.PodSucceeded); pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("restart count is %d, want 0", pod.Status.ContainerStatuses[0].RestartCount)
	}
	w.becomes("new", corev1.PodSucceeded)
	w.vanishes("deleted")
	for _, uid := range []types.UID{ends, created} {
		if got := w.containers(uid); !slices.Equal(got, []string{"c/0 exited"}) {
			t.Errorf("containers of %s are %v, want one that has ended", uid, got)
		}
	}
}

func TestAPodTheNodeCannotRunFailsByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	uid := w.create("odd", map[string]any{"volumes": []map[string]any{{"name": "v", "nfs": map[string]any{"server": "s", "path": "/"}}}}, nil)
	pod := w.becomes("odd", corev1.PodFailed)
	if pod.Status.Reason != "UnsupportedPodSpec" || !strings.Contains(pod.Status.Message, "spec.volumes[0].nfs") {
		t.Errorf("the pod failed as %q: %q, want UnsupportedPodSpec naming spec.volumes[0].nfs", pod.Status.Reason, pod.Status.Message)
	}
	w.told("odd", "UnsupportedPodSpec: ")
	if got := w.containers(uid); len(got) != 0 {
		t.Errorf("containers %v were made of a pod that cannot be run", got)
	}
}

func TestAPodWhoseImageIsMissingSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	w.create("missing", map[string]any{"containers": []map[string]any{{"name": "c", "image": "missing/app:1"}}}, nil)
	w.eventually("the pod waits for its image", func() string {
		s := w.pod("missing").Status.ContainerStatuses
		if len(s) == 1 && s[0].State.Waiting != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff"}, s[0].State.Waiting.Reason) {
			return ""
		}
		return "not yet: " + w.events("missing")
	})
	w.remove("missing", nil)
	w.vanishes("missing")
}

func TestAPodPastItsDeadlineFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	w.create("deadline", map[string]any{"activeDeadlineSeconds": 1 << 62}, runs(forever))
	w.becomes("deadline", corev1.PodRunning)
	w.create("late", map[string]any{"activeDeadlineSeconds": 1}, runs(forever))
	pod := w.becomes("late", corev1.PodFailed)
	if pod.Status.Reason != "DeadlineExceeded" {
		t.Errorf("the pod failed as %q, want DeadlineExceeded", pod.Status.Reason)
	}
	w.becomes("deadline", corev1.PodRunning) // still
}

func TestAForcedDeletionEndsThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	uid := w.create("forced", nil, runs(forever))
	w.becomes("forced", corev1.PodRunning)
	w.remove("forced", new(int64(0)))
	w.eventually("its containers are removed", func() string { return strings.Join(w.containers(uid), " ") })
}

func TestTwoAgentsForOneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	if err := w.newAgent(nil).Run(t.Context()); !errors.Is(err, dirlock.ErrTaken) {
		t.Errorf("Run() on the same directory = %v, want ErrTaken", err)
	}
	other := w.newAgent(func(c *nodeagent.Config, _ *nodeagent.Deps) { c.RootDir = w.root + "/other" })
	if err := other.Run(t.Context()); !errors.Is(err, node.ErrNodeTaken) {
		t.Errorf("Run() for the same node = %v, want ErrNodeTaken", err)
	}
}

func TestAnAgentThatIsNoLongerTheNodeStopsAndLeavesItsContainers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.newAgent(nil)
	done := make(chan error, 1)
	go func() { done <- a.Run(t.Context()) }()
	uid := w.create("runs", nil, runs(forever))
	w.becomes("runs", corev1.PodRunning)
	lease := kube.Ref{
		Resource:  kube.Resource{Group: "coordination.k8s.io", Version: "v1", Name: "leases", Kind: "Lease", Namespaced: true},
		Namespace: "kube-node-lease", Name: "n",
	}
	_, err := w.kube.Patch(t.Context(), lease, kube.MergePatch, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"another"}},"spec":{"renewTime":%q}}`,
		node.InstanceAnnotation, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")), kube.WriteOptions{})
	w.ok(err)
	select {
	case err := <-done:
		if !errors.Is(err, node.ErrNodeTaken) {
			t.Errorf("Run() = %v, want ErrNodeTaken", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the agent goes on")
	}
	if got := w.containers(uid); !slices.Equal(got, []string{"c/0 running"}) {
		t.Errorf("containers are %v, want the one that ran", got)
	}
}

func TestVolumesAndEnvironmentReachAPodAndLeaveWithIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	uid := w.create("files", map[string]any{
		"volumes": []map[string]any{{"name": "data", "emptyDir": map[string]any{}}},
		"containers": []map[string]any{{
			"name": "c", "image": "app:1",
			"volumeMounts": []map[string]any{{"name": "data", "mountPath": "/data"}},
			"env":          []map[string]any{{"name": "POD", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.name"}}}},
		}},
	}, runs("500ms"))
	w.becomes("files", corev1.PodRunning)
	dir := w.root + "/agent/pods/" + string(uid) + "/volumes"
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the volumes are not there: %v", err)
	}
	w.becomes("files", corev1.PodSucceeded)
	w.eventually("the volumes are removed", func() string {
		if _, err := os.Stat(dir); err == nil {
			return dir + " is still there"
		}
		return ""
	})
}
