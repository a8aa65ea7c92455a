package reflector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

const (
	defaultPage = 500
	// shortWatch is how briefly a watch may last without an event before it counts as a failure.
	shortWatch = time.Second
	// expireEvery is how often the shadow forgets old deletions.
	expireEvery = time.Minute
)

// Ends of a watch that are not errors of the server.
var (
	errVeryShort = errors.New("reflector: very short watch: it closed within a second without an event")
	errRelist    = errors.New("reflector: relist asked for")
	// errUnfinished: R-14.
	errUnfinished = errors.New("reflector: the stream of the initial state ended before it was complete")
)

// source lists and watches on behalf of one reign. It is for one goroutine.
type source struct {
	r      *reflection
	p      *publisher
	shadow *delta.Shadow
	epoch  uint64
	w      delta.RV // everything up to it is staged; empty: a complete list is due
	// reform makes a complete list due although w is known: the log may hold another form. It is why keys are gone that the list does not hold.
	reform delta.DeleteReason
	retry  retry

	unavailable bool // the last list found its version expired or too large
	paged       bool // a list at "0" came back in pages: the server's cache is off
	expired     time.Time
}

// run lists when it must and watches until ctx ends or the epoch must change.
func (s *source) run(ctx context.Context) error {
	relist := s.w == "" || s.reform != ""
	for {
		var err error
		stage := "watch"
		if relist {
			stage = "list"
			s.r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_LISTING)
			if err = s.list(ctx); err == nil {
				relist, stage = false, "watch"
			}
		}
		if err == nil {
			err = s.watch(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNewEpoch):
			return err
		case errors.Is(err, errRelist):
			relist = true
			continue
		case err == nil: // the server closed the watch in good order
			continue
		case stage == "list" && !s.unavailable && (kube.IsExpired(err) || kube.IsTooLargeRV(err)):
			s.unavailable = true // again at once, with the most recent state
			s.r.fail(ctx, stage, err, 0)
			continue
		}
		// nobody there, or too many requests: the watch is opened again without a list.
		if stage == "watch" && !kube.IsConnectionRefused(err) && !kube.IsTooManyRequests(err) {
			relist = true
		}
		wait := s.retry.fail(time.Now(), kube.RetryAfter(err))
		s.r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF)
		s.r.fail(ctx, stage, err, wait)
		if s.pause(ctx, wait) {
			relist = true
		}
	}
}

// pause waits; it returns true, early, when a relist is asked for.
func (s *source) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.r.relist:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// watch opens one watch behind W and follows it to its end.
func (s *source) watch(ctx context.Context) (err error) {
	name := s.r.col.String()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // a relist asked for ends the watch
		defer close(ended)
		select {
		case <-s.r.relist:
			cancel(errRelist)
		case <-stop:
		}
	}()
	defer func() {
		close(stop)
		<-ended
		err = cmp.Or(relistCause(ctx), err) // also one that came while the watch was ending by itself
	}()
	timeout := s.r.cfg.MinWatchTimeout + rand.N(s.r.cfg.MinWatchTimeout)
	w, err := s.r.kube.Watch(ctx, s.r.resource, kube.WatchOptions{Scope: s.r.want.Scope, RV: s.w, Timeout: timeout})
	if err != nil {
		return cmp.Or(relistCause(ctx), fmt.Errorf("watch %s at %q: %w", s.r.col, s.w, err))
	}
	defer w.Close()
	s.r.metrics.watches.WithLabelValues(name).Inc()
	s.r.state.set(func(v *view) { v.watches++ })
	s.r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING)
	s.p.watching(true)
	defer s.p.watching(false)
	began, events := time.Now(), 0
	defer func() {
		s.r.metrics.watchSeconds.WithLabelValues(name).Observe(time.Since(began).Seconds())
		s.r.metrics.itemsPerWatch.WithLabelValues(name).Observe(float64(events))
	}()
	for {
		ev, err := w.Next()
		now := time.Now()
		switch {
		case err == nil:
			events++
			s.event(ev, now)
			s.well(now)
		case ctx.Err() != nil:
			return cmp.Or(relistCause(ctx), ctx.Err())
		case errors.Is(err, kube.ErrBadEvent):
			events++
			s.poisoned(err, now)
		case errors.Is(err, io.EOF):
			if events == 0 && time.Since(began) < shortWatch {
				s.r.metrics.shortWatches.WithLabelValues(name).Inc()
				s.r.state.set(func(v *view) { v.shortWatches++ })
				return errVeryShort
			}
			return nil
		case isStatus(err):
			return fmt.Errorf("watch %s at %q: %w", s.r.col, s.w, err)
		default: // the connection broke: like a close, but told
			s.r.fail(ctx, "watch", err, 0)
			if events == 0 && time.Since(began) < shortWatch {
				return err
			}
			return nil
		}
	}
}

// well notes that the source is well, which ends an error's stay in ListReflections.
func (s *source) well(now time.Time) {
	s.retry.succeed(now)
	if s.r.state.failing() {
		s.r.state.well()
	}
	if now.Sub(s.expired) > expireEvery {
		s.expired = now
		s.shadow.Expire(now)
	}
}

// event stages one event. W moves with every event whose version can be read, also when there is nothing to publish.
func (s *source) event(ev kube.Event, now time.Time) {
	var rec delta.Record
	var publish bool
	var rv delta.RV
	switch ev.Type {
	case kube.EventAdded, kube.EventModified, kube.EventDeleted:
		o, err := s.normalize(ev.Object, now)
		rv = o.RV
		switch {
		case err != nil && ev.Type == kube.EventDeleted && o.Key != "" && o.RV != "":
			// The last state is not readable, the deletion is.
			o.Payload, o.Hash, o.Encoding = nil, 0, ""
			rec, publish = s.shadow.Delete(delta.Observed, &o, s.epoch, now)
			s.r.state.heal(o.Key)
		case err != nil:
			rec, publish = s.poison(o, err, now)
		case ev.Type == kube.EventDeleted:
			rec, publish = s.shadow.Delete(delta.Observed, &o, s.epoch, now)
		case ev.Type == kube.EventAdded:
			rec, publish = s.shadow.Upsert(delta.Added, &o, s.epoch, now)
		default:
			rec, publish = s.shadow.Upsert(delta.Updated, &o, s.epoch, now)
		}
	default: // a bookmark, or a type from the future, moves only the version
		var err error
		if rv, err = kube.EventRV(ev.Object); err != nil {
			s.poisoned(err, now)
		}
	}
	s.p.add(func(st *delta.Stage) {
		if publish && !st.Offer(rec) {
			s.shadow.Doubt(rec.Key) // the list that the publisher asks for tells it
		}
		if rv != "" {
			st.Advance(rv)
		}
	})
	s.w = delta.MaxRV(s.w, rv)
	s.r.state.set(func(v *view) { v.objects, v.sourceAt = s.shadow.Len(), now })
}

// poisoned quarantines an event of which not even the key is known.
func (s *source) poisoned(why error, now time.Time) {
	s.poison(delta.Object{}, why, now)
}

func isStatus(err error) bool {
	_, ok := errors.AsType[*kube.StatusError](err)
	return ok
}

func relistCause(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errRelist) {
		return errRelist
	}
	return nil
}
