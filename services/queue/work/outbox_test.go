package work

import (
	"slices"
	"testing"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestAssignmentsFitIntoAMessage(t *testing.T) {
	t.Parallel()
	small := &queuev1.Lease{Key: "k"}
	big := &queuev1.Lease{Key: "k", State: make([]byte, 4096)}
	huge := &queuev1.Lease{Expectations: &queuev1.Expectations{Creations: slices.Repeat([]string{string(make([]byte, 253))}, 1000), Deletions: slices.Repeat([]string{string(make([]byte, 253))}, 1000)}}
	for name, tc := range map[string]struct {
		lease *queuev1.Lease
		want  int
	}{"small": {small, 500}, "with state": {big, 250}, "with expectations": {huge, 2}} {
		if got := fitting(slices.Repeat([]*queuev1.Lease{tc.lease}, 600)); got != tc.want {
			t.Errorf("%s: %d leases in a message, want %d", name, got, tc.want)
		}
	}
	if got := fitting([]*queuev1.Lease{small}); got != 1 {
		t.Errorf("one lease: %d", got)
	}
}
