package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const crashing = `apiVersion: v1
kind: Pod
metadata: {name: crash, namespace: default, annotations: {deltaplane.io/run-seconds: "0", deltaplane.io/exit-code: "3"}}
spec:
  containers: [{name: main, image: none}, {name: side, image: "missing/image:1"}]
`

func TestDescribePodTellsWhyItDoesNotRunAndWhenItWill(t *testing.T) {
	t.Parallel()
	r := startUp(t, "--crash-loop-initial", "2m", "--crash-loop-max", "2m")
	if _, errs, code := command(t.Context(), crashing, append([]string{"apply", "-f", "-"}, r.api...)...); code != exitOK {
		t.Fatal(errs)
	}
	var a podAnswer
	var text string
	until(t, func() bool {
		for _, format := range []string{"json", "table"} {
			out, errs, code := command(t.Context(), "", slices.Concat([]string{"describe", "pod", "crash", "-o", format}, r.ask, r.api)...)
			if format == "table" {
				text = out
				continue
			}
			a = podAnswer{}
			if code == exitNotFound { // the index has not heard of it
				return false
			}
			if code != exitOK || json.Unmarshal([]byte(out), &a) != nil {
				t.Fatalf("exited with %d: %s%s", code, errs, out)
			}
		}
		return len(a.Containers) == 2 && a.Containers[0].Reason == "CrashLoopBackOff" && a.Containers[1].Reason == "ImagePullBackOff" && len(a.Events) > 3
	})
	main := a.Containers[0]
	if main.Restarts != 1 || main.Last == nil || main.Last.ExitCode != 3 || main.RunsAgain.Sub(main.Last.Finished) != 2*time.Minute {
		t.Errorf("h.2, h.6: container is %+v, last %+v", main, main.Last)
	}
	for _, want := range []string{"waiting: CrashLoopBackOff, runs again in 1m", "Error, exit code 3", "waiting: ImagePullBackOff", "side says: Back-off pulling", "PodScheduled", "BackOff", "EVENT"} {
		if !strings.Contains(text, want) {
			t.Errorf("text lacks %q:\n%s", want, text)
		}
	}
	if pods, _, _ := command(t.Context(), "", append([]string{"get", "pods", "default/crash"}, r.ask[:2]...)...); !strings.Contains(pods, "CrashLoopBackOff") {
		t.Errorf("get shows %s", pods)
	}
	for _, x := range []struct {
		args []string
		code int
		says string
	}{
		{slices.Concat([]string{"describe", "pod", "none"}, r.ask, r.api), exitNotFound, "KEY_NOT_FOUND"},
		{slices.Concat([]string{"describe", "pod", "crash", "-n", "other"}, r.ask, r.api), exitNotFound, "other/crash"},
		{[]string{"describe", "pod"}, exitUsage, "arg"},
	} {
		if _, errs, code := command(t.Context(), "", x.args...); code != x.code || !strings.Contains(errs, x.says) {
			t.Errorf("%v exited with %d, want %d, and said %q, want it to name %q", x.args, code, x.code, errs, x.says)
		}
	}
	out, errs, code := command(t.Context(), "", slices.Concat([]string{"describe", "pod", "crash", "--api-url", "http://127.0.0.1:1"}, r.ask)...)
	if code != exitOK || !strings.Contains(out, "Events are not known: ") || !strings.Contains(out, "CrashLoopBackOff") {
		t.Errorf("without an API server it exited with %d: %s%s", code, errs, out)
	}
}

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
