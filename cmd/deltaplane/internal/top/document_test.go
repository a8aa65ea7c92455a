package top

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/meter"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

var start = time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC)

func TestRatesAreOfTheTimeBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	m := meter.Set{}
	look := func(after time.Duration, published, sequence, lag int64, epoch uint64) *Document {
		return document(m, &sample{
			at:          start.Add(after),
			reflections: &reflectorv1.ListReflectionsResponse{Reflections: []*reflectorv1.Reflection{{Collection: "dev/pods.v1", Published: published}}},
			collections: &indexv1.ListCollectionsResponse{Collections: []*indexv1.CollectionStatus{{
				Collection: "dev/pods.v1", Position: &deltav1.Position{Epoch: epoch, Sequence: uint64(sequence)}, LagRecords: lag,
			}}},
		})
	}
	if d := look(0, 100, 1000, 5, 1); d.Reflections[0].Changes != nil || d.Collections[0].Log != nil || d.Collections[0].Applied != nil {
		t.Errorf("the first look tells rates: %+v %+v", d.Reflections[0], d.Collections[0])
	}
	if d := look(2*time.Second, 160, 1010, 55, 1); number(d.Reflections[0].Changes) != 30 || number(d.Collections[0].Log) != 30 || number(d.Collections[0].Applied) != 5 {
		t.Errorf("60 changes and log records and 10 applied in 2 s: %+v %+v", d.Reflections[0], d.Collections[0])
	}
	if d := look(3*time.Second, 3, 7, 0, 2); d.Reflections[0].Changes != nil || d.Collections[0].Log != nil {
		t.Errorf("a process and an epoch that began again tell rates: %+v %+v", d.Reflections[0], d.Collections[0])
	}
	if d := look(4*time.Second, 4, 9, 0, 2); number(d.Reflections[0].Changes) != 1 || number(d.Collections[0].Log) != 2 {
		t.Errorf("the look after that: %+v %+v", d.Reflections[0], d.Collections[0])
	}
}

func TestWhatSeveralQueueServersDidAddsUp(t *testing.T) {
	t.Parallel()
	m := meter.Set{}
	look := func(after time.Duration, server int64, adds, leases, settles int64, waited, worked time.Duration) Queue {
		return document(m, &sample{at: start.Add(after), queues: &queuev1.ListQueuesResponse{Queues: []*queuev1.QueueStatus{{
			Config: &queuev1.QueueConfig{Name: "dev/job"}, Activity: &queuev1.QueueActivity{
				Since: timestamppb.New(start.Add(-time.Duration(server) * time.Hour)), Adds: adds, Leases: leases, Settlements: settles,
				Waited: durationpb.New(waited), Worked: durationpb.New(worked),
			},
		}}}}).Queues[0]
	}
	if q := look(0, 1, 10, 10, 10, time.Minute, time.Minute); q.Adds != nil || q.Wait != nil {
		t.Errorf("the first look tells rates: %+v", q)
	}
	look(time.Second, 2, 0, 0, 0, 0, 0)
	if q := look(2*time.Second, 1, 30, 20, 14, time.Minute+10*time.Second, time.Minute+2*time.Second); number(q.Adds) != 10 || number(q.Settles) != 2 || number(q.Wait) != 1 || number(q.Work) != 0.5 {
		t.Errorf("one server: adds %v settles %v wait %v work %v", number(q.Adds), number(q.Settles), number(q.Wait), number(q.Work))
	}
	if q := look(3*time.Second, 2, 4, 0, 0, 0, 0); number(q.Adds) != 12 {
		t.Errorf("two servers add 10 and 2 a second, together %v", number(q.Adds))
	}
	if q := look(20*time.Second, 2, 4, 0, 0, 0, 0); number(q.Adds) != 0 || q.Wait != nil {
		t.Errorf("a server that does not answer any more still adds: %+v", q)
	}
}
