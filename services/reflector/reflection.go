package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// What ends a reign.
var (
	errNewEpoch  = errors.New("reflector: the source's history went back")
	errLeaseLost = errors.New("reflector: lease lost")
)

// reflection is the loop of one collection.
type reflection struct {
	cfg     Config
	want    Resource
	log     *stream.Conn
	kube    *kube.Client
	slog    *slog.Logger
	tracer  trace.Tracer
	metrics *metrics

	col      delta.Collection
	resource kube.Resource
	state    state
	relist   chan struct{} // cap 1; a relist was asked for

	// newEpoch asks the next reign to begin a new epoch. It belongs to run.
	newEpoch bool
}

// leading reports whether this process leads the collection.
func (r *reflection) leading() bool { return r.state.get().term != 0 }

func (r *reflection) phase(p reflectorv1.ReflectionState) { r.state.set(func(v *view) { v.phase = p }) }

// fail reports one failure: log, metric, state.
func (r *reflection) fail(ctx context.Context, stage string, err error, wait time.Duration) {
	r.metrics.failed.WithLabelValues(r.state.get().name, stage).Inc()
	reason := reasonOf(stage, err)
	r.state.fail(reason, err, time.Now(), wait)
	r.slog.LogAttrs(ctx, slog.LevelWarn, "reflection failed", slog.String(telemetry.KeyCheck, stage), slog.String(telemetry.KeyReason, reason),
		telemetry.Err(err), slog.Duration(telemetry.KeyAfter, wait))
}

// run leads, or waits to lead, until ctx ends.
func (r *reflection) run(ctx context.Context) {
	defer r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_STOPPED)
	b := retry{Backoff: r.cfg.Backoff}
	for {
		began := time.Now()
		err := r.reign(ctx)
		r.state.set(func(v *view) { v.term, v.pending = 0, 0 })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > b.Cap {
			b.failures = 0
		}
		wait := b.delay(b.failures, 0)
		b.failures++
		switch {
		case errors.Is(err, errNewEpoch), errors.Is(err, stream.ErrLogLost):
			r.newEpoch = true
			if b.failures == 1 {
				wait = 0 // nobody can read the collection meanwhile
			}
		case errors.Is(err, errLeaseLost), errors.Is(err, stream.ErrDeposed):
			wait = 0 // the lease decides when
		}
		r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF)
		r.fail(ctx, stageLead, err, wait)
		if !sleep(ctx, wait, nil) {
			return
		}
	}
}

// reign waits for the lease and leads until something ends it.
func (r *reflection) reign(ctx context.Context) error {
	r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY)
	floor := uint64(0)
	if tail, err := r.log.Tail(ctx, r.col); err == nil {
		floor = max(tail.Term, tail.Fence)
	} else if !errors.Is(err, stream.ErrNoLog) {
		return err
	}
	lease, err := r.log.Lease(ctx, stream.LeaseConfig{Name: r.col.String(), Holder: r.cfg.Holder, TTL: r.cfg.LeaseTTL, Floor: floor})
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = lease.Release(last) // not released in time, it runs out by itself
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g, ctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	g.Go(func() error {
		select {
		case <-lease.Lost():
			return errLeaseLost
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	g.Go(func() error {
		defer close(done)
		return r.lead(ctx, lease)
	})
	return g.Wait()
}

// lead takes the log over and mirrors the source until something ends it.
func (r *reflection) lead(ctx context.Context, lease *stream.Lease) error {
	r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_REBUILDING)
	w, err := r.log.Writer(ctx, r.col, stream.WriterConfig{
		Term: lease.Term, Holder: r.cfg.Holder, Acked: lease.Acked, Epoch: lease.Epoch, NewEpoch: r.newEpoch,
	})
	if err != nil {
		return err
	}
	defer func() {
		lease.Report(w.Epoch(), w.Acked())
		w.Close()
	}()
	r.newEpoch = false
	lease.Report(w.Epoch(), w.Acked())
	shadow, from, err := r.rebuild(ctx)
	if err != nil {
		return err
	}
	if from.Epoch != w.Epoch() {
		from = delta.Revision{Epoch: w.Epoch()}
	}
	r.slog.LogAttrs(ctx, slog.LevelInfo, "leading", slog.Uint64(telemetry.KeyTerm, w.Term()), slog.Uint64(telemetry.KeyEpoch, w.Epoch()),
		slog.String(telemetry.KeyRV, from.RV), slog.Int(telemetry.KeyCount, shadow.Len()))
	r.state.set(func(v *view) {
		v.term, v.revision, v.objects = w.Term(), from, shadow.Len()
		v.reason, v.lastErr, v.lastErrAt, v.nextRetry = "", "", time.Time{}, time.Time{}
	})
	p := newPublisher(r, w, lease, from.RV)
	s := &source{r: r, p: p, shadow: shadow, epoch: w.Epoch(), w: from.RV, retry: retry{Backoff: r.cfg.Backoff}}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.run(ctx) })
	g.Go(func() error { return s.run(ctx) })
	return g.Wait()
}

// rebuild reads the log's headers into a shadow, and finds the revision the log had reached; zero when no complete list of its epoch is in it.
func (r *reflection) rebuild(ctx context.Context) (*delta.Shadow, delta.Revision, error) {
	var shadow *delta.Shadow
	var follower delta.Follower
	stop := errors.New("replayed")
	now := time.Now()
	err := r.log.Read(ctx, r.col, stream.ReadConfig{HeadersOnly: true}, func(_ context.Context, b delta.Batch) error {
		if b.Reset {
			shadow, follower = delta.NewShadow(r.log.TombstoneTTL()), delta.Follower{}
		}
		for i := range b.Records {
			shadow.Restore(&b.Records[i], now)
		}
		r.restoreUnreadable(shadow, b.Unreadable, now)
		follower.Apply(b)
		if b.Replayed {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) {
		if err == nil {
			err = ctx.Err()
		}
		return nil, delta.Revision{}, fmt.Errorf("rebuild the shadow of %s: %w", r.col, err)
	}
	if !follower.Readable() {
		return shadow, delta.Revision{}, nil
	}
	return shadow, follower.Revision(), nil
}

// restoreUnreadable takes records that a later version of this program wrote: their keys are known to be in the log, and nothing else. A relist
// then replaces or buries them.
func (r *reflection) restoreUnreadable(shadow *delta.Shadow, records []delta.Unreadable, now time.Time) {
	for _, u := range records {
		if u.Key == "" {
			continue
		}
		shadow.Restore(&delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: u.Key, Overflow: true}, now)
		select {
		case r.relist <- struct{}{}:
		default: // one is asked for already
		}
	}
}
