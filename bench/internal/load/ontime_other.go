//go:build !linux

package load

import (
	"context"
	"time"
)

// OnTime calls f n times, each at its time, whether or not earlier calls have returned.
func OnTime(ctx context.Context, n int, at func(int) time.Time, f func(int) error) error {
	for i := range n {
		select {
		case <-time.After(time.Until(at(i))):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := f(i); err != nil {
			return err
		}
	}
	return nil
}
