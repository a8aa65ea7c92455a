package pleg

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// still is a runtime in which nothing happens but what the benchmark does: a
// pod has a sandbox and two containers, one of which died.
type still struct{ pods []container.Pod }

func newStill(n int) *still {
	s := &still{}
	for i := range n {
		uid := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
		s.pods = append(s.pods, container.Pod{
			UID: uid, Namespace: "default", Name: fmt.Sprintf("pod-%d", i),
			Sandboxes: []container.Sandbox{{ID: fmt.Sprintf("s-%064d", i), Ready: true}},
			Containers: []container.Container{
				{ID: fmt.Sprintf("a-%064d", i), Name: "main", State: container.Running},
				{ID: fmt.Sprintf("b-%064d", i), Name: "main", State: container.Exited},
			},
		})
	}
	return s
}

func (s *still) Pods(context.Context, bool) ([]container.Pod, error) { return s.pods, nil }

func (s *still) PodStatus(_ context.Context, uid types.UID, namespace, name string) (*container.PodStatus, error) {
	out := &container.PodStatus{UID: uid, Namespace: namespace, Name: name}
	for _, p := range s.pods {
		if p.UID != uid {
			continue
		}
		for _, b := range p.Sandboxes {
			out.Sandboxes = append(out.Sandboxes, container.SandboxStatus{Sandbox: b})
		}
		for _, c := range p.Containers {
			out.Containers = append(out.Containers, container.Status{Container: c})
		}
	}
	return out, nil
}

func (s *still) Events(context.Context, func(container.Event)) error { return container.ErrNoEvents }

// settle answers all inspections.
func (p *PLEG) settle(ctx context.Context) {
	for len(p.inspector.open) > 0 {
		p.take(ctx, <-p.answers)
	}
	for len(p.events) > 0 {
		<-p.events
	}
}

// BenchmarkRelist is one list of all pods with the comparison, the runtime's own
// work excluded, when so many pods changed; and the time until all of them are published.
func BenchmarkRelist(b *testing.B) {
	for _, pods := range []int{110, 500} {
		for _, changes := range []int{0, 10} {
			b.Run(fmt.Sprintf("pods=%d/changed=%d", pods, changes), func(b *testing.B) {
				rt := newStill(pods)
				p, err := New(Config{Capacity: 10_000}, rt, slog.New(slog.DiscardHandler), nil)
				if err != nil {
					b.Fatal(err)
				}
				ctx := b.Context()
				p.relist(ctx)
				p.settle(ctx)
				var took []time.Duration
				b.ReportAllocs()
				for b.Loop() {
					for i := range changes {
						s := &rt.pods[i].Containers[0].State
						*s = container.Running + container.Exited - *s
					}
					begun := time.Now()
					p.relist(ctx)
					p.settle(ctx)
					took = append(took, time.Since(begun))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
				p.running.Wait()
			})
		}
	}
}
