package system

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The whole kube-controller-manager runs, with its own controllers of nodes and taints, and ours
// beside it with the same settings: they agree, and neither undoes what the other does.
func TestRealNodesBesideKubeControllerManager(t *testing.T) {
	t.Parallel()
	audit := newAudit(t)
	k := startKube(t, append(audit.args(),
		"--nodes", "6", "--zones", "2", "--lease-seconds", "4", "--controllers", "*",
		"--manager-arg=--node-monitor-grace-period="+testGrace.String(), "--manager-arg=--node-startup-grace-period=20s",
		"--manager-arg=--node-monitor-period=500ms", fmt.Sprintf("--manager-arg=--node-eviction-rate=%d", testRate))...)
	p := k.startPlane(t, nil, lifecycleArgs(testGrace))
	p.run(t, "controllers")
	w := k.watch(t)
	p.ready(t, "controllers")
	w.onlyTainted(t, 20*time.Second, "all is well")

	// quiet fails when either side writes to a node once both have said what they have to say.
	quiet := func(t *testing.T, when string) {
		t.Helper()
		began := time.Now()
		var settled time.Time
		eventually(t, 20*time.Second, when+": both fall silent for a while", func(context.Context) error {
			settled = time.Now()
			calm := settled.Add(-2 * time.Second)
			if calm.Before(began) {
				return errors.New("not yet")
			}
			if late := audit.nodeWrites(t, calm); len(late) > 0 {
				return fmt.Errorf("nodes are written to: %v", late)
			}
			return nil
		})
		changes := -1
		w.stays(t, 3*time.Second, when, func() string {
			if changes < 0 {
				changes = len(w.changes)
			}
			if n := len(w.changes) - changes; n > 0 {
				return fmt.Sprintf("taints still come and go: %+v", w.changes[changes:])
			}
			return ""
		})
		if late := audit.nodeWrites(t, settled); len(late) > 0 {
			t.Errorf("%s: nodes are still written to: %v", when, late)
		}
	}

	const rounds = 3
	for round := range rounds {
		name := func(pod string) string { return fmt.Sprintf("%s-%d", pod, round) }
		for pod, seconds := range map[string]int{"immediate": 0, "delayed": 3, "faithful": 600} {
			k.podOn(t, "node-1", name(pod), unreachable, seconds)
		}
		k.silence(t, true, "node-1")
		w.onlyTainted(t, 20*time.Second, "the silent node is tainted", "node-1")
		w.mu.Lock()
		_, added := w.since("node-1")
		w.mu.Unlock()
		w.inTime(t, added, map[string]int{name("immediate"): 0, name("delayed"): 3})
		if round == 0 {
			quiet(t, "a node is down")
		}
		k.silence(t, false, "node-1")
		w.onlyTainted(t, 20*time.Second, "it answers again")
		w.until(t, 10*time.Second, "no taint of any effect stays", func() string {
			if left := w.nodes["node-1"].Spec.Taints; len(left) > 0 {
				return fmt.Sprint(left)
			}
			return ""
		})
	}
	quiet(t, "all is well again")
	w.mu.Lock()
	if len(w.changes) != 2*rounds {
		t.Errorf("in %d outages of a node its taint came and went %d times: %+v", rounds, len(w.changes), w.changes)
	}
	for round := range rounds {
		if at := w.evicted(fmt.Sprintf("faithful-%d", round)); !at.IsZero() {
			t.Errorf("a pod that tolerates the taint for 10 minutes was evicted at %v", at)
		}
	}
	w.mu.Unlock()

	k.silence(t, true, nodeNames(1, 6)...)
	w.until(t, 20*time.Second, "every node is unknown", func() string {
		for name, n := range w.nodes {
			if condition(n.Status.Conditions, corev1.NodeReady).Status != corev1.ConditionUnknown {
				return name + " is not"
			}
		}
		return ""
	})
	w.onlyTainted(t, 10*time.Second, "all zones are down: taints are taken away")
	quiet(t, "all zones are down")
	k.silence(t, false, nodeNames(4, 6)...)
	w.onlyTainted(t, 40*time.Second, "a zone is back, the other one is not", nodeNames(1, 3)...)
	quiet(t, "a zone is down")
	k.silence(t, false, nodeNames(1, 3)...)
	w.onlyTainted(t, 20*time.Second, "all are back")

	audit.check(t, rounds)
}

