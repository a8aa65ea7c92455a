package prober_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/prober"
)

// world is a node of one pod: its status, and what its containers answer.
type world struct {
	*prober.Manager
	pod *corev1.Pod

	mu      sync.Mutex // guards what follows
	status  corev1.PodStatus
	answers map[probe.Kind]func() (prober.Answer, error)
	asked   []string // KIND ID SECONDS since start
	events  []string
	log     bytes.Buffer // written under its handler's lock
	changes []string
	start   time.Time
}

// newWorld runs a manager in a bubble; the container c of its pod has these probes.
func newWorld(t *testing.T, reg prometheus.Registerer, c corev1.Container) *world {
	t.Helper()
	c.Name = "c"
	w := &world{
		pod:     &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{c}}},
		answers: map[probe.Kind]func() (prober.Answer, error){}, start: time.Now(),
	}
	var err error
	w.Manager, err = prober.New(prober.Deps{Status: w.get, Probe: w.probe, Warn: w.warn, Settled: w.settled, Log: slog.New(slog.NewTextHandler(&w.log, nil)), Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	synctest.Wait()
	return w
}

func (w *world) get(uid types.UID) (corev1.PodStatus, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *w.status.DeepCopy(), uid == w.pod.UID
}

// probe tells the kinds apart by the commands that a test gives them.
func (w *world) probe(_ context.Context, t prober.Target) (prober.Answer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind := map[string]probe.Kind{"r": probe.Readiness, "l": probe.Liveness, "s": probe.Startup}[t.Handler.Exec.Command[0]]
	w.asked = append(w.asked, fmt.Sprintf("%s %s %d", kind, t.ID, time.Since(w.start)/time.Second))
	if answer := w.answers[kind]; answer != nil {
		return answer()
	}
	return prober.Answer{Result: probe.Success}, nil
}

func (w *world) warn(_ *corev1.Pod, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, reason+": "+message)
}

func (w *world) settled(c prober.Change) {
	w.mu.Lock()
	w.changes = append(w.changes, fmt.Sprintf("%s %s %s", c.Kind, c.ID, c.Result))
	if c.Kind == probe.Startup { // as the agent's next sync does
		w.status.ContainerStatuses[0].Started = new(c.Result == probe.Success)
	}
	w.mu.Unlock()
	w.Wake(w.pod.UID)
}

// runs makes a new instance of the container run.
func (w *world) runs(id string, started bool) {
	w.mu.Lock()
	w.status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", ContainerID: "test://" + id, Started: &started,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	w.mu.Unlock()
	w.Wake(w.pod.UID)
}

func (w *world) answer(kind probe.Kind, r probe.Result, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[kind] = func() (prober.Answer, error) { return prober.Answer{Result: r, Message: "broken"}, err }
}

// happened is what one of the world's lists holds, and empties it.
func (w *world) happened(list *[]string) string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(*list)
	*list = nil
	return strings.Join(out, ", ")
}

func probes(command string, period int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{command}}}, PeriodSeconds: period}
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestReadinessIsProbedOnceAPeriodAndItsChangesAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		w := newWorld(t, reg, corev1.Container{ReadinessProbe: probes("r", 5)})
		w.Add(w.pod)
		w.Add(w.pod)
		time.Sleep(time.Minute)
		expect(t, "before the container runs", w.happened(&w.asked), "")
		w.runs("a", true)
		time.Sleep(11 * time.Second)
		expect(t, "asked", w.happened(&w.asked), "Readiness a 60, Readiness a 65, Readiness a 70")
		expect(t, "changes", w.happened(&w.changes), "Readiness a Success")
		w.answer(probe.Readiness, probe.Failure, nil)
		time.Sleep(15 * time.Second)
		expect(t, "changes after three failures", w.happened(&w.changes), "Readiness a Failure")
		expect(t, "Events of the first failure and of the one that counts", w.happened(&w.events), "Unhealthy: Container c: Readiness probe failed: broken, Unhealthy: Container c: Readiness probe failed: broken")
		if r := w.Result("u", "a", probe.Readiness); r != probe.Failure {
			t.Errorf("Result() = %v", r)
		}
		if w.Result("u", "b", probe.Readiness) != probe.Unknown || w.Result("u", "a", probe.Liveness) != probe.Unknown || w.Result("x", "a", probe.Readiness) != probe.Unknown {
			t.Error("there is a result of what was not probed")
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "prober_probe_total" {
					counts[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
				}
			}
		}
		if len(counts) != 2 || counts["Readiness failed"] != 3 || counts["Readiness successful"] != 3 {
			t.Errorf("probes were counted as %v", counts)
		}
	})
}

func TestOtherProbesWaitForTheStartupProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, corev1.Container{StartupProbe: probes("s", 10), LivenessProbe: probes("l", 60)})
		w.answer(probe.Startup, probe.Failure, nil)
		w.Add(w.pod)
		w.runs("a", false)
		time.Sleep(15 * time.Second)
		expect(t, "asked before the start", w.happened(&w.asked), "Startup a 0, Startup a 10")
		w.answer(probe.Startup, probe.Success, nil)
		time.Sleep(30 * time.Second)
		expect(t, "asked after it", w.happened(&w.asked), "Startup a 20, Liveness a 20")
		expect(t, "changes", w.happened(&w.changes), "Startup a Success, Liveness a Success")
	})
}

func TestALivenessProbeThatFailedRestsUntilTheNextContainer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, corev1.Container{LivenessProbe: probes("l", 10)})
		w.answer(probe.Liveness, probe.Failure, nil)
		w.Add(w.pod)
		w.runs("a", true)
		time.Sleep(time.Minute)
		expect(t, "asked", w.happened(&w.asked), "Liveness a 0, Liveness a 10, Liveness a 20")
		expect(t, "changes", w.happened(&w.changes), "Liveness a Failure")
		w.answer(probe.Liveness, probe.Success, nil)
		w.runs("b", true)
		expect(t, "asked of the next", w.happened(&w.asked), "Liveness b 60")
		if w.Result("u", "a", probe.Liveness) != probe.Unknown || w.Result("u", "b", probe.Liveness) != probe.Success {
			t.Error("the old container's failure outlives it")
		}
	})
}

func TestAProbeThatCannotBeMadeCountsForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, corev1.Container{LivenessProbe: probes("l", 10)})
		w.answer(probe.Liveness, probe.Unknown, errors.New("no such port"))
		w.Add(w.pod)
		w.runs("a", true)
		time.Sleep(5 * time.Second)
		expect(t, "asked three times at once", w.happened(&w.asked), "Liveness a 0, Liveness a 0, Liveness a 0")
		expect(t, "Events", w.happened(&w.events), "Unhealthy: Container c: Liveness probe errored and resulted in unknown state: no such port")
		time.Sleep(time.Hour)
		expect(t, "changes", w.happened(&w.changes), "")
	})
}

func TestAProbeThatPanicsCountsForNothingAndIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, corev1.Container{ReadinessProbe: probes("r", 10)})
		w.answers[probe.Readiness] = func() (prober.Answer, error) { panic("nobody thought of this") }
		w.Add(w.pod)
		w.runs("a", true)
		expect(t, "asked", w.happened(&w.asked), "Readiness a 0")
		expect(t, "Events", w.happened(&w.events), "Unhealthy: Container c: Readiness probe errored and resulted in unknown state: panic: nobody thought of this")
		if text := w.log.String(); !strings.Contains(text, "nobody thought of this") || !strings.Contains(text, "manager_test.go") {
			t.Errorf("the log holds no panic with its stack: %s", text)
		}
		w.answer(probe.Readiness, probe.Success, nil)
		time.Sleep(10 * time.Second)
		expect(t, "asked a period later", w.happened(&w.asked), "Readiness a 10")
		expect(t, "changes", w.happened(&w.changes), "Readiness a Success")
	})
}

func TestAPodThatIsBeingEndedIsProbedForReadinessAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, corev1.Container{ReadinessProbe: probes("r", 10), LivenessProbe: probes("l", 10)})
		w.Add(w.pod)
		w.runs("a", true)
		w.happened(&w.asked)
		w.Terminating(w.pod.UID)
		time.Sleep(15 * time.Second)
		expect(t, "asked", w.happened(&w.asked), "Readiness a 10")
		w.Retain(func(uid types.UID) bool { return uid == w.pod.UID })
		if w.Result("u", "a", probe.Readiness) != probe.Success {
			t.Error("a pod that is kept was removed")
		}
		w.Retain(func(types.UID) bool { return false })
		time.Sleep(time.Minute)
		expect(t, "asked after the removal", w.happened(&w.asked), "")
		if w.Result("u", "a", probe.Readiness) != probe.Unknown {
			t.Error("a result outlives its pod")
		}
	})
}

func TestAProbeThatHangsEndsWithItsPodAndCountsForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		var changes int
		m, err := prober.New(prober.Deps{
			Status: func(types.UID) (corev1.PodStatus, bool) {
				return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
					Name: "c", ContainerID: "test://a", Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
				}}}, true
			},
			Probe: func(ctx context.Context, _ prober.Target) (prober.Answer, error) {
				close(asked)
				<-ctx.Done()
				return prober.Answer{Result: probe.Failure}, nil
			},
			Warn: func(*corev1.Pod, string, string) { changes++ }, Settled: func(prober.Change) { changes++ },
			Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		liveness := probes("l", 10)
		liveness.FailureThreshold = 1
		m.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", LivenessProbe: liveness}}}})
		<-asked
		m.Remove("u")
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || changes != 0 {
			t.Errorf("Run() = %v, %d changes and Events of a probe that was called off", err, changes)
		}
	})
}
