package harness

import (
	"context"
	"fmt"
	"time"
)

// InBackground runs a service until stop is called, which returns what it returned.
func InBackground(ctx context.Context, run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() error { cancel(); return <-ended }
}

// Await asks until it is answered with yes.
func Await(ctx context.Context, most time.Duration, otherwise string, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		if yes, err := ask(); err != nil || yes {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", otherwise, ctx.Err())
		case <-tick.C:
		}
	}
}

// Sleep returns after d, or with the error of ctx once that ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
