package reflector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// What ends a term.
var (
	errNewEpoch  = errors.New("reflector: the source's history went back")
	errReplaced  = fmt.Errorf("%w: the API server is another cluster's than the log", errNewEpoch)
	errLeaseLost = errors.New("reflector: lease lost")
)

// reflection is the loop of one collection.
type reflection struct {
	cfg     Config
	want    Resource
	log     *stream.Conn
	kube    *kube.Client
	slog    *slog.Logger
	tracer  tracer
	metrics *metrics
	faults  *logDeduplicator

	col      delta.Collection
	resource kube.Resource
	names    []string // of the resource, beside its plural
	state    state
	relist   chan struct{} // cap 1; a relist was asked for
	desired  *desired      // for whose sake it is there
	vanished bool          // it is not served any more; guarded by the service's lock

	// begun is told that a list began after the request of that revision.
	begun func(revision uint64)

	// unnamed says that it was logged that the cluster's identity may not be read. It belongs to run.
	unnamed bool
	// invalid is the epoch that must not be written on, every one up to it included; 0 when there is
	// none. It belongs to run.
	invalid uint64
}

// scope is where the keys of the collection live, as discovery said.
func (r *reflection) scope() delta.Scope {
	if r.resource.Namespaced {
		return delta.Namespaced
	}
	return delta.ClusterScoped
}

// label is what metrics call the collection.
func (r *reflection) label() string { return r.metrics.names.Of(r.col.String()) }

// describe adds to a control record what the source says of the collection as a whole.
func (r *reflection) describe(rec delta.Record) delta.Record {
	rec.Scope, rec.Names, rec.Dropped, rec.All = r.scope(), r.names, r.want.dropped(), r.want.all()
	return rec
}

// fail reports one failure: log, metric, state. The log gets a warning when the reason is another
// than before, not for every attempt.
func (r *reflection) fail(ctx context.Context, stage string, err error, wait time.Duration) {
	name := r.state.get().name
	r.metrics.failed.WithLabelValues(r.metrics.names.Of(name), stage).Inc()
	reason := reasonOf(stage, err)
	attempts, before := r.state.fail(reason, err, time.Now(), wait)
	say := func(level slog.Level, attempts int) {
		r.slog.LogAttrs(ctx, level, "reflection failed", slog.String(telemetry.KeyCheck, stage), slog.String(telemetry.KeyReason, reason),
			telemetry.Err(err), slog.Duration(telemetry.KeyAfter, wait), slog.Int(telemetry.KeyAttempt, attempts))
	}
	if attempts > 1 {
		say(slog.LevelDebug, attempts)
		return
	}
	r.faults.warn(name, stage, reason, err.Error(), func() { say(slog.LevelWarn, before+1) })
}

// well reports that what failed does so no more.
func (r *reflection) well(ctx context.Context) {
	if n, reason := r.state.well(); n > 0 {
		r.faults.well(r.state.get().name, reason, func() {
			r.slog.LogAttrs(ctx, slog.LevelInfo, "reflection is well again", slog.String(telemetry.KeyReason, reason), slog.Int(telemetry.KeyAttempt, n))
		})
	}
}

// run leads, or waits to lead, until ctx ends.
func (r *reflection) run(ctx context.Context) {
	defer func() { r.metrics.forget(r.col.String()) }() // of a collection that is mirrored again, it begins with nothing
	defer r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_STOPPED)
	b := retry{Backoff: r.cfg.Backoff}
	for {
		began, reconnected := time.Now(), r.log.Reconnected()
		err := r.leadOnce(ctx)
		r.state.set(func(v *view) { v.term, v.pending, v.waitingSince = 0, 0, time.Time{} })
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
			if b.failures == 1 {
				wait = 0 // nobody can read the collection meanwhile
			}
		case errors.Is(err, errLeaseLost), errors.Is(err, stream.ErrDeposed):
			wait = 0 // the lease decides when
		}
		r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF)
		r.fail(ctx, stageLead, err, wait)
		if !attempt.SleepUntil(ctx, wait, reconnected) { // a log that is back is not waited for any longer
			return
		}
	}
}

