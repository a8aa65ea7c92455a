package redis_test

import (
	"slices"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestADeletionThatComesLateLeavesWhatWasMadeSince(t *testing.T) {
	t.Parallel()
	const name, parts = "test/late", 3
	for store, url := range map[string]string{"one server": start(t).URL(), "cluster": embeddedtest.Cluster(t, 3).URL()} {
		t.Run(store, func(t *testing.T) {
			a, _ := open(t, url)
			b, _ := open(t, url)
			old, _, err := a.Configure(t.Context(), name, workqueue.Config{Partitions: parts})
			if err != nil {
				t.Fatal(err)
			}
			for part := range parts {
				if err := useOf(t, old, part); err != nil {
					t.Fatal(err)
				}
			}
			rest := redis.DeleteFirst(t, a, name, parts)
			again, created, err := b.Configure(t.Context(), name, workqueue.Config{Partitions: parts})
			if err != nil || !created {
				t.Fatalf("created %t, %v", created, err)
			}
			for part, p := range again.Partitions() {
				if st, err := p.Status(t.Context()); err != nil || st.Counts != (workqueue.Counts{}) {
					t.Errorf("partition %d of the new queue holds %+v, %v", part, st.Counts, err)
				}
				if _, err := p.Apply(t.Context(), &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "a"}}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := rest(); err != nil {
				t.Fatal(err)
			}
			for part, p := range again.Partitions() {
				if st, err := p.Status(t.Context()); err != nil || st.Counts.Ready != 1 {
					t.Errorf("partition %d lost its key: %+v, %v", part, st.Counts, err)
				}
			}
			if names, err := a.Names(t.Context()); err != nil || !slices.Contains(names, name) {
				t.Errorf("queues %v, %v", names, err)
			}
		})
	}
}