// audit is what the API server wrote of the writes to nodes, pods and events.
type audit struct{ policy, log string }

type auditEvent struct {
	Verb                     string
	UserAgent                string
	RequestReceivedTimestamp time.Time
	ObjectRef                struct{ Resource, Subresource, Name string }
	ResponseStatus           struct{ Code int }
	RequestObject            struct {
		Preconditions struct{ UID string }
		Reason        string
		Count         int
	}
}

func newAudit(t *testing.T) *audit {
	t.Helper()
	dir := t.TempDir()
	a := &audit{policy: filepath.Join(dir, "policy.yaml"), log: filepath.Join(dir, "audit.log")}
	const policy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
		{"level": "Request", "verbs": ["create", "update", "patch", "delete"], "resources": [
			{"group": "", "resources": ["nodes", "nodes/status", "pods", "pods/status", "events"]},
			{"group": "events.k8s.io", "resources": ["events"]}]},
		{"level": "None"}]}`
	if err := os.WriteFile(a.policy, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *audit) args() []string {
	return []string{"--api-arg=--audit-policy-file=" + a.policy, "--api-arg=--audit-log-path=" + a.log}
}

func (a *audit) read(t *testing.T) []auditEvent {
	t.Helper()
	file, err := os.Open(a.log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []auditEvent
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditEvent
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			break // the last line is being written
		}
		all = append(all, e)
	}
	return all
}

// who is the side that made a request; empty for the test and the nodes themselves.
func (e auditEvent) who() string {
	for agent, who := range map[string]string{"deltaplane": "ours", "kube-controller-manager": "manager"} {
		if strings.HasPrefix(e.UserAgent, agent) {
			return who
		}
	}
	return ""
}

// nodeWrites are the writes of either side to nodes since a moment.
func (a *audit) nodeWrites(t *testing.T, since time.Time) []string {
	t.Helper()
	var out []string
	for _, e := range a.read(t) {
		if e.ObjectRef.Resource == "nodes" && e.who() != "" && e.RequestReceivedTimestamp.After(since) {
			out = append(out, fmt.Sprintf("%s %s %s/%s: %d", e.who(), e.Verb, e.ObjectRef.Name, e.ObjectRef.Subresource, e.ResponseStatus.Code))
		}
	}
	return out
}

// check judges all that both sides wrote.
func (a *audit) check(t *testing.T, rounds int) {
	t.Helper()
	writes := map[string]int{}  // by side, verb and resource
	evicted := map[string]int{} // by pod: deletions that were accepted
	for _, e := range a.read(t) {
		if e.who() == "" {
			continue
		}
		what := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			what += "/" + e.ObjectRef.Subresource
		}
		if what == "events" {
			what += " " + e.RequestObject.Reason
		}
		writes[fmt.Sprintf("%-8s %-6s %s %d", e.who(), e.Verb, what, e.ResponseStatus.Code)]++
		if e.ObjectRef.Resource != "pods" || e.Verb != "delete" {
			continue
		}
		if e.who() == "ours" && e.RequestObject.Preconditions.UID == "" {
			t.Errorf("%s was deleted by us without a UID", e.ObjectRef.Name)
		}
		if e.ResponseStatus.Code < 300 {
			evicted[e.ObjectRef.Name]++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(writes)) {
		t.Logf("%4d %s", writes[key], key)
	}
	if len(evicted) != 2*rounds {
		t.Errorf("deleted were %v, want the %d pods whose time was over", evicted, 2*rounds)
	}
	// Three outages of one node, one of six: eight nodes fell silent and came back, twice three were
	// tainted again.
	for _, side := range []string{"ours", "manager"} {
		events, nodes := 0, 0
		for key, n := range writes {
			switch {
			case !strings.HasPrefix(key, side):
			case strings.Contains(key, " events"):
				events += n
			case strings.Contains(key, " nodes"):
				nodes += n
			}
		}
		if most := 80; nodes > most || events > most {
			t.Errorf("%s wrote %d times to nodes and %d Events, want at most %d each", side, nodes, events, most)
		}
	}
}
