package memory_test

import (
	"errors"
	"os"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

func TestADeletedQueueLeavesNoFileAndStaysAwayAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *memory.Engine {
		e, err := memory.New(memory.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := open()
	for _, name := range []string{"dev/gone", "dev/kept"} {
		q, _, err := e.Configure(t.Context(), name, workqueue.Config{Partitions: 2})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.Partitions()[0].Apply(t.Context(), &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Delete(t.Context(), "dev/gone", false); err != nil {
		t.Fatal(err)
	}
	logs := func() (n int) {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if f.Name() != ".lock" && f.Name() != "lock" {
				n++
			}
		}
		return n
	}
	if n := logs(); n != 1 {
		t.Errorf("%d files, want that of the other queue", n)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open()
	defer e.Close()
	if _, err := e.Open(t.Context(), "dev/gone"); !errors.Is(err, engine.ErrNoQueue) {
		t.Errorf("after a restart Open = %v, want ErrNoQueue", err)
	}
	if _, err := e.Open(t.Context(), "dev/kept"); err != nil {
		t.Error(err)
	}
}
