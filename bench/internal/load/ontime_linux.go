package load

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// OnTime calls f n times, each as soon as its time has come, whether or not the
// calls before were answered. It sleeps in the kernel: the runtime's timers are
// up to a millisecond late on an idle machine, which would count as latency.
func OnTime(ctx context.Context, n int, at func(int) time.Time, f func(int) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // best effort: 50 us otherwise
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }()
	for i := range n {
		for wait := time.Until(at(i)); wait > 0; wait = time.Until(at(i)) {
			spec := unix.NsecToTimespec(wait.Nanoseconds())
			_ = unix.Nanosleep(&spec, nil) // a signal only makes it short
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(i); err != nil {
			return err
		}
	}
	return nil
}
