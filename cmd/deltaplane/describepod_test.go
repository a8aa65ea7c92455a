package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
)

const crashing = `apiVersion: v1
kind: Pod
metadata: {name: crash, namespace: default, annotations: {deltaplane.io/run-seconds: "0", deltaplane.io/exit-code: "3"}}
spec:
  containers: [{name: main, image: none}, {name: side, image: "missing/image:1"}]
`

const stray = `apiVersion: v1
kind: Pod
metadata: {name: stray, namespace: default}
spec:
  nodeName: vanished
  containers: [{name: main, image: none}]
`

func TestDescribePodTellsWhenAPodIsCollectedWhoseNodeDoesNotExist(t *testing.T) {
	t.Parallel()
	r := startUp(t)
	if _, errs, code := command(t.Context(), stray, append([]string{"apply", "-f", "-"}, r.api...)...); code != cli.ExitOK {
		t.Fatal(errs)
	}
	var out string
	until(t, func() bool {
		out, _, _ = command(t.Context(), "", slices.Concat([]string{"describe", "pod", "stray"}, r.ask, r.api)...)
		return strings.Contains(out, "Collection:")
	})
	if !strings.Contains(out, "its node does not exist") || strings.Contains(out, "Eviction:") {
		t.Errorf("it says %s", out)
	}
}

func TestDescribePodTellsWhyItDoesNotRunAndWhenItWill(t *testing.T) {
	t.Parallel()
	r := startUp(t, "--crash-loop-initial", "2m", "--crash-loop-max", "2m")
	if _, errs, code := command(t.Context(), crashing, append([]string{"apply", "-f", "-"}, r.api...)...); code != cli.ExitOK {
		t.Fatal(errs)
	}
	var a inspect.PodAnswer
	var text string
	until(t, func() bool {
		for _, format := range []string{"json", "table"} {
			out, errs, code := command(t.Context(), "", slices.Concat([]string{"describe", "pod", "crash", "-o", format}, r.ask, r.api)...)
			if format == "table" {
				text = out
				continue
			}
			a = inspect.PodAnswer{}
			if code == cli.ExitNotFound { // the index has not heard of it
				return false
			}
			if code != cli.ExitOK || json.Unmarshal([]byte(out), &a) != nil {
				t.Fatalf("exited with %d: %s%s", code, errs, out)
			}
		}
		return len(a.Containers) == 2 && a.Containers[0].Reason == "CrashLoopBackOff" && a.Containers[1].Reason == "ImagePullBackOff" && len(a.Events) > 3
	})
	main := a.Containers[0]
	if main.Restarts != 1 || main.Last == nil || main.Last.ExitCode != 3 || main.RunsAgain.Sub(main.Last.Finished) != 2*time.Minute {
		t.Errorf("container is %+v, last %+v", main, main.Last)
	}
	for _, want := range []string{"waiting: CrashLoopBackOff, runs again in ", "Error, exit code 3", "waiting: ImagePullBackOff", "side says: Back-off pulling", "PodScheduled", "BackOff", "EVENT"} {
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
		{slices.Concat([]string{"describe", "pod", "none"}, r.ask, r.api), cli.ExitNotFound, "KEY_NOT_FOUND"},
		{slices.Concat([]string{"describe", "pod", "crash", "-n", "other"}, r.ask, r.api), cli.ExitNotFound, "other/crash"},
		{[]string{"describe", "pod"}, cli.ExitUsage, "arg"},
	} {
		if _, errs, code := command(t.Context(), "", x.args...); code != x.code || !strings.Contains(errs, x.says) {
			t.Errorf("%v exited with %d, want %d, and said %q, want it to name %q", x.args, code, x.code, errs, x.says)
		}
	}
	out, errs, code := command(t.Context(), "", slices.Concat([]string{"describe", "pod", "crash", "--api-url", "http://127.0.0.1:1"}, r.ask)...)
	if code != cli.ExitOK || !strings.Contains(out, "Events are not known: ") || !strings.Contains(out, "CrashLoopBackOff") {
		t.Errorf("without an API server it exited with %d: %s%s", code, errs, out)
	}
}
