//go:build unix

package dirlock_test

import (
	"errors"
	"testing"

	"github.com/deltaplane/deltaplane/internal/dirlock"
)

func TestADirectoryIsHeldOnceUntilItIsGivenBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := dirlock.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dirlock.Lock(dir); !errors.Is(err, dirlock.ErrTaken) {
		t.Errorf("a second Lock gives %v, want ErrTaken", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := dirlock.Lock(dir)
	if err != nil {
		t.Fatalf("after the first was closed: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestADirectoryThatDoesNotExistIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := dirlock.Lock(t.TempDir() + "/none"); err == nil || errors.Is(err, dirlock.ErrTaken) {
		t.Errorf("got %v, want the system's error", err)
	}
}
