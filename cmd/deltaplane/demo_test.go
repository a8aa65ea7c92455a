package main

import (
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
)

// hurried is an `up` whose nodes beat every second and are given up after ten.
func hurried(t *testing.T, more ...string) *running {
	t.Helper()
	return startUp(t, append([]string{"--heartbeat-every", "1s", "--node-monitor-grace-period", "10s", "--liveness-every", "500ms"}, more...)...)
}

func TestTheDemoOfANodesFailureTellsTheWholeStory(t *testing.T) {
	t.Parallel()
	r := hurried(t)
	until(t, func() bool { // the demo needs two that are ready
		out, _, _ := command(t.Context(), "", append([]string{"get", "nodes", "--no-headers"}, r.ask[:2]...)...)
		return len(regexp.MustCompile(`\bReady\b`).FindAllString(out, -1)) == 3
	})
	out, errs, code := command(t.Context(), "", slices.Concat([]string{"demo", "node-failure", "--stay", "8s", "--limit", "5m"}, r.ask, r.api)...)
	if code != cli.ExitOK {
		t.Fatalf("the demo exited with %d: %s\n%s", code, errs, out)
	}
	rest := out
	for _, want := range []string{
		`Job node-failure-\d+: 4 pods that tolerate a dead node for 8s`,
		`all run: \d on node-1`,
		`node-\d stopped`,
		`is given up: Ready is Unknown, NodeStatusUnknown`,
		`tainted node.kubernetes.io/unreachable:NoExecute; zone-[ab], `,
		`eviction of default/node-failure-\S+ at \d\d:\d\d:\d\d, in \ds`,
		`-\d evicted; it stays Terminating`,
		`-\d replaces it and runs on node-\d`,
		`node-\d started`,
		`node-\d is ready again`,
		`Job node-failure-\d+ deleted`,
	} {
		at := regexp.MustCompile(want).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("the story lacks %q, or tells it too early:\n%s", want, out)
		}
		rest = rest[at[1]:]
	}
}

func TestAnInterruptedDemoPutsThingsRight(t *testing.T) {
	t.Parallel()
	r := startUp(t, "--nodes", "2")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, slices.Concat([]string{"demo", "node-failure"}, r.ask, r.api), streams{In: strings.NewReader(""), Out: &out, Err: &out})
	}()
	until(t, func() bool { return strings.Contains(out.String(), " stopped: ") })
	cancel()
	if code := <-done; code != cli.ExitOK || !strings.Contains(out.String(), " deleted") || strings.Contains(out.String(), "canceled") {
		t.Errorf("it exited with %d:\n%s", code, &out)
	}
	until(t, func() bool {
		text, _, code := command(t.Context(), "", append([]string{"get", "nodes", "-o", "json"}, r.ask[:2]...)...)
		return code == cli.ExitOK && !strings.Contains(text, "deltaplane.io/stopped") && strings.Contains(text, "node-2")
	})
}

func TestTheDemoSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	r := startUp(t, "--nodes", "1")
	for want, args := range map[string][]string{
		"1 nodes are ready, and the demo needs two": {"demo", "node-failure"},
		"--stay 10ms must be a second":              {"demo", "node-failure", "--stay", "10ms"},
	} {
		if _, errs, code := command(t.Context(), "", slices.Concat(args, r.ask, r.api)...); code == cli.ExitOK || !strings.Contains(errs, want) {
			t.Errorf("%v exited with %d and said %q, want %q", args, code, errs, want)
		}
	}
}

func TestNodesServedByThemselvesRunThePodsOfACluster(t *testing.T) {
	t.Parallel()
	r := startUp(t, "--nodes", "0")
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var out buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, slices.Concat([]string{
			"serve", "node", "--simulated-nodes", "2", "--node-name", "far", "--root-dir", filepath.Join(dir, "nodes"), "--admin-listen", "off",
			"--node-labels", "disk=ssd", "--log-level", "warn",
		}, r.ask[:2], r.api), streams{In: strings.NewReader(""), Out: &out, Err: &out})
	}()
	defer func() {
		cancel()
		if code := <-done; code != cli.ExitOK {
			t.Errorf("it exited with %d: %s", code, &out)
		}
	}()
	job := `apiVersion: batch/v1
kind: Job
metadata: {name: far, namespace: default}
spec: {parallelism: 2, completions: 4, template: {spec: {nodeSelector: {disk: ssd}, restartPolicy: Never, containers: [{name: main, image: none}]}}}
`
	if _, errs, code := command(t.Context(), job, append([]string{"apply", "-f", "-"}, r.api...)...); code != cli.ExitOK {
		t.Fatal(errs)
	}
	until(t, func() bool {
		text, _, _ := command(t.Context(), "", append([]string{"get", "jobs", "default/far"}, r.ask[:2]...)...)
		return strings.Contains(text, "Complete") && strings.Contains(text, "4/4")
	})
	text, _, _ := command(t.Context(), "", append([]string{"get", "nodes", "-o", "wide"}, r.ask[:2]...)...)
	for _, want := range []string{"far-1", "far-2", "zone-a", "zone-b", "deltaplane-simulated"} {
		if !strings.Contains(text, want) {
			t.Errorf("nodes lack %q:\n%s", want, text)
		}
	}
}

func TestServeNodeRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--simulated-nodes -1 is below zero":             {"--simulated-nodes", "-1"},
		"--simulated-nodes run on --cri simulated alone": {"--simulated-nodes", "1", "--cri", "unix:///run/x.sock"},
		"--simulated-zones 27 is not within 1 and 26":    {"--simulated-nodes", "1", "--simulated-zones", "27"},
		`CRI endpoint "tcp://x" is not unix:///path`:     {"--cri", "tcp://x"},
		`"Not_a_name-1"`:  {"--simulated-nodes", "1", "--node-name", "Not_a_name"},
		"beyond loopback": {"--simulated-nodes", "1", "--admin-listen", "0.0.0.0:1"},
		"--kubelet-listen is for one node on a container runtime": {"--simulated-nodes", "1", "--kubelet-listen", ":0"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // what is accepted would serve for ever
		defer cancel()
		if _, errs, code := command(ctx, "", append([]string{"serve", "node", "--root-dir", t.TempDir()}, args...)...); code != cli.ExitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v exited with %d and said %q, want it to name %q", args, code, errs, want)
		}
	}
}
