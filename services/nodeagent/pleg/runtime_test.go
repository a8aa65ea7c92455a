package pleg_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
)

// silent records nothing.
type silent struct{}

func (silent) Event(kube.Involved, string, string, string) {}

// onCRI runs a PLEG over the simulated runtime, by the CRI.
func onCRI(t *testing.T, runtime criruntime.Config, cfg pleg.Config) (*pleg.PLEG, *kuberuntime.Manager) {
	t.Helper()
	rt, err := criruntime.New(runtime)
	if err != nil {
		t.Fatal(err)
	}
	client := cri.NewClient(rt.Conn())
	m, err := kuberuntime.New(kuberuntime.Config{Node: "n1"}, client, kuberuntime.Deps{Recorder: silent{}, Log: discard()})
	if err != nil {
		t.Fatal(err)
	}
	p, err := pleg.New(cfg, m, discard(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if err := rt.Close(); err != nil {
			t.Errorf("close the runtime: %v", err)
		}
	})
	return p, m
}

func shortPod(name string, runs time.Duration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), Annotations: map[string]string{
			criruntime.RunSecondsAnnotation: runs.String(), "deltaplane.io/exit-code": "3",
		}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "main", Image: "app:1", ImagePullPolicy: corev1.PullIfNotPresent}},
		},
	}
}

func TestOnACRIRuntimeEveryLifeIsPublishedAndTheCacheIsItsTwin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		runtime criruntime.Config
		cfg     pleg.Config
		within  time.Duration
	}{
		{"relisting", criruntime.Config{NoEvents: true}, pleg.Config{Period: 100 * time.Millisecond}, 200 * time.Millisecond},
		{"evented", criruntime.Config{}, pleg.Config{Period: 100 * time.Millisecond, SlowPeriod: time.Hour, SlowThreshold: 2 * time.Hour}, 20 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			// In a bubble, because on a busy machine a container may live between two lists and be told of
			// by its end alone.
			synctest.Test(t, func(t *testing.T) {
				p, m := onCRI(t, c.runtime, c.cfg)
				const pods = 20
				var g errgroup.Group
				for i := range pods {
					g.Go(func() error {
						pod := shortPod(fmt.Sprintf("p%d", i), time.Duration(300+10*i)*time.Millisecond)
						// A worker syncs by the cache alone, as the agent does.
						var last time.Time
						for {
							status, err := p.Cache().GetNewerThan(t.Context(), pod.UID, last)
							if err != nil {
								return err
							}
							if main := status.Latest("main"); main != nil && main.State == container.Exited {
								if main.ExitCode != 3 {
									return fmt.Errorf("%s ended with %d", pod.Name, main.ExitCode)
								}
								return m.KillPod(t.Context(), pod, running1(status), new(int64(1)))
							}
							result := m.SyncPod(t.Context(), pod, status, kuberuntime.Inputs{})
							if result.Err != nil {
								return result.Err
							}
							last = time.Now()
							if result.Changed {
								p.RequestRelist(pod.UID)
							}
						}
					})
				}
				told := map[string][]pleg.Kind{}
				late := time.Duration(0)
				take := func(e pleg.Event) {
					key := string(e.PodUID) + "/" + e.ContainerID
					told[key] = append(told[key], e.Kind)
					status, err := p.Cache().Get(e.PodUID)
					if err != nil || e.Kind != pleg.ContainerDied {
						return
					}
					for i := range status.Containers {
						if s := &status.Containers[i]; s.ID == e.ContainerID {
							if s.State != container.Exited {
								t.Errorf("%s died, and the cache has it %v", key, s.State)
							}
							late = max(late, time.Since(s.FinishedAt))
						}
					}
				}
				finished := make(chan error, 1)
				go func() { finished <- g.Wait() }()
				waitFor(t, p, take, func() bool { return len(finished) > 0 })
				if err := <-finished; err != nil {
					t.Fatal(err)
				}
				for i := range pods { // everything is as it will stay: the cache must be the runtime's twin
					uid := types.UID(fmt.Sprintf("uid-p%d", i))
					want, err := m.PodStatus(t.Context(), uid, "ns", fmt.Sprintf("p%d", i))
					if err != nil {
						t.Fatal(err)
					}
					waitFor(t, p, take, func() bool {
						got, err := p.Cache().Get(uid)
						return err == nil && fmt.Sprint(got.Containers, got.Sandboxes) == fmt.Sprint(want.Containers, want.Sandboxes)
					})
				}
				if err := m.CollectGarbage(t.Context(), func(types.UID) bool { return false }, true); err != nil {
					t.Fatal(err)
				}
				whole := []pleg.Kind{pleg.ContainerStarted, pleg.ContainerDied, pleg.ContainerRemoved}
				waitFor(t, p, take, func() bool {
					n := 0
					for _, kinds := range told {
						if slices.Equal(kinds, whole) {
							n++
						}
					}
					return n == 2*pods // a sandbox and a container each
				})
				if len(told) != 2*pods {
					t.Errorf("%d containers and sandboxes were told of, want %d: %v", len(told), 2*pods, told)
				}
				t.Logf("a container's end was told at most %v later", late)
				if late > c.within {
					t.Errorf("a container's end was told %v later", late)
				}
			})
		})
	}
}

// running1 is what a status says is there.
func running1(s *container.PodStatus) container.Pod {
	out := container.Pod{UID: s.UID, Namespace: s.Namespace, Name: s.Name}
	for i := range s.Containers {
		out.Containers = append(out.Containers, s.Containers[i].Container)
	}
	for _, b := range s.Sandboxes {
		out.Sandboxes = append(out.Sandboxes, b.Sandbox)
	}
	return out
}

// waitFor takes events until something is so.
func waitFor(t *testing.T, p *pleg.PLEG, take func(pleg.Event), done func() bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for !done() {
		select {
		case e := <-p.Events():
			take(e)
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			t.Fatal("it is not so after 30 s")
		}
	}
}
