package testing_test

import (
	"errors"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

func TestAReadIsNeverOlderThanTheLeastItAsksFor(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Resources: mirrored, Lag: time.Hour, Rates: only(func(r *dptest.Rates) { r.StaleReads = 1 })})
	index := client.NewIndex(env.Index())
	at, err := index.WaitFor(t.Context(), client.Barrier{"dev/configmaps.v1": {}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	written, err := apiOf(t, env).write(t.Context(), configMap("c", "red"))
	if err != nil {
		t.Fatal(err)
	}
	least := client.ReadOptions{AtLeast: client.Revision{Epoch: at["dev/configmaps.v1"].Epoch, RV: written.Metadata.ResourceVersion}, Timeout: 300 * time.Millisecond}
	for range 3 {
		if _, _, err := index.Get(t.Context(), "configmaps", "default/c", client.ReadOptions{}); !errors.Is(err, client.ErrKeyNotFound) {
			t.Errorf("a stale read of what was just written: %v, want that it is not there", err)
		}
		if _, _, err := index.Get(t.Context(), "configmaps", "default/c", least); err != nil && !errors.Is(err, client.ErrRevisionNotReached) {
			t.Errorf("a read at the write's revision: %v", err)
		}
	}
	env.Calm()
	if _, _, err := index.Get(t.Context(), "configmaps", "default/c", client.ReadOptions{AtLeast: least.AtLeast, Timeout: 30 * time.Second}); err != nil {
		t.Errorf("after Calm: %v", err)
	}
	if err := env.Settled(within(t)); err != nil {
		t.Errorf("after Calm: %v", err)
	}
}

func TestAFailedReadSaysWhatAReplicaMaySay(t *testing.T) {
	t.Parallel()
	env := dptest.Start(t, dptest.Config{Seed: 1, Rates: only(func(r *dptest.Rates) { r.FailedReads = 1 })})
	index := client.NewIndex(env.Index())
	if _, _, err := index.Get(t.Context(), "pods", "default/a", client.ReadOptions{AtLeast: client.Revision{Epoch: 1, RV: "1"}}); !errors.Is(err, client.ErrRevisionNotReached) {
		t.Errorf("a read at a least revision: %v", err)
	}
	_, _, err := index.Get(t.Context(), "pods", "default/a", client.ReadOptions{})
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Reason != "STOPPING" {
		t.Errorf("a read: %v, want that the replica is stopping", err)
	}
}
