package podgc_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/core/taint"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func pod(node, phase string) *podgc.Pod {
	p := new(podgc.Pod)
	p.Metadata.Name, p.Spec.NodeName, p.Status.Phase = "p", node, phase
	return p
}

// deleting is p while it has so many seconds left.
func deleting(p *podgc.Pod, grace int64) *podgc.Pod {
	p.Metadata.DeletionTimestamp, p.Metadata.DeletionGracePeriodSeconds = &noon, &grace
	return p
}

func node(ready string, taints ...taint.Taint) *nodelifecycle.Node {
	n := new(nodelifecycle.Node)
	if ready != "" {
		n.Status.Conditions = []nodelifecycle.Condition{{Type: nodelifecycle.Ready, Status: ready}}
	}
	n.Spec.Taints = taints
	return n
}

func TestAPodIsCollectedForTheReasonThatHolds(t *testing.T) {
	t.Parallel()
	shut := taint.Taint{Key: taint.OutOfService, Value: "nodeshutdown", Effect: taint.NoExecute}
	for _, c := range []struct {
		name string
		pod  *podgc.Pod
		node *nodelifecycle.Node
		want podgc.Reason
	}{
		{"a pod that waits for a node", pod("", "Pending"), nil, ""},
		{"one that has ended without a node", pod("", "Failed"), nil, ""},
		{"one that is deleted without a node", deleting(pod("", "Pending"), 0), nil, podgc.Unscheduled},
		{"one that is deleted without a node and has time left", deleting(pod("", "Pending"), 30), nil, podgc.Unscheduled},
		{"one that ended, is deleted, and never had a node", deleting(pod("", "Failed"), 0), nil, ""},
		{"a pod on its node", pod("n", "Running"), node("True"), ""},
		{"a pod on a node that is not ready", pod("n", "Running"), node("False"), ""},
		{"its node is gone", pod("n", "Running"), nil, podgc.Orphaned},
		{"its node is gone and it has not begun", pod("n", "Pending"), nil, podgc.Orphaned},
		{"its node is gone and its phase is not known", pod("n", ""), nil, podgc.Orphaned},
		{"its node is gone and it has succeeded", pod("n", "Succeeded"), nil, podgc.Orphaned},
		{"its node is gone while it is deleted", deleting(pod("n", "Running"), 30), nil, podgc.Orphaned},
		{"its node is gone, it is deleted without grace and has not ended", deleting(pod("n", "Running"), 0), nil, podgc.Orphaned},
		{"its node is gone, it has ended and has time left", deleting(pod("n", "Failed"), 30), nil, podgc.Orphaned},
		{"its node is gone and only its finalizers keep it", deleting(pod("n", "Failed"), 0), nil, ""},
		{"it is deleted on a node that is well", deleting(pod("n", "Running"), 30), node("True"), ""},
		{"on one that is not ready", deleting(pod("n", "Running"), 30), node("False"), ""},
		{"on one that is well and has the taint", deleting(pod("n", "Running"), 30), node("True", shut), ""},
		{"on one that is out of service", deleting(pod("n", "Running"), 30), node("False", shut), podgc.OutOfService},
		{"on one that is out of service and silent", deleting(pod("n", "Running"), 30), node("Unknown", shut), podgc.OutOfService},
		{"on one that is out of service and has said nothing", deleting(pod("n", "Running"), 30), node("", shut), podgc.OutOfService},
		{"on one whose taint has another effect and no value", deleting(pod("n", "Running"), 30), node("False", taint.Taint{Key: taint.OutOfService, Effect: taint.NoSchedule}), podgc.OutOfService},
		{"on one that has another taint", deleting(pod("n", "Running"), 30), node("False", taint.Taint{Key: taint.NotReady, Effect: taint.NoExecute}), ""},
		{"it is not deleted on a node that is out of service", pod("n", "Running"), node("False", shut), ""},
		{"only its finalizers keep it on a node that is out of service", deleting(pod("n", "Succeeded"), 0), node("False", shut), ""},
	} {
		if got := podgc.Judge(c.pod, c.node); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAQuarantineCountsFromWhenTheNodeWasFirstMissing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		since, now time.Time
		want       time.Time
		left       time.Duration
	}{
		{"the first look", time.Time{}, noon, noon, 40 * time.Second},
		{"a later look", noon, noon.Add(15 * time.Second), noon, 25 * time.Second},
		{"just before its end", noon, noon.Add(40*time.Second - 1), noon, 1},
		{"its end", noon, noon.Add(40 * time.Second), noon, 0},
		{"long after", noon, noon.Add(time.Hour), noon, 0},
		{"a time from the future", noon.Add(time.Hour), noon, noon, 40 * time.Second},
		{"a time no clock shows", time.Time{}.Add(1), noon, time.Time{}.Add(1), 0},
	} {
		since, left := podgc.Rules{}.WithDefaults().Missing(c.since, c.now)
		if !since.Equal(c.want) || left != c.left {
			t.Errorf("%s: since %v, %v left; want %v, %v", c.name, since, left, c.want, c.left)
		}
	}
}

func TestTheSurplusIsTheEvictedThenTheOldest(t *testing.T) {
	t.Parallel()
	made := func(name, phase, reason string, minute int) *podgc.Pod {
		p := pod("n", phase)
		p.Metadata.Namespace, p.Metadata.Name, p.Status.Reason = "ns", name, reason
		p.Metadata.CreationTimestamp = noon.Add(time.Duration(minute) * time.Minute)
		return p
	}
	pods := []*podgc.Pod{
		made("young", "Succeeded", "", 9),
		made("runs", "Running", "", 0),
		made("b", "Failed", "", 2),
		made("old", "Failed", "", 1),
		made("a", "Succeeded", "", 2),
		made("evicted", "Failed", "Evicted", 8),
		made("says-evicted", "Succeeded", "Evicted", 10),
		made("waits", "Pending", "Evicted", 0),
		made("evicted-before", "Failed", "Evicted", 7),
		made("unreadable", "Unknown", "", 0),
	}
	for _, c := range []struct {
		threshold int
		want      []string
	}{
		{-1, nil},
		{0, nil},
		{1, []string{"evicted-before", "evicted", "old", "a", "b", "young"}},
		{3, []string{"evicted-before", "evicted", "old", "a"}},
		{5, []string{"evicted-before", "evicted"}},
		{6, []string{"evicted-before"}},
		{7, nil},
		{math.MaxInt, nil},
	} {
		before := slices.Clone(pods)
		var got []string
		for _, p := range podgc.Surplus(pods, c.threshold) {
			got = append(got, p.Metadata.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("threshold %d: %v, want %v", c.threshold, got, c.want)
		}
		if !slices.Equal(pods, before) {
			t.Errorf("threshold %d changed what it was given", c.threshold)
		}
	}
}

func TestOnlyTimesBelowZeroAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rules podgc.Rules
		ok    bool
	}{
		{podgc.Rules{}, true},
		{podgc.Rules{Threshold: new(-5)}, true},
		{podgc.Rules{Quarantine: -1}, false},
		{podgc.Rules{Every: -1}, false},
	} {
		if err := c.rules.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.rules, err)
		}
	}
	d := podgc.Rules{}.WithDefaults()
	if got := fmt.Sprint(*d.Threshold, d.Quarantine, d.Every); got != "12500 40s 20s" {
		t.Errorf("defaults are %s", got)
	}
	if got := *(podgc.Rules{Threshold: new(0)}).WithDefaults().Threshold; got != 0 {
		t.Errorf("a threshold of none became %d", got)
	}
}
