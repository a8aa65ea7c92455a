package kuberuntime

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

var begin = time.Unix(1_800_000_000, 0)

func table(t *testing.T, b Backoff, file string) *backoffs {
	t.Helper()
	return newBackoffs(b, file, begin, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func next(t *testing.T, b *backoffs, key string, event, now time.Time) time.Duration {
	t.Helper()
	d, err := b.next(key, "pod", event, now)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func everyPod(types.UID) bool { return true }

func TestSlowBackoff(t *testing.T) {
	t.Parallel()
	b := table(t, Backoff{time.Second, 50 * time.Second, 100 * time.Second}, "")
	var got []time.Duration
	for range 10 {
		_, delay := b.left("id", begin, begin)
		got = append(got, delay/time.Second)
		next(t, b, "id", begin, begin)
	}
	if diff := cmp.Diff(got, []time.Duration{0, 1, 2, 4, 8, 16, 32, 50, 50, 50}); diff != "" {
		t.Errorf("delays (-got +want):\n%s", diff)
	}
	b.remove("id")
	if left, delay := b.left("id", begin, begin); left > 0 || delay != 0 {
		t.Errorf("after a reset: %v of %v left", left, delay)
	}
}

func TestBackoffReset(t *testing.T) {
	t.Parallel()
	b := table(t, Backoff{time.Second, 5 * time.Second, 10 * time.Second}, "")
	for range 4 {
		next(t, b, "id", begin, begin)
	}
	if left, _ := b.left("id", begin, begin.Add(4*time.Second)); left <= 0 {
		t.Error("not in back-off after 4 s of 5")
	}
	late := begin.Add(11 * time.Second)
	if left, _ := b.left("id", late, late); left > 0 {
		t.Errorf("in back-off for %v after 11 s", left)
	}
	if d := next(t, b, "id", late, late); d != time.Second {
		t.Errorf("starts over with %v", d)
	}
}

func TestBackoffHighWaterMark(t *testing.T) {
	t.Parallel()
	b := table(t, Backoff{time.Second, 5 * time.Second, 10 * time.Second}, "")
	for range 5 {
		next(t, b, "id", begin, begin)
	}
	if d := next(t, b, "id", begin.Add(6*time.Second), begin.Add(6*time.Second)); d != 5*time.Second {
		t.Errorf("%v after 6 s, want it to stay at 5 s", d)
	}
}

// The kubelet drops an entry at twice its maximum; ours stays until a wait that began right before
// that is over.
func TestBackoffGC(t *testing.T) {
	t.Parallel()
	b := table(t, Backoff{time.Second, 5 * time.Second, 10 * time.Second}, "")
	for range 5 {
		next(t, b, "id", begin, begin)
	}
	for _, tc := range []struct {
		after int
		kept  bool
	}{{6, true}, {12, true}, {15, true}, {16, false}} {
		if err := b.sweep(begin.Add(time.Duration(tc.after)*time.Second), everyPod); err != nil {
			t.Fatal(err)
		}
		if _, delay := b.left("id", begin, begin); (delay > 0) != tc.kept {
			t.Errorf("after %d s: delay %v, want kept %v", tc.after, delay, tc.kept)
		}
	}
	next(t, b, "id", begin, begin)
	if err := b.sweep(begin, func(types.UID) bool { return false }); err != nil || len(b.entries) != 0 {
		t.Errorf("%v: entries of pods that are gone stay: %v", err, b.entries)
	}
}

func TestAlternateBackoffGCAndHasExpiredFunc(t *testing.T) {
	t.Parallel()
	b := table(t, Backoff{time.Second, 5 * time.Second, 200 * time.Second}, "")
	next(t, b, "id", begin, begin)
	for _, tc := range []struct {
		after int
		kept  bool
	}{{12, true}, {200, true}, {202, false}} {
		at := begin.Add(time.Duration(tc.after) * time.Second)
		if err := b.sweep(at, everyPod); err != nil {
			t.Fatal(err)
		}
		if _, delay := b.left("id", begin, begin); (delay > 0) != tc.kept {
			t.Errorf("after %d s: kept %v, want %v", tc.after, delay > 0, tc.kept)
		}
	}
}

func TestIsInBackOffSinceUpdate(t *testing.T) {
	t.Parallel()
	b := table(t, Backoff{time.Second, 10 * time.Second, 20 * time.Second}, "")
	moves := map[int]time.Duration{0: 1, 1: 2, 3: 4, 7: 8, 15: 10, 56: 1}
	free := map[int]bool{}
	for tick := range 58 {
		now := begin.Add(time.Duration(tick) * time.Second)
		if b.leftSinceUpdate("id", now) > 0 {
			continue
		}
		free[tick] = true
		if want := moves[tick]; want > 0 {
			if d := next(t, b, "id", now, now); d != want*time.Second {
				t.Errorf("tick %d: delay %v, want %v s", tick, d, want)
			}
		}
	}
	for _, tick := range []int{0, 1, 3, 7, 15, 25, 35, 56, 57} {
		if !free[tick] {
			t.Errorf("tick %d is in back-off", tick)
		}
	}
	for tick := range 25 {
		if free[tick] != (moves[tick] > 0) {
			t.Errorf("tick %d: free %v", tick, free[tick])
		}
	}
}

func TestBackoffKey(t *testing.T) {
	t.Parallel()
	for name, res := range map[string]corev1.ResourceRequirements{
		"empty resources": {},
		"with resources": {
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("100Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("200Mi")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "test_container", Image: "foo/image:v1", Resources: res}, {Name: "second_container", Image: "registry.k8s.io/pause"},
			}}}
			pod.Name, pod.Namespace, pod.UID = "test_pod", "test_pod_namespace", "test_pod_uid"
			key := BackoffKey(pod, &pod.Spec.Containers[0])
			for _, tc := range []struct {
				change string
				same   bool
				do     func(*corev1.Pod) *corev1.Container
			}{
				{"something else", true, func(p *corev1.Pod) *corev1.Container {
					p.Spec.ActiveDeadlineSeconds = new(int64(1))
					return &p.Spec.Containers[0]
				}},
				{"another container", false, func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[1] }},
				{"the pod's name", false, func(p *corev1.Pod) *corev1.Container { p.Name = "other"; return &p.Spec.Containers[0] }},
				{"the namespace", false, func(p *corev1.Pod) *corev1.Container { p.Namespace = "other"; return &p.Spec.Containers[0] }},
				{"the UID", false, func(p *corev1.Pod) *corev1.Container { p.UID = "other"; return &p.Spec.Containers[0] }},
				{"the image", false, func(p *corev1.Pod) *corev1.Container {
					p.Spec.Containers[0].Image = "foo/image:v2"
					return &p.Spec.Containers[0]
				}},
				{"the resources", false, func(p *corev1.Pod) *corev1.Container {
					c := &p.Spec.Containers[0]
					if c.Resources.Requests == nil {
						c.Resources.Requests = corev1.ResourceList{}
					}
					c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("300m")
					return c
				}},
			} {
				p := pod.DeepCopy()
				if got := BackoffKey(p, tc.do(p)); (got == key) != tc.same {
					t.Errorf("%s: the key is the same: %v, want %v", tc.change, got == key, tc.same)
				}
			}
		})
	}
}

