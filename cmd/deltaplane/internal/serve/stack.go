package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
)

// stack runs parts that depend on one another: later ones on earlier ones. They stop in reverse
// order, each only after those that need it have ended.
type stack struct {
	parts []*part
	ended chan *part
}

type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func newStack() *stack { return &stack{ended: make(chan *part)} }

// start runs a part until the stack is closed. run blocks and returns nil on a clean stop.
func (s *stack) start(ctx context.Context, name string, run func(context.Context) error) {
	// A part must outlive the signal that ends the whole: close cancels it when its turn has come.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{name: name, cancel: cancel, done: make(chan struct{})}
	s.parts = append(s.parts, p)
	go func() {
		// What a part was doing when it was instructed to stop is no fault of its own.
		if err := run(ctx); err != nil && (ctx.Err() == nil || !cli.Cancelled(err)) {
			p.err = fmt.Errorf("%s: %w", name, err)
		}
		close(p.done)
		select {
		case s.ended <- p:
		case <-ctx.Done():
		}
	}()
}

// wait blocks until ctx ends, or until a part ends by itself, which is an error that close does not
// repeat.
func (s *stack) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case p := <-s.ended:
		return p.fault()
	}
}

// fault is why a part ended by itself. It is reported once.
func (p *part) fault() error {
	err := p.err
	p.err = nil
	if err == nil {
		err = fmt.Errorf("%s ended by itself", p.name)
	}
	return err
}

// close stops every part and returns their errors together.
func (s *stack) close() error {
	var errs []error
	for _, p := range slices.Backward(s.parts) {
		p.cancel()
		<-p.done
		errs = append(errs, p.err)
	}
	s.parts = nil
	return errors.Join(errs...)
}
