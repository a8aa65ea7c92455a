package pleg_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/pleg"
)

const pod = "1234"

// told delivers everything there is of a pod.
func told(r *pleg.Records) []string {
	var out []string
	r.Deliver(pod, r.Ask(), func(e pleg.Event) bool {
		out = append(out, e.Container+" "+e.Kind.String())
		return true
	})
	return out
}

func wantTold(t *testing.T, r *pleg.Records, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, told(r)); diff != "" {
		t.Errorf("delivered (-want +got):\n%s", diff)
	}
}

func all(pairs ...any) []pleg.Observed {
	var out []pleg.Observed
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, pleg.Observed{ID: pairs[i].(string), State: pairs[i+1].(pleg.State)})
	}
	return out
}

func TestARefusedEventKeepsItsOrderUntilItIsTaken(t *testing.T) {
	t.Parallel()
	r := pleg.NewRecords()
	r.Observe(pod, all("a", exited, "b", running), r.Ask())
	room := 1
	send := func(pleg.Event) bool { room--; return room >= 0 }
	if r.Deliver(pod, r.Ask(), send) {
		t.Fatal("Deliver() = true with room for one of two events")
	}
	if !r.Pending(pod) {
		t.Fatal("Pending() = false with an event nobody took")
	}
	r.Observe(pod, all("a", exited), r.Ask())
	wantTold(t, r, "b ContainerStarted", "b ContainerDied", "b ContainerRemoved")
	wantTold(t, r)
}

func TestAContainerThatLivedBetweenTwoDeliveriesIsReportedInFull(t *testing.T) {
	t.Parallel()
	r := pleg.NewRecords()
	r.Observe(pod, all("a", running), r.Ask())
	r.Observe(pod, all("a", exited), r.Ask())
	r.Observe(pod, nil, r.Ask())
	if r.Known(pod) {
		t.Error("Known() = true of a pod that is gone")
	}
	wantTold(t, r, "a ContainerStarted", "a ContainerDied", "a ContainerRemoved")
	if got := r.Pods(); len(got) != 0 {
		t.Errorf("Pods() = %v, want nothing to be kept of a pod that is gone and told", got)
	}
}

func TestChangedIsNeverDelivered(t *testing.T) {
	t.Parallel()
	r := pleg.NewRecords()
	if !r.Observe(pod, all("a", unknown), r.Ask()) {
		t.Error("Observe() = false for a new container in an unknown state: its pod must be looked at")
	}
	wantTold(t, r)
	if r.Observe(pod, all("a", unknown), r.Ask()) {
		t.Error("Observe() = true for the same again")
	}
}

func TestAFlappingContainerDoesNotFillTheRecords(t *testing.T) {
	t.Parallel()
	r := pleg.NewRecords()
	for range 1000 {
		r.Observe(pod, all("a", running), r.Ask())
		r.Observe(pod, all("a", exited), r.Ask())
	}
	wantTold(t, r, "a ContainerStarted", "a ContainerDied")
}

func TestEventsWaitForAnAnswerRequestedAfterThem(t *testing.T) {
	t.Parallel()
	r := pleg.NewRecords()
	early := r.Ask()
	r.Observe(pod, all("a", running), r.Ask())
	taken := 0
	send := func(pleg.Event) bool { taken++; return true }
	r.Deliver(pod, early, send)
	if taken != 0 {
		t.Error("an event was delivered with a status that was asked for before it happened")
	}
	r.Deliver(pod, r.Ask(), send)
	if taken != 1 {
		t.Errorf("%d events were delivered, want 1", taken)
	}
}

func TestPodSyncIsDeliveredOnlyWhenNothingElseIs(t *testing.T) {
	t.Parallel()
	r := pleg.NewRecords()
	r.Sync(pod)
	r.Sync(pod)
	wantTold(t, r, " PodSync")
	r.Observe(pod, all("a", running), r.Ask())
	r.Sync(pod)
	wantTold(t, r, "a ContainerStarted")
}

