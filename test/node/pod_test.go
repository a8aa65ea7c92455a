//go:build linux

package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// boxPod is a pod of one container, bound to the node, whose folder /mark is on this machine.
func (w *world) boxPod(t *testing.T, name string, policy corev1.RestartPolicy, args ...string) *corev1.Pod {
	t.Helper()
	mark := filepath.Join(w.dir, "mark", name)
	if err := os.MkdirAll(mark, 0o755); err != nil {
		t.Fatal(err)
	}
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName: nodeName, RestartPolicy: policy, TerminationGracePeriodSeconds: new(int64(5)), AutomountServiceAccountToken: new(false),
			Volumes: []corev1.Volume{{Name: "mark", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: mark}}}},
			Containers: []corev1.Container{{
				Name: "main", Image: containerd.BoxImage, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
				VolumeMounts: []corev1.VolumeMount{{Name: "mark", MountPath: "/mark"}},
			}},
		},
	}
}

// runPod creates a pod that is gone at the end of the test.
func (w *world) runPod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	var made corev1.Pod
	if err := w.create(t.Context(), podsPath, pod, &made); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 60*time.Second)
		defer cancel()
		if t.Failed() {
			if p, err := w.pod(ctx, pod.Name); err == nil {
				events, _ := w.events(ctx, pod.Name)
				t.Logf("pod %s at the end: %+v\nits events: %v", pod.Name, p.Status, events)
			}
		}
		if err := w.remove(ctx, podsPath+"/"+pod.Name, 0); err != nil && !errors.Is(err, errNotFound) {
			t.Errorf("delete pod %s: %v", pod.Name, err)
		}
	})
	return &made
}

// await waits until a pod is as asked, and returns it.
func (w *world) await(t *testing.T, name, what string, limit time.Duration, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var got *corev1.Pod
	eventually(t, limit, "pod "+name+": "+what, func(ctx context.Context) error {
		p, err := w.pod(ctx, name)
		if err != nil {
			return err
		}
		if got = p; !is(p) {
			return fmt.Errorf("phase %s %s %s, containers %v", p.Status.Phase, p.Status.Reason, p.Status.Message, p.Status.ContainerStatuses)
		}
		return nil
	})
	return got
}

func (w *world) awaitPhase(t *testing.T, name string, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	return w.await(t, name, "is "+string(phase), 60*time.Second, func(p *corev1.Pod) bool { return p.Status.Phase == phase })
}

// awaitRunning waits until the pod's one container runs and has said so: process 1 takes signals
// from then on.
func (w *world) awaitRunning(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	got := w.await(t, name, "runs and is ready", 60*time.Second, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil && p.Status.ContainerStatuses[0].Ready
	})
	w.awaitLog(t, got, "ready")
	return got
}

// awaitGone waits until a pod does not exist.
func (w *world) awaitGone(t *testing.T, name string, limit time.Duration) {
	t.Helper()
	eventually(t, limit, "pod "+name+" is gone", func(ctx context.Context) error {
		p, err := w.pod(ctx, name)
		switch {
		case errors.Is(err, errNotFound):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it is %s, deleted at %v", p.Status.Phase, p.DeletionTimestamp)
	})
}

// log is all that the main container of a pod wrote, over all its restarts.
func (w *world) log(p *corev1.Pod) string {
	files, _ := filepath.Glob(filepath.Join(w.dir, "logs", fmt.Sprintf("default_%s_%s", p.Name, p.UID), "*", "*.log"))
	var all strings.Builder
	for _, f := range files {
		text, _ := os.ReadFile(f)
		all.Write(text)
	}
	return all.String()
}

func (w *world) awaitLog(t *testing.T, p *corev1.Pod, text string) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("the log of pod %s has %q", p.Name, text), func(context.Context) error {
		if got := w.log(p); !strings.Contains(got, text) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// starts are when the pod's container was started, by its own account.
func (w *world) starts(t *testing.T, pod string) []time.Time {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "mark", pod, "starts"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var out []time.Time
	for line := range strings.Lines(string(text)) {
		at, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, at)
	}
	return out
}

// events are the reasons of the events about a pod, with their messages.
func (w *world) events(ctx context.Context, pod string) (map[string]string, error) {
	var list corev1.EventList
	if err := w.get(ctx, "/api/v1/namespaces/default/events", &list); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range list.Items {
		if e.InvolvedObject.Name == pod {
			out[e.Reason] = e.Message
		}
	}
	return out, nil
}

func (w *world) awaitEvent(t *testing.T, pod, reason, text string) {
	t.Helper()
	eventually(t, 30*time.Second, "pod "+pod+" has an event "+reason, func(ctx context.Context) error {
		got, err := w.events(ctx, pod)
		if err == nil && !strings.Contains(got[reason], text) {
			err = fmt.Errorf("events are %v", got)
		}
		if err == nil {
			if _, there := got[reason]; !there {
				err = fmt.Errorf("events are of %v", maps.Keys(got))
			}
		}
		return err
	})
}
