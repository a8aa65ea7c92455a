package prober_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/prober"
)

// warned is how many Events there were since it was last asked.
func (w *world) warned() int {
	return strings.Count(w.happened(&w.events), "probe")
}

func TestAProbeThatGoesOnFailingIsToldOfEveryFewMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, corev1.Container{ReadinessProbe: probes("r", 1)})
		w.answer(probe.Readiness, probe.Failure, nil)
		w.Add(w.pod)
		w.runs("a", true)
		if n := w.warned(); n != 1 {
			t.Errorf("%d Events of the first failure", n)
		}
		time.Sleep(time.Hour + 10*time.Second)
		if n := w.warned(); n != 1+12 {
			t.Errorf("%d Events in an hour, want one of the change and 12", n)
		}
		w.answer(probe.Readiness, probe.Unknown, errors.New("no such port"))
		time.Sleep(time.Second)
		if n := w.warned(); n != 1 {
			t.Errorf("%d Events of an answer of another kind", n)
		}
	})
}

func TestAProbeThatFailsEveryOtherTimeIsToldOfTenTimesAndThenEveryFewMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, corev1.Container{ReadinessProbe: probes("r", 1)})
		ill := false
		w.answers[probe.Readiness] = func() (prober.Answer, error) {
			if ill = !ill; ill {
				return prober.Answer{Result: probe.Failure, Message: "broken"}, nil
			}
			return prober.Answer{Result: probe.Success}, nil
		}
		w.Add(w.pod)
		w.runs("a", true)
		time.Sleep(time.Hour)
		if n := w.warned(); n != 10+12 {
			t.Errorf("%d Events in an hour, want 22", n)
		}
	})
}

func TestAnEventHoldsTheFirstKilobyteOfAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil, corev1.Container{LivenessProbe: probes("l", 10)})
		w.answers[probe.Liveness] = func() (prober.Answer, error) {
			return prober.Answer{Result: probe.Failure, Message: strings.Repeat("é", 5000)}, nil
		}
		w.Add(w.pod)
		w.runs("a", true)
		synctest.Wait()
		got := strings.TrimPrefix(w.happened(&w.events), "Unhealthy: ")
		if len(got) > 1024 || len(got) < 1020 || !utf8.ValidString(got) || !strings.HasSuffix(got, "é...") {
			t.Errorf("an Event of %d bytes: %q", len(got), got)
		}
	})
}