// There is no gate of which another takes precedence: both ends of the growth are said, or their
// defaults hold.
func TestCrashLoopBackOffConfiguration(t *testing.T) {
	t.Parallel()
	s := time.Second
	for _, tc := range []struct{ have, want Backoff }{
		{Backoff{}, Backoff{10 * s, 300 * s, 600 * s}},
		{Backoff{Initial: s}, Backoff{s, 300 * s, 600 * s}},
		{Backoff{Initial: s, Max: 60 * s}, Backoff{s, 60 * s, 600 * s}},
		{Backoff{Max: 2 * s}, Backoff{2 * s, 2 * s, 600 * s}},
		{Backoff{Initial: s, Max: 2 * s}, Backoff{s, 2 * s, 600 * s}},
		{Backoff{Initial: s, Max: 10 * s}, Backoff{s, 10 * s, 600 * s}},
		{Backoff{Initial: s, Max: 300 * s}, Backoff{s, 300 * s, 600 * s}},
		{Backoff{Max: 11 * s}, Backoff{10 * s, 11 * s, 600 * s}},
		{Backoff{Max: 300 * s}, Backoff{10 * s, 300 * s, 600 * s}},
	} {
		if got := tc.have.withDefaults(); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.have, got, tc.want)
		}
	}
}

func TestTheStateOfRestartsSurvivesAndIsSharedByWrites(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "sub", "crashloop.json")
	growth := Backoff{10 * time.Second, 300 * time.Second, 600 * time.Second}
	b := table(t, growth, file)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for range 3 {
				if _, err := b.next(string(rune('a'+i)), "pod", begin, begin); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	again := table(t, growth, file)
	if diff := cmp.Diff(again.entries, b.entries); diff != "" || len(b.entries) != 50 {
		t.Errorf("%d entries; read again (-got +want):\n%s", len(b.entries), diff)
	}
	if !again.lost.IsZero() {
		t.Error("a state that was read counts as lost")
	}
	if left, delay := again.left("a", begin, begin.Add(time.Second)); left != 39*time.Second || delay != 40*time.Second {
		t.Errorf("%v of %v left, want 39 s of 40 s", left, delay)
	}
}

