package kuberuntime

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// A clock that was set back between two instances dates the newer one before the older.
func TestAClockThatWasSetBackMakesNoInstanceOlder(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "c", Image: "app:1"}}}}
	hash := Hash(&pod.Spec.Containers[0])
	s := podStatus("uid", "ns", "p", begin, []*container.SandboxStatus{
		{Sandbox: container.Sandbox{ID: "s0", CreatedAt: begin}},
		{Sandbox: container.Sandbox{ID: "s1", Attempt: 1, Ready: true, CreatedAt: begin.Add(-time.Hour)}, IPs: []string{"10.0.0.2"}},
	}, []*container.Status{
		{Container: container.Container{ID: "c0", Name: "c", SandboxID: "s0", State: container.Exited, Hash: hash, CreatedAt: begin}},
		{Container: container.Container{
			ID: "c1", Name: "c", SandboxID: "s1", State: container.Running, Attempt: 1, Hash: hash, CreatedAt: begin.Add(-time.Hour),
		}},
	})
	if a := Decide(pod, s, nil); a.KillPod || a.CreateSandbox || len(a.Kill)+len(a.Start) > 0 {
		t.Errorf("a pod that runs is to be changed: %+v", a)
	}
	if got := s.Latest("c"); got.ID != "c1" || len(s.IPs) != 1 {
		t.Errorf("the newest instance is %s, the addresses %v", got.ID, s.IPs)
	}
}

// Restart delays with impossible times: the wait is neither skipped nor without end.
func TestAWaitIsBoundedWhateverTheEndOfAContainer(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "app:1"}}}}
	c := &pod.Spec.Containers[0]
	for _, tc := range []struct {
		name            string
		ended           time.Time
		started, now    time.Duration // after begin
		want            time.Duration // until the restart, at most; 0 is now
		wantExactlyThat bool
	}{
		{name: "an end in the past", ended: begin.Add(time.Second), now: 2 * time.Second, want: 9 * time.Second, wantExactlyThat: true},
		{name: "an end that was moments ahead", ended: begin.Add(time.Second), now: 900 * time.Millisecond, want: 10100 * time.Millisecond, wantExactlyThat: true},
		{name: "no end at all: counted from the start", now: 2 * time.Second, want: 8 * time.Second, wantExactlyThat: true},
		{name: "no end at all, long ago", now: time.Minute, want: 0, wantExactlyThat: true},
		{name: "an end in a year", ended: begin.Add(365 * 24 * time.Hour), now: 2 * time.Second, want: 8 * time.Second, wantExactlyThat: true},
		{name: "the clock was set back an hour", ended: begin.Add(time.Second), now: -time.Hour, want: 10 * time.Second},
		{name: "the end of time", ended: time.Unix(0, 1<<63-1), now: 2 * time.Second, want: 8 * time.Second, wantExactlyThat: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := &Manager{metrics: mustMetrics(t), crash: table(t, Backoff{}.withDefaults(), "")}
			next(t, m.crash, BackoffKey(pod, c), begin, begin) // started then, with a delay of 10 s from its end on
			s := &syncing{Manager: m, pod: pod, status: &container.PodStatus{Containers: []container.Status{{
				Container: container.Container{ID: "c0", Name: "c", State: container.Exited}, FinishedAt: tc.ended,
			}}}}
			now := begin.Add(tc.now)
			_, err := s.restartAllowed(c, now)
			left := time.Duration(0)
			if b, ok := errors.AsType[*BackoffError](err); ok {
				left = b.Expiry.Sub(now)
			}
			if left > tc.want || tc.wantExactlyThat && left != tc.want {
				t.Errorf("waits for %v, want %v", left, tc.want)
			}
		})
	}
}

func mustMetrics(t *testing.T) *metrics {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAPullIsTriedAgainAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	b := table(t, Backoff{}.withDefaults(), "")
	next(t, b, "image", begin, begin)
	if left := b.leftSinceUpdate("image", begin.Add(-time.Hour)); left > 10*time.Second {
		t.Errorf("waits for %v, want no more than its delay", left)
	}
	if left := b.leftSinceUpdate("image", begin.Add(4*time.Second)); left != 6*time.Second {
		t.Errorf("waits for %v, want 6 s", left)
	}
}

func TestADeadInstanceWithoutTimesDamagesNoState(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state")
	b := table(t, Backoff{}.withDefaults(), file)
	b.rebuild("key", "pod", 3, time.Time{}, time.Time{})
	next(t, b, "other", begin, begin)
	if again := table(t, Backoff{}.withDefaults(), file); len(again.entries) != 1 || !again.lost.IsZero() {
		t.Errorf("the state is read as %v, lost %v", again.entries, again.lost)
	}
}
