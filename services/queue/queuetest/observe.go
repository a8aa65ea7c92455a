package queuetest

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// NotFound requires the error of a queue that does not exist.
func NotFound(t *testing.T, what string, err error) {
	t.Helper()
	if rpc.Code(err) != codes.NotFound || rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("%s: %v, want QUEUE_NOT_FOUND", what, err)
	}
}

// Series is how many series of metrics a queue has.
func Series(t *testing.T, r *Rig, name string) (n int) {
	t.Helper()
	families, err := r.Tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "name" && l.GetValue() == name {
					n++
				}
			}
		}
	}
	return n
}

// Tell is a history in words, newest first.
func Tell(events []*queuev1.HistoryEvent) string {
	var out []string
	for _, e := range events {
		s := []string{strings.ToLower(strings.TrimPrefix(e.GetKind().String(), "EVENT_KIND_"))}
		for _, more := range []string{e.GetSessionId(), strings.ToLower(strings.TrimPrefix(e.GetOutcome().String(), "OUTCOME_")), e.GetReason(), e.GetTraceparent()} {
			if more != "" && more != "unspecified" {
				s = append(s, more)
			}
		}
		if e.GetRepeats() > 0 {
			s = append(s, fmt.Sprintf("+%d", e.GetRepeats()))
		}
		out = append(out, strings.Join(s, " "))
	}
	return strings.Join(out, ", ")
}

// Transactions is how many transactions all queues have had.
func (r *Rig) Transactions(t *testing.T) (n uint64) {
	t.Helper()
	families, err := r.Tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "deltaplane_queue_turn_seconds" {
			for _, m := range f.GetMetric() {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}

// Refuses are the reasons for which the metric says that adds are refused.
func (r *Rig) Refuses(t *testing.T) []string {
	t.Helper()
	return refusing(t, r.Tel)
}

func refusing(t *testing.T, tel *telemetry.Telemetry) (reasons []string) {
	t.Helper()
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "deltaplane_queue_store_refuses_adds" && m.GetGauge().GetValue() == 1 {
				reasons = append(reasons, m.GetLabel()[0].GetValue())
			}
		}
	}
	return reasons
}
