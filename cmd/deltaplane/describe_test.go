package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/change"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// tolerant is a pod on node-1 that tolerates the taint "test" for some time.
func tolerant(name string, seconds int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, annotations: {%s: forever}}
spec:
  nodeName: node-1
  containers: [{name: main, image: none}]
  tolerations: [{key: test, operator: Exists, effect: NoExecute, tolerationSeconds: %d}]
---
`, name, criruntime.RunSecondsAnnotation, seconds)
}

func TestDescribeNodeTellsItsSilenceItsZoneAndTheNextEvictions(t *testing.T) {
	t.Parallel()
	r := startUp(t, "--controllers", "nodelifecycle,tainteviction", "--node-monitor-grace-period", "45s")
	until(t, func() bool { // the indexer finds each collection's log by itself
		_, _, code := command(t.Context(), "", append([]string{"get", "nodes", "node-1"}, r.ask...)...)
		return code == cli.ExitOK
	})
	ask := func(flags ...string) (inspect.NodeAnswer, string) {
		t.Helper()
		var a inspect.NodeAnswer
		for _, format := range []string{"json", "table"} {
			args := append([]string{"describe", "node", "node-1", "-o", format}, append(flags, r.ask...)...)
			out, errs, code := command(t.Context(), "", args...)
			if code != cli.ExitOK {
				t.Fatalf("%v exited with %d: %s", args, code, errs)
			}
			if format == "table" {
				return a, out
			}
			if err := json.Unmarshal([]byte(out), &a); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		panic("not reached")
	}
	until(t, func() bool {
		a, _ := ask()
		return a.Silence != nil && a.Zone.Rate != nil
	})
	a, text := ask()
	if a.Silence.Grace != 45 || a.Silence.Over || a.Silence.Seconds > 20 || a.Heartbeat.Lease == "" {
		t.Errorf("silence is %+v, last heartbeat %+v", a.Silence, a.Heartbeat)
	}
	if z := a.Zone; z.State != nodelifecycle.Normal || z.Ready != 2 || z.NotReady != 0 || *z.Rate != 0.1 || z.Stopped {
		t.Errorf("zone is %+v, rate %v", z, *z.Rate)
	}
	for _, want := range []string{" of a grace of 45s", "zone-a, Normal: 2 ready, 0 not; 0.1 nodes a second", "Ready ", "the node's clock"} {
		if !strings.Contains(text, want) {
			t.Errorf("text lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "EVICTION OF") || len(a.Evictions) > 0 {
		t.Errorf("nothing is to be evicted:\n%s", text)
	}

	if _, errs, code := command(t.Context(), tolerant("late", 900)+tolerant("soon", 600), append([]string{"apply", "-f", "-"}, r.api...)...); code != cli.ExitOK {
		t.Fatalf("apply: %s", errs)
	}
	kc, err := kube.Load(kube.Config{URL: r.api[1]})
	if err != nil {
		t.Fatal(err)
	}
	placed := time.Now().UTC().Truncate(time.Second)
	patch := fmt.Sprintf(`{"spec":{"taints":[{"key":"test","effect":"NoExecute","timeAdded":%q}]}}`, placed.Format(time.RFC3339))
	if _, err := kc.Patch(t.Context(), kube.Ref{Resource: change.NodeResource, Name: "node-1"}, kube.MergePatch, []byte(patch), kube.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		a, text = ask()
		return len(a.Evictions) == 2 && a.Evictions[0].State == "delayed" && a.Evictions[1].State == "delayed"
	})
	if a.Pods != 2 || len(a.Taints) != 1 {
		t.Errorf("%d pods, taints %+v", a.Pods, a.Taints)
	}
	for i, want := range []struct {
		pod string
		due time.Duration
	}{{"default/soon", 600 * time.Second}, {"default/late", 900 * time.Second}} {
		e := a.Evictions[i]
		if e.Pod != want.pod || e.Taint != "test" || e.Planned == nil || e.Due.Sub(placed) < want.due || e.Due.Sub(placed) > want.due+5*time.Second {
			t.Errorf("eviction %d is %+v, want that of %s %v after %v", i, e, want.pod, want.due, placed)
		}
		if e.Planned == nil {
			continue
		}
		if d := e.Planned.Sub(e.Due).Abs(); d > time.Second {
			t.Errorf("%s: the queue's time is %v off the one the tolerations give", e.Pod, d)
		}
	}
	if !strings.Contains(text, "EVICTION OF") || strings.Index(text, "default/soon") > strings.Index(text, "default/late") {
		t.Errorf("the next eviction is not the first:\n%s", text)
	}

	for _, x := range []struct {
		args []string
		code int
		says string
	}{
		{append([]string{"describe", "node", "none"}, r.ask...), cli.ExitNotFound, "KEY_NOT_FOUND"},
		{append([]string{"describe", "node", "node-1", "--cluster", "other"}, r.ask...), cli.ExitNotFound, "COLLECTION_NOT_FOUND"},
		{append([]string{"describe", "node", "node-1", "-o", "csv"}, r.ask...), cli.ExitUsage, "--output"},
		{[]string{"describe", "node"}, cli.ExitUsage, "arg"},
		{[]string{"describe", "gadget"}, cli.ExitUsage, "describe KIND"},
		{append([]string{"describe", "gadget", "g"}, r.ask...), cli.ExitNotFound, "COLLECTION_NOT_FOUND"},
		{[]string{"describe", "node", "node-1", "--index-url", "127.0.0.1:1", "--timeout", "300ms"}, cli.ExitUnavailable, ""},
	} {
		if _, errs, code := command(t.Context(), "", x.args...); code != x.code || !strings.Contains(errs, x.says) {
			t.Errorf("%v exited with %d, want %d, and said %q, want it to name %q", x.args, code, x.code, errs, x.says)
		}
	}
}

func TestDescribeNodeSaysWhatNobodyMeasuresAndWhatIsStopped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		a    inspect.NodeAnswer
		want []string
	}{
		{"no controller runs", inspect.NodeAnswer{}, []string{"not measured: no node lifecycle", "(no labels), -", "nobody taints"}},
		{"the controller cannot judge", inspect.NodeAnswer{Trouble: "leases are stale"}, []string{"not measured: leases are stale"}},
		{
			"silent for longer than the grace",
			inspect.NodeAnswer{Silence: &inspect.SilenceAnswer{Seconds: 61.26, Grace: 50, Over: true}, Waits: true, Zone: inspect.ZoneAnswer{Region: "r", Name: "z", State: nodelifecycle.Full, NotReady: 4, Rate: new(0.1), Waiting: 3}},
			[]string{"1m1.3s of a grace of 50s, which is over", "r/z, FullDisruption: 0 ready, 4 not; 0.1 nodes a second", "waits for its NoExecute taint, 3 in"},
		},
		{"a small zone partially disrupted", inspect.NodeAnswer{Zone: inspect.ZoneAnswer{Name: "z", State: nodelifecycle.Partial, Rate: new(0.0)}}, []string{"z, PartialDisruption", "; nothing is tainted"}},
		{"every zone is down", inspect.NodeAnswer{Zone: inspect.ZoneAnswer{State: nodelifecycle.Full, Rate: new(0.0), Stopped: true}}, []string{"every zone is down"}},
		{"a node writes to the terminal", inspect.NodeAnswer{Conditions: []nodelifecycle.Condition{{Type: "Ready", Status: "True", Reason: "a\x1b[2Jb"}}}, []string{`"a\x1b[2Jb"`}},
		{"a node that is not well says why", inspect.NodeAnswer{Conditions: []nodelifecycle.Condition{
			{Type: "Ready", Status: "False", Message: "runtime: it does not answer"},
			{Type: "DiskPressure", Status: "True", Message: "it is full"},
		}}, []string{"Ready says: runtime: it does not answer\n", "DiskPressure says: it is full\n"}},
		{"an eviction nobody has planned", inspect.NodeAnswer{Evictions: []inspect.EvictionAnswer{{Pod: "a/b", Taint: "t", State: "not planned"}}}, []string{"a/b", "not planned"}},
	} {
		var out bytes.Buffer
		if err := c.a.Print(&out); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: the text lacks %q:\n%s", c.name, want, &out)
			}
		}
	}
}