// leadOnce follows the log until the lease is ours, and leads until something ends it.
func (r *reflection) leadOnce(ctx context.Context) error {
	r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY)
	floor := uint64(0)
	if tail, err := r.log.Tail(ctx, r.col); err == nil {
		floor = max(tail.Term, tail.Fence)
		if err := tail.Readable(); err != nil {
			return fmt.Errorf("%w: %w", errNewerLog, err)
		}
	} else if !errors.Is(err, stream.ErrNoLog) {
		return err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	s := r.follow(following)
	defer s.end()
	contest, endContest := s.contest(ctx)
	defer endContest(nil)
	lease, err := r.log.Lease(contest, stream.LeaseConfig{
		Name: r.col.String(), Holder: r.cfg.Holder, Form: r.want.fingerprint(), TTL: r.cfg.LeaseTTL, PingTimeout: r.cfg.LeasePingTimeout,
		Floor:  func() uint64 { return max(floor, s.term()) },
		Delay:  func(held stream.Claim) time.Duration { return r.claimDelay(held, s.warm()) },
		Failed: func(err error, wait time.Duration) { r.fail(ctx, stageLead, err, wait) },
		Seen:   func(held stream.Claim) { r.leader(ctx, held) },
	})
	if err != nil {
		return cmp.Or(context.Cause(contest), err)
	}
	r.state.set(func(v *view) { v.leader, v.led = r.cfg.Holder, lease.Term })
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = lease.Release(last) // not released in time, it runs out by itself
		r.state.set(func(v *view) { v.leader = "" })
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
		return r.lead(ctx, lease, s)
	})
	return g.Wait()
}

// leader takes note of who holds the lease. Who would mirror the collection in another form says
// so, and waits.
func (r *reflection) leader(ctx context.Context, held stream.Claim) {
	var differs error
	if mine := r.want.fingerprint(); held.Holder != "" && held.Form != "" && held.Form != mine {
		theirs, ours := apart(held.Form, mine)
		differs = fmt.Errorf("%w: %s leads with %s, this process has %s", errDifferentSpec, held.Holder, theirs, ours)
	}
	said := r.state.get()
	r.state.set(func(v *view) {
		v.leader, v.led = held.Holder, held.Term
		if differs != nil && v.lastErr == differs.Error() {
			v.nextRetry = time.Now().Add(r.cfg.LeaseTTL)
		}
	})
	switch {
	case differs != nil && said.lastErr != differs.Error():
		r.fail(ctx, stageLead, differs, r.cfg.LeaseTTL) // then the lease can be taken, unless it was renewed
	case differs == nil && held.Holder != "" && said.lastErr != "":
		r.well(ctx) // whatever ended our term, the collection has a leader
	}
}

// claimDelay is how long a lease that is free is left to others: to those that have followed the
// log to its end, and before that to those that mirror the collection as it is.
func (r *reflection) claimDelay(held stream.Claim, warm bool) time.Duration {
	switch {
	case held.Form != "" && held.Form != r.want.fingerprint():
		return min(r.cfg.LeaseTTL/4, time.Second)
	case !warm:
		return min(r.cfg.LeaseTTL/10, 500*time.Millisecond)
	}
	return 0
}

