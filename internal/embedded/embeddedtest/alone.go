package embeddedtest

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// Alone waits until no other test, of this process or another, is alone with the
// file, and keeps others out until t and its cleanups so far have ended. Tests
// that run controllers on one cluster are alone with its kubeconfig: each has a
// queue of its own, and two queues give every Job two holders.
func Alone(t testing.TB, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // and with it the lock
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX) //nolint:gosec // a file descriptor is small
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EINTR) {
			t.Fatalf("lock %s: %v", file, err)
		}
	}
}