func TestAnAnswerDoesNotUndoEventsNewerThanItsRequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		before []pleg.Observed
		notice pleg.State
		answer []pleg.Observed
		want   []string
		left   pleg.State
	}{
		{"a start that the answer has not seen", nil, running, nil, []string{"a ContainerStarted"}, running},
		{"a creation that the answer saw started", nil, unknown, all("a", running), []string{"a ContainerStarted"}, running},
		{"an end that the answer has not seen", all("a", running), exited, all("a", running), []string{"a ContainerDied"}, exited},
		{"a removal that the answer has not seen", all("a", exited), none, all("a", exited), []string{"a ContainerRemoved"}, none},
		{"a start that the answer saw ended", all("a", unknown), running, all("a", exited), []string{"a ContainerStarted", "a ContainerDied"}, exited},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := pleg.NewRecords()
			r.Observe(pod, c.before, r.Ask())
			told(r)
			asked := r.Ask()
			if changed, believed := r.Notice(pod, "a", c.notice); !changed || !believed {
				t.Fatalf("Notice() = %t, %t", changed, believed)
			}
			r.Observe(pod, c.answer, asked)
			wantTold(t, r, c.want...)
			var now []pleg.Observed
			if c.left != none {
				now = all("a", c.left)
			}
			if r.Observe(pod, now, r.Ask()) {
				t.Errorf("the records are not at %v", c.left)
			}
		})
	}
}

func TestEventsNeverMoveAContainerBackwards(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		was, news         pleg.State
		changed, believed bool
	}{
		{none, none, false, true},
		{none, unknown, true, true},
		{none, running, true, true},
		{none, exited, true, true},
		{unknown, unknown, false, true},
		{unknown, running, true, true},
		{unknown, none, true, true},
		{running, unknown, false, false},
		{running, running, false, true},
		{running, exited, true, true},
		{running, none, true, true},
		{exited, unknown, false, false},
		{exited, running, false, false},
		{exited, exited, false, true},
		{exited, none, true, true},
	} {
		r := pleg.NewRecords()
		if c.was != none {
			r.Observe(pod, all("a", c.was), r.Ask())
		}
		changed, believed := r.Notice(pod, "a", c.news)
		if changed != c.changed || believed != c.believed {
			t.Errorf("news of %v about a container that is %v: %t, %t, want %t, %t", c.news, c.was, changed, believed, c.changed, c.believed)
		}
	}
}

func TestARemovedContainerReturnsOnlyInAnAnswerRequestedLater(t *testing.T) {
	t.Parallel()
	r := pleg.NewRecords()
	r.Observe(pod, all("a", running), r.Ask())
	r.Notice(pod, "a", none)
	told(r)
	for range 2 {
		if changed, believed := r.Notice(pod, "a", exited); changed || believed {
			t.Errorf("Notice() = %t, %t for a removed container", changed, believed)
		}
		r.Age() // once is not enough to forget
	}
	r = pleg.NewRecords()
	r.Observe(pod, all("a", running), r.Ask())
	asked := r.Ask()
	r.Notice(pod, "a", none)
	told(r)
	r.Observe(pod, all("a", running), asked)
	wantTold(t, r)
	r.Observe(pod, all("a", running), r.Ask())
	wantTold(t, r, "a ContainerStarted")
}

func TestAnEventsStatusIsUsedOnlyWhereItContradictsNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status []pleg.Observed
		ok     bool
		want   []string
	}{
		{"the same", all("a", running, "b", exited), true, nil},
		{"further on", all("a", exited, "b", exited), true, []string{"a ContainerDied"}},
		{"a new container", all("a", running, "b", exited, "c", running), true, []string{"c ContainerStarted"}},
		{"one is missing", all("a", running), false, nil},
		{"one is not as far", all("a", exited, "b", running), false, nil},
		{"one was removed", all("a", running, "b", exited, "gone", exited), false, nil},
		{"nothing", nil, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := pleg.NewRecords()
			r.Observe(pod, all("a", running, "b", exited, "gone", exited), r.Ask())
			r.Notice(pod, "gone", none)
			told(r)
			if got := r.Merge(pod, c.status); got != c.ok {
				t.Errorf("Merge() = %t, want %t", got, c.ok)
			}
			wantTold(t, r, c.want...)
		})
	}
}

func TestRecordsFindThePodOfAContainer(t *testing.T) {
	t.Parallel()
	r := pleg.NewRecords()
	r.Observe(pod, all("a", running), r.Ask())
	if got, ok := r.PodOf("a"); !ok || got != pod {
		t.Errorf("PodOf() = %q, %t", got, ok)
	}
	r.Observe(pod, nil, r.Ask())
	if got, ok := r.PodOf("a"); ok {
		t.Errorf("PodOf() = %q of a container that is gone", got)
	}
}

//nolint:paralleltest // allocations are counted for the whole process
func TestAListThatFoundNothingNewAllocatesNothing(t *testing.T) {
	r := pleg.NewRecords()
	list := all("a", running, "b", exited, "s", running)
	r.Observe(pod, list, r.Ask())
	if n := testing.AllocsPerRun(100, func() { r.Observe(pod, list, r.Ask()) }); n != 0 {
		t.Errorf("%v allocations for a pod that did not change", n)
	}
}
