package podstatus_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

// actor is the agent's side of one pod in a random history.
type actor struct {
	pod      *corev1.Pod // as the index shows it, perhaps late
	finished bool
}

// In any order of statuses, of writes by others, of conflicts, refusals and lost answers,
// what the API server has obeys the rules at every moment, and is what was set last in the end.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { history(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func history(t *testing.T, r *rand.Rand) {
	s := newServer()
	actors := map[string]*actor{}
	marks := map[string]int{} // conditions that others wrote, by pod
	var mu sync.Mutex
	finished := map[types.UID]bool{}
	s.stored = func(was, is *corev1.Pod) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case is == nil:
			if !finished[was.UID] || was.DeletionTimestamp == nil || was.Status.Phase != "Failed" && was.Status.Phase != "Succeeded" {
				t.Errorf("pod %s was deleted: finished %v, deletion %v, phase %s", was.Name, finished[was.UID], was.DeletionTimestamp, was.Status.Phase)
			}
			return
		case was == nil || was.UID != is.UID:
			return
		}
		ended := is.Status.Phase == corev1.PodFailed || is.Status.Phase == corev1.PodSucceeded
		if (was.Status.Phase == corev1.PodFailed || was.Status.Phase == corev1.PodSucceeded) && was.Status.Phase != is.Status.Phase {
			t.Errorf("pod %s went from %s to %s", is.Name, was.Status.Phase, is.Status.Phase)
		}
		if ended && was.Status.Phase != is.Status.Phase && !finished[is.UID] {
			t.Errorf("pod %s is %s while something of it may run", is.Name, is.Status.Phase)
		}
		for i, c := range is.Status.ContainerStatuses {
			if i < len(was.Status.ContainerStatuses) && c.RestartCount < was.Status.ContainerStatuses[i].RestartCount {
				t.Errorf("restarts of %s/%s fell", is.Name, c.Name)
			}
		}
		if !slices.ContainsFunc(is.Status.Conditions, func(c corev1.PodCondition) bool { return strings.HasPrefix(string(c.Type), "mark") }) && marks[is.Name] > 0 {
			t.Errorf("pod %s lost the conditions of others", is.Name)
		}
	}
	for i := range 5 {
		pod := spec([]corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever}[r.IntN(2)], "", "A")
		pod.Name, pod.UID = fmt.Sprintf("pod-%d", i), types.UID(fmt.Sprintf("uid-%d", i))
		s.pods[pod.Name] = pod.DeepCopy()
		actors[pod.Name] = &actor{pod: pod}
	}
	luck := rand.New(rand.NewPCG(r.Uint64(), 3)) // the server's own, as its callers race
	s.fault = func(string) (error, bool) {
		switch luck.IntN(8) {
		case 0:
			return refusal(http.StatusInternalServerError, "InternalError"), false
		case 1:
			return errDown, true
		case 2:
			return refusal(http.StatusConflict, "Conflict"), false
		default:
			return nil, false
		}
	}
	s.slow = time.Millisecond
	m := run(t, s, podstatus.Config{Retry: 10 * time.Millisecond, RetryMax: time.Second})
	counts := map[string]int{}
	for range 120 {
		name := fmt.Sprintf("pod-%d", r.IntN(5))
		a := actors[name]
		switch r.IntN(7) {
		case 0, 1: // the agent saw something
			if a.finished {
				break
			}
			if r.IntN(3) == 0 {
				counts[name]++
			}
			in := podstatus.Input{Pod: a.pod, Now: time.Now(), Runtime: observed("ready A:" + []string{"run", "exit0", "exit1"}[r.IntN(3)])}
			in.Runtime.Containers[0].RestartCount = counts[name]
			if last, ok := m.Get(a.pod.UID); ok {
				in.Last = &last
			}
			m.Set(a.pod, podstatus.Generate(in))
		case 2: // somebody else writes
			mu.Lock()
			marks[name]++
			mark := fmt.Sprintf("mark%d=True", marks[name])
			mu.Unlock()
			s.change(name, func(p *corev1.Pod) { p.Status.Conditions = append(p.Status.Conditions, conditions(mark)...) })
		case 3: // the index catches up
			if p := s.pod(name); p != nil && p.UID == a.pod.UID {
				a.pod = p
				m.Observe(a.pod)
			}
		case 4:
			if r.IntN(4) == 0 {
				s.change(name, func(p *corev1.Pod) {
					p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(at(30)), new(int64(30))
				})
			}
		case 5:
			if r.IntN(4) == 0 {
				mu.Lock()
				finished[a.pod.UID] = true
				mu.Unlock()
				a.finished = true
				m.Finish(a.pod)
			}
		case 6:
			pass(time.Duration(r.IntN(50)) * time.Millisecond)
		}
	}
	pass(time.Second)
	s.failing(nil)
	for name, a := range actors {
		if p := s.pod(name); p != nil {
			a.pod = p
			m.Observe(p)
		}
	}
	pass(time.Minute)
	s.took()
	for name, a := range actors {
		got := s.pod(name)
		want, ok := m.Get(a.pod.UID)
		switch {
		case got == nil || !ok:
		case a.finished && got.DeletionTimestamp != nil:
			t.Errorf("pod %s is still there, finished and being deleted", name)
		case a.finished && got.Status.Phase != want.Phase, short(got.Status)[len(got.Status.Phase):] != short(want)[len(want.Phase):]:
			t.Errorf("pod %s has the status %s, want %s", name, short(got.Status), short(want))
		}
	}
	pass(time.Hour)
	wantCalls(t, s) // all is said
}
