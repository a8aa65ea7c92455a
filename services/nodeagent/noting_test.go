package nodeagent

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/prober"
)

func TestAReadinessThatChangesWhileAStatusIsMadeIsNotReplacedByIt(t *testing.T) {
	t.Parallel()
	runtime, err := criruntime.New(criruntime.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	c, err := kube.Load(kube.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	index, err := grpc.NewClient("passthrough:///127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer index.Close()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "agent", LogOutput: t.Output(), LogLevel: "error"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Node: "n", RootDir: t.TempDir(), LogRoot: t.TempDir(), Admin: telemetry.AdminConfig{Listen: "off"}},
		Deps{Kube: c, Index: index, Runtime: runtime.Conn(), Telemetry: tel})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u", Namespace: "ns", Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", ReadinessProbe: &corev1.Probe{}}}},
	}
	seen := &container.PodStatus{UID: "u", Namespace: "ns", Name: "p", Containers: []container.Status{
		{Container: container.Container{ID: "id", Name: "c", State: container.Running}, StartedAt: time.Now()},
	}}
	ready := func() bool {
		s, ok := a.statuses.Get("u")
		return ok && len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].Ready
	}
	change := prober.Change{Pod: pod, Container: "c", ID: "id", Kind: probe.Readiness, Result: probe.Success}
	a.tell(pod, seen, telling{})
	a.settledProbe(change)
	if !ready() {
		t.Fatal("the container does not become ready")
	}
	change.Result = probe.Failure
	settled := make(chan struct{})
	a.tell(pod, seen, telling{change: func(*corev1.PodStatus) { // the status says that it is ready
		go func() { a.settledProbe(change); close(settled) }()
		if a.noting.TryLock() { // nothing holds the change back
			a.noting.Unlock()
			<-settled
		}
	}})
	<-settled
	if ready() {
		t.Error("a status that was made before has replaced that the container is not ready")
	}
}