func TestAStateThatCannotBeReadIsRebuiltFromDeadInstances(t *testing.T) {
	t.Parallel()
	growth := Backoff{10 * time.Second, 300 * time.Second, 600 * time.Second}
	for name, content := range map[string]string{
		"no file": "", "not JSON": "{", "another version": `{"version":2,"entries":{}}`, "a time below zero": `{"version":1,"entries":{"k":{"delay":-1,"updated":1}}}`,
		"nothing in it": "{}", "cut off": `{"version":1,"entries":{"k":{"delay":1000`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "crashloop.json")
			if content != "" {
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			b := table(t, growth, file)
			started := begin.Add(-time.Minute)
			for restarts, want := range []time.Duration{0, 10, 20, 40, 80, 160, 300, 300} {
				key := string(rune('a' + restarts))
				b.rebuild(key, "pod", restarts, started, started)
				if _, delay := b.left(key, begin, begin); delay != want*time.Second {
					t.Errorf("%d restarts: %v, want %v s", restarts, delay, want)
				}
			}
			b.rebuild("young", "pod", 3, begin.Add(time.Second), begin.Add(time.Second))
			if _, delay := b.left("young", begin, begin); delay != 0 {
				t.Errorf("an instance made by this agent is rebuilt: %v", delay)
			}
			next(t, b, "b", begin, begin)
			b.rebuild("b", "pod", 7, started, started)
			if _, delay := b.left("b", begin, begin); delay != 20*time.Second {
				t.Errorf("a known key is rebuilt: %v", delay)
			}
			if again := table(t, growth, file); len(again.entries) == 0 {
				t.Error("the state was not rewritten")
			}
		})
	}
}

func TestADirectoryInPlaceOfTheStateIsAnErrorAndTheDelayHolds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "crashloop.json")
	if err := os.MkdirAll(filepath.Join(file, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	b := table(t, Backoff{time.Second, time.Minute, time.Hour}, file)
	if d, err := b.next("k", "pod", begin, begin); err == nil || d != time.Second {
		t.Errorf("%v, %v: want the delay and an error", d, err)
	}
	if left, _ := b.left("k", begin, begin); left != time.Second {
		t.Errorf("left %v", left)
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"version":1,"entries":{"k":{"delay":10,"updated":20,"pod":"u"}}}`))
	f.Add([]byte(`{"version":1,"entries":{}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		entries, err := parseState(raw)
		if err == nil && entries == nil {
			t.Fatal("no entries and no error")
		}
		for key, e := range entries {
			if key == "" || e.Delay < 0 || e.Updated < 0 {
				t.Fatalf("entry %q: %+v", key, e)
			}
		}
	})
}