// lead takes the log over and mirrors the source until something ends it.
func (r *reflection) lead(ctx context.Context, lease *stream.Lease, standby *standby) error {
	r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_REBUILDING)
	began := time.Now()
	w, err := r.log.Writer(ctx, r.col, stream.WriterConfig{
		Term: lease.Term, Holder: r.cfg.Holder, Acked: lease.Acked, Epoch: lease.Epoch, InvalidEpoch: r.invalid, Source: r.identity(ctx, began),
	})
	if err != nil {
		if errors.Is(err, stream.ErrLogLost) {
			r.invalid = math.MaxUint64 // which one it was is not known
		}
		return err
	}
	defer func() {
		lease.Report(w.Epoch(), w.Acked())
		w.Close()
	}()
	r.invalid = 0
	lease.Report(w.Epoch(), w.Acked())
	l, err := standby.take(ctx, w)
	if err != nil {
		return fmt.Errorf("rebuild the shadow of %s: %w", r.col, err)
	}
	if l.unread || l.misfit || lease.Due {
		r.retryNow()
	}
	from, reform, err := r.resume(ctx, w, lease, l)
	if err != nil {
		return err
	}
	r.slog.LogAttrs(ctx, slog.LevelInfo, "leading", slog.Uint64(telemetry.KeyTerm, w.Term()), slog.Uint64(telemetry.KeyEpoch, w.Epoch()),
		slog.String(telemetry.KeyRV, from.RV), slog.Int(telemetry.KeyCount, l.shadow.Len()), slog.Duration(telemetry.KeyDuration, time.Since(began)))
	r.state.set(func(v *view) {
		v.term, v.revision, v.shadow, v.objects, v.tombstones = w.Term(), from, from, l.shadow.Len(), l.shadow.Tombstones()
	})
	r.well(ctx)
	p := newPublisher(r, w, lease, from.RV, &l)
	s := newSource(r, p, l.shadow, w.Epoch(), from.RV, reform)
	s.of, s.ended = w.Source(), began
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.run(ctx) })
	g.Go(func() error { return s.run(ctx) })
	err = g.Wait()
	if errors.Is(err, errNewEpoch) || errors.Is(err, stream.ErrLogLost) {
		r.invalid = w.Epoch()
	}
	if errors.Is(err, errNewEpoch) && !errors.Is(err, errReplaced) { // whose log it is, the log says itself
		r.renounce(outer, w)
	}
	return err
}

// renounce ends the epoch in the log itself, where the next leader finds it, in another process
// too. Where the log does not take it, this process remembers, and others find out as this one did.
func (r *reflection) renounce(ctx context.Context, w *stream.Writer) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.LeaseTTL)
	defer cancel()
	if err := w.NewEpoch(ctx); err != nil {
		r.slog.LogAttrs(ctx, slog.LevelWarn, "the end of the epoch cannot be written", slog.Uint64(telemetry.KeyEpoch, r.invalid), telemetry.Err(err))
	}
}

// resume says from where to go on, and why keys are gone that the first list does not hold: empty
// when no list is needed. Objects that left the form and come back are older than their tombstones;
// only a new epoch lets readers take them. So it is with records that are missing: what was deleted
// meanwhile is in no shadow, and only a new epoch makes readers drop it.
func (r *reflection) resume(ctx context.Context, w *stream.Writer, lease *stream.Lease, l handoverState) (delta.Revision, delta.DeleteReason, error) {
	from := l.at
	if (l.missing != 0 || l.differs) && !w.Fresh() {
		r.slog.LogAttrs(ctx, slog.LevelWarn, "records are missing from the log: a new epoch begins", slog.Uint64(telemetry.KeyEpoch, w.Epoch()),
			slog.Int(telemetry.KeyCount, l.missing))
		if err := w.NewEpoch(ctx); err != nil {
			return from, "", err
		}
		return delta.Revision{Epoch: w.Epoch()}, "", nil
	}
	if from.Epoch != w.Epoch() {
		return delta.Revision{Epoch: w.Epoch()}, "", nil
	}
	switch {
	case lease.Complete:
		return from, "", nil
	case lease.Form == "":
		return from, delta.Inferred, nil
	case l.departures(time.Now(), r.log.TombstoneTTL()):
		if err := w.NewEpoch(ctx); err != nil {
			return from, "", err
		}
		from = delta.Revision{Epoch: w.Epoch()}
	}
	return from, delta.FilteredOut, nil
}
