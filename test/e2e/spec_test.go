//go:build linux

package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

const list = `The following spec names can be used with 'ginkgo run --focus/skip':
    apps/job.go:79: [sig-apps] Job should run a job to completion when tasks succeed
    apps/job.go:1382: [sig-apps] Job should create Workload and PodGroup for gang-eligible Job [FeatureGate:GenericWorkload]
    apps/cronjob.go:70: [sig-apps] CronJob should schedule multiple jobs concurrently
    node/taints.go:177: [sig-node] NoExecuteTaintManager Single Pod [Serial] evicts pods from tainted nodes

`

func TestTheListIsReducedToTheSpecsThatJudgeDeltaplane(t *testing.T) {
	t.Parallel()
	want := []string{
		"[sig-apps] Job should run a job to completion when tasks succeed",
		"[sig-node] NoExecuteTaintManager Single Pod [Serial] evicts pods from tainted nodes",
	}
	got := judgedIn([]byte(list))
	if !slices.Equal(got, want) {
		t.Errorf("judgedIn() = %q, want %q", got, want)
	}
	if alone(got[0]) || !alone(got[1]) {
		t.Errorf("alone(%q) = %v, alone(%q) = %v, want false and true", got[0], alone(got[0]), got[1], alone(got[1]))
	}
}

func TestASpecWithAResultIsRunAgainOnlyWhenAskedAndASlowOneOnlyWithAll(t *testing.T) {
	t.Parallel()
	had, err := openResults(filepath.Join(t.TempDir(), "results"))
	if err != nil {
		t.Fatal(err)
	}
	defer had.close()
	for _, one := range []result{{Name: "good", Passed: true}, {Name: "bad"}} {
		if err := had.add(one); err != nil {
			t.Fatal(err)
		}
	}
	const slow = "removing taint cancels eviction"
	every := []string{"bad", "good", "new", slow}
	for _, c := range []struct {
		cfg  config
		want []string
	}{
		{config{all: true, again: againNone}, []string{"new", slow}},
		{config{all: true, again: againFailed}, []string{"bad", "new", slow}},
		{config{all: true, again: againAll}, every},
		{config{all: true, again: againNone, focus: regexp.MustCompile("^g")}, []string{"good"}},
		{config{again: againNone}, []string{"bad", "good", "new"}},
	} {
		if got := choose(every, c.cfg, had); !slices.Equal(got, c.want) {
			t.Errorf("choose(%+v) = %q, want %q", c.cfg, got, c.want)
		}
	}
}

func TestImagesAreFoundByTheirName(t *testing.T) {
	t.Parallel()
	const list = "r.io/e2e/busybox:1.36\nr.io/e2e/busybox:1.37\nr.io/pause:3.10\nr.io/pause/x:1\nr.io/pause-x:1\n"
	for name, want := range map[string][]string{"busybox": {"r.io/e2e/busybox:1.36", "r.io/e2e/busybox:1.37"}, "pause": {"r.io/pause:3.10"}, "box": nil} {
		if got := imagesNamed(list, name); !slices.Equal(got, want) {
			t.Errorf("imagesNamed(%s) = %q, want %q", name, got, want)
		}
	}
}
