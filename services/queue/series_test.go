package queue_test

import (
	"fmt"
	"testing"

	"github.com/deltaplane/deltaplane/internal/telemetry/series"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestQueuesBeyondTheBoundShareTheSeriesOfTheRest(t *testing.T) {
	t.Parallel()
	const beyond = 3
	r := queuetest.Start(t, "memory", queue.Config{})
	name := func(i int) string { return fmt.Sprintf("q%d", i) }
	add := func(queue string) {
		t.Helper()
		r.Make(t, &queuev1.QueueConfig{Name: queue})
		if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queue, Items: []*queuev1.AddItem{{Key: "k"}}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range series.MaxQueues + beyond {
		add(name(i))
	}
	families, err := r.Tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	rest := map[string]float64{}
	for _, f := range families {
		names := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() != "name" {
					continue
				}
				names[l.GetValue()] = true
				if l.GetValue() == series.Rest {
					rest[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
		if len(names) > series.MaxQueues+1 {
			t.Errorf("%s has series of %d names", f.GetName(), len(names))
		}
	}
	if rest["workqueue_depth"] != beyond || rest["workqueue_adds_total"] != beyond {
		t.Errorf("the rest has a depth of %v and %v adds, want %d of each", rest["workqueue_depth"], rest["workqueue_adds_total"], beyond)
	}

	if _, err := r.DeleteQueue(t.Context(), &queuev1.DeleteQueueRequest{Queue: name(series.MaxQueues), Force: true}); err != nil {
		t.Fatal(err)
	}
	if n := queuetest.Series(t, r, series.Rest); n == 0 {
		t.Error("the series of the rest went with one of its queues")
	}
	if _, err := r.DeleteQueue(t.Context(), &queuev1.DeleteQueueRequest{Queue: name(0), Force: true}); err != nil {
		t.Fatal(err)
	}
	add("next")
	if n := queuetest.Series(t, r, "next"); n == 0 {
		t.Error("a queue that is new has no series of its own, although there is room")
	}
}
