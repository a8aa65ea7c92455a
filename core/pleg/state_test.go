package pleg_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/pleg"
)

// Short names for the table of state changes.
const (
	none    = pleg.NonExistent
	unknown = pleg.Unknown
	running = pleg.Running
	exited  = pleg.Exited
)

func TestEveryStateChangeGivesTheEventsOfTheTable(t *testing.T) {
	t.Parallel()
	kinds := func(k ...pleg.Kind) []pleg.Kind { return k }
	table := map[[2]pleg.State][]pleg.Kind{
		{running, running}: nil,
		{running, exited}:  kinds(pleg.ContainerDied),
		{running, unknown}: kinds(pleg.ContainerChanged),
		{running, none}:    kinds(pleg.ContainerDied, pleg.ContainerRemoved),
		{exited, running}:  kinds(pleg.ContainerStarted),
		{exited, exited}:   nil,
		{exited, unknown}:  kinds(pleg.ContainerChanged),
		{exited, none}:     kinds(pleg.ContainerRemoved),
		{unknown, running}: kinds(pleg.ContainerStarted),
		{unknown, exited}:  kinds(pleg.ContainerDied),
		{unknown, unknown}: nil,
		{unknown, none}:    kinds(pleg.ContainerDied, pleg.ContainerRemoved),
		{none, running}:    kinds(pleg.ContainerStarted),
		{none, exited}:     kinds(pleg.ContainerDied),
		{none, unknown}:    kinds(pleg.ContainerChanged),
		{none, none}:       nil,
	}
	if len(table) != 16 {
		t.Fatalf("the table has %d steps, want all 16", len(table))
	}
	for step, want := range table {
		t.Run(fmt.Sprintf("%v to %v", step[0], step[1]), func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(want, pleg.Diff(step[0], step[1])); diff != "" {
				t.Errorf("Diff (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStatesAndKindsHaveNamesWhateverTheirNumber(t *testing.T) {
	t.Parallel()
	for i := range 256 {
		if s := pleg.State(i).String(); s == "" || i > int(exited) && s != "undefined" {
			t.Errorf("State(%d) is %q", i, s)
		}
		if k := pleg.Kind(i).String(); k == "" || (i == 0 || i > int(pleg.PodSync)) != (k == "undefined") {
			t.Errorf("Kind(%d) is %q", i, k)
		}
	}
}
