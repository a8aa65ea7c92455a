package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// Run listens on the configured address and answers calls until ctx ends, as
// [Server.Serve] does. Beside it run the parts that calls need: their context
// ends only when the calls have. The first error, of a part or the server, ends
// them all and is returned. It may be called once.
func (s *Server) Run(ctx context.Context, parts ...func(context.Context) error) error {
	lis, err := Listen(s.cfg)
	if err != nil {
		s.grpc.Stop()
		return err
	}
	s.addr = lis.Addr()
	close(s.listening)
	s.log.Info("listening", slog.String("address", s.addr.String()))
	needed, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	g, needed := errgroup.WithContext(needed)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(needed, cancel)()
	for _, part := range parts {
		g.Go(func() error { return part(needed) })
	}
	g.Go(func() error { defer done(); return s.Serve(ctx, lis) })
	return g.Wait()
}

// Addr is where Run listens; it waits until it does.
func (s *Server) Addr(ctx context.Context) (string, error) {
	select {
	case <-s.listening:
		return s.addr.String(), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// Stopping is closed when the server stops and waits for its calls: those that
// last, and streams, should end now and tell their clients to go elsewhere.
func (s *Server) Stopping() <-chan struct{} { return s.stopping }

// Ready is a readiness check: an error once the server drains or has stopped.
func (s *Server) Ready(context.Context) error {
	if s.draining.Load() {
		return errors.New("stopping")
	}
	return nil
}

// Serve answers calls on lis, which it closes, until ctx ends. Then, in order:
// health turns NOT_SERVING; for DrainGrace calls are answered as before; new
// calls are refused and Stopping is closed; calls in hand get StopTimeout to
// finish before they are cut off. It returns nil after such a stop, and the
// error otherwise. It may be called once.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx)) // as long as there are calls
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	if r, ok := s.guard.auth.(Revoker); ok {
		watch.Go(func() { r.Watch(watching, s.guard.revise) })
	}
	done := make(chan error, 1)
	go func() { done <- s.grpc.Serve(s.gate.seats.listen(lis)) }()
	select {
	case err := <-done:
		s.health.Shutdown()
		close(s.stopping)
		s.grpc.Stop()
		return fmt.Errorf("rpc: serve %s: %w", lis.Addr(), err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	s.health.Shutdown()
	select {
	case <-time.After(s.cfg.DrainGrace):
	case err := <-done:
		close(s.stopping)
		s.grpc.Stop()
		return fmt.Errorf("rpc: serve %s: %w", lis.Addr(), err)
	}
	s.stop()
	if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("rpc: serve %s: %w", lis.Addr(), err)
	}
	return nil
}

func (s *Server) stop() {
	graceful := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(graceful)
	}()
	close(s.stopping)
	timer := time.NewTimer(s.cfg.StopTimeout)
	defer timer.Stop()
	select {
	case <-graceful:
	case <-timer.C:
		s.log.Warn("calls cut off", slog.Duration("after", s.cfg.StopTimeout))
		s.grpc.Stop()
		<-graceful
	}
}
