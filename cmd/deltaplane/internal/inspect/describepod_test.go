package inspect

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestABackOffEndsWhenItsMessageSays(t *testing.T) {
	t.Parallel()
	ended := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for message, want := range map[string]time.Time{
		"back-off 10s restarting failed container=c pod=p_n(u)":  ended.Add(10 * time.Second),
		"back-off 5m0s restarting failed container=c pod=p_n(u)": ended.Add(5 * time.Minute),
		"back-off soon restarting failed container=c":            {},
		"Back-off pulling image":                                 {},
		"":                                                       {},
	} {
		if got := runsAgain(&corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: message}, ended); !got.Equal(want) {
			t.Errorf("%q: %v, want %v", message, got, want)
		}
	}
	if got := runsAgain(&corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s restarting failed container"}, time.Time{}); !got.IsZero() {
		t.Errorf("an end that is not known: %v", got)
	}
}

func TestAPodNobodyHasReportedIsDescribedFromItsSpec(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := describePod(&corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "first", Image: "i"}}, Containers: []corev1.Container{{Name: "main", Image: "a\x1b[2J"}},
	}})
	if err := a.print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"first (init)", "waiting: not reported", `"a\x1b[2J"`, "Status:", "Node:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, &out)
		}
	}
}
