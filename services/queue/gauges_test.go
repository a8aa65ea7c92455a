package queue_test

import (
	"testing"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// A replica reports what another one does in one partition, although it had a
// transaction in another partition just now.
func TestAReplicaReportsTheDepthOfPartitionsThatOthersServe(t *testing.T) {
	t.Parallel()
	a, b := queuetest.Two(t)
	a.Config(t, &queuev1.QueueConfig{Partitions: 4})
	keys := queuetest.Jobs(80)
	b.AddKeys(t, keys[0])       // b knows the queue, and looked at every partition
	a.AddKeys(t, keys[1:40]...) // the others are notified that something is ready
	a.AddKeys(t, keys[40:]...)  // and no more
	b.AddKeys(t, keys[0])       // one of its partitions has a transaction
	families, err := b.Tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "workqueue_depth" {
			if got := f.GetMetric()[0].GetGauge().GetValue(); got != 80 {
				t.Errorf("depth %v, want 80", got)
			}
			return
		}
	}
	t.Error("no depth was reported")
}
