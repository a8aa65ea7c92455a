package criruntime_test

import (
	"fmt"
	"runtime"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

func TestThousandsOfContainersAreCheap(t *testing.T) { //nolint:paralleltest // it measures the heap
	const pods = 2000
	n := newNode(t, criruntime.Config{})
	n.run(nil)
	routines := runtime.NumGoroutine()
	for i := range pods {
		n.run(with(nil, criruntime.RunSecondsAnnotation, fmt.Sprintf("%dh", 1+i)))
	}
	more := runtime.NumGoroutine() - routines
	full := heap()
	boxes, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range boxes.Items {
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: box.Id}); err != nil {
			t.Fatal(err)
		}
	}
	// Against the heap without them, which other tests of this process have not changed meanwhile.
	each := (full - heap()) / pods
	t.Logf("%d bytes a pod with one container", each)
	if each < 500 || each > 6<<10 {
		t.Errorf("a pod with one container takes %d bytes of heap, want 500 to 6144", each)
	}
	if more > 10 {
		t.Errorf("%d pods made %d goroutines", pods, more)
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkListOneNode lists 100 containers of one node among 10 000, as a relist does.
func BenchmarkListOneNode(b *testing.B) {
	s, err := criruntime.New(criruntime.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	client := runtimeapi.NewRuntimeServiceClient(s.Conn())
	for i := range 10_000 {
		labels := map[string]string{"deltaplane.io/node": fmt.Sprint(i % 100), "io.kubernetes.pod.uid": fmt.Sprint(i)}
		box, err := client.RunPodSandbox(b.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: fmt.Sprint(i)}, Labels: labels,
		}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := client.CreateContainer(b.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: box.PodSandboxId, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "app:1"}, Labels: labels,
		}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		list, err := client.ListContainers(b.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"deltaplane.io/node": "7"}}})
		if err != nil || len(list.Containers) != 100 {
			b.Fatalf("%d containers, %v", len(list.Containers), err)
		}
	}
}
