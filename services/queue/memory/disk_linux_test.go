package memory

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// small is a file system of so many bytes.
func small(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+strconv.Itoa(bytes)); err != nil {
		t.Skipf("a small file system takes the right to mount one: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestAFullDiskIsSaidUntilThereIsSpaceAgainAndLosesNothing(t *testing.T) {
	t.Parallel()
	disk := small(t, 256<<10)
	dir := filepath.Join(disk, "queues")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	e, q := logged(t, dir, Config{})
	for i := range 40 {
		apply(t, q, add("before-"+strconv.Itoa(i)))
	}
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	var refused error
	for i := 0; refused == nil && i < 1000; i++ { // the last page of the log has room
		in := add("while-" + strconv.Itoa(i))
		_, refused = q.Partitions()[0].Apply(t.Context(), &in)
	}
	for range 3 {
		if err := e.Check(t.Context()); !errors.Is(err, engine.ErrNoSpace) || !errors.Is(err, engine.ErrUnavailable) {
			t.Fatalf("Check() = %v, want ErrNoSpace", err)
		}
	}
	if !errors.Is(refused, engine.ErrNoSpace) || !errors.Is(refused, engine.ErrUnavailable) {
		t.Errorf("Apply() = %v, want ErrNoSpace", refused)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := e.Check(t.Context()); err != nil {
		t.Errorf("Check() with space again = %v", err)
	}
	apply(t, q, add("after"))
	_, restored := logged(t, dir, Config{})
	held := apply(t, q, workqueue.Transaction{})
	if found := apply(t, restored, workqueue.Transaction{}); found.Counts.Ready != held.Counts.Ready || held.Counts.Ready < 41 {
		t.Errorf("%d keys restored of %d", found.Counts.Ready, held.Counts.Ready)
	}
}
