package reflector

import (
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
	// errNameless says why a key is unresolved.
	errNameless = errors.New("reflector: the list cannot tell whether the object is gone")
	errRelist   = errors.New("reflector: relist asked for")
	// errUnfinished moves nothing: the stream is requested again.
	errUnfinished = errors.New("reflector: the stream of the initial state ended before it was complete")
)

// The stages of the source, as metrics and logs call them.
const (
	stageList  = "list"
	stageWatch = "watch"
)

// source lists and watches on behalf of one term. It is for one goroutine.
type source struct {
	r      *reflection
	p      *publisher
	shadow *delta.Shadow
	epoch  uint64
	of     string    // the cluster that the log is of; empty when it is not known
	ended  time.Time // when the last round ended: which cluster answers was to be known before it
	w      delta.RV  // everything up to it is staged; empty: a complete list is due
	// reform makes a complete list due although w is known: the log may hold another form. It is why
	// keys are gone that the list does not hold.
	reform delta.DeleteReason
	retry  retry
	lost   lost
	asks   *deletionResolver
	chosen chosen // the namespaces that are taken in, where there are several

	nameless    int  // objects without a name in the list under way
	left        int  // objects of the list under way that are of other namespaces
	unavailable bool // the last list found its version expired or too large
	paged       bool // a list at "0" came back in pages: the server's cache is off
	slow        bool // a list ran out of time
	endless     bool // a streaming start did not say where it ends
	unfinished  int  // streaming starts in a row that ended too early
	expired     time.Time
}

func newSource(r *reflection, p *publisher, shadow *delta.Shadow, epoch uint64, w delta.RV, reform delta.DeleteReason) *source {
	return &source{
		r: r, p: p, shadow: shadow, epoch: epoch, w: w, reform: reform, retry: retry{Backoff: r.cfg.Backoff}, lost: newLost(r.cfg.Backoff),
		chosen: choose(r.want.Namespaces),
	}
}

// run lists when it must and watches until ctx ends or the epoch must change.
func (s *source) run(ctx context.Context) error {
	s.asks = newDeletionResolver(ctx, s.r, s.p, s.w)
	defer s.asks.close()
	relist := s.w == "" || s.reform != ""
	for {
		stage, err := s.round(ctx, relist)
		s.ended = time.Now()
		relist = relist && stage == stageList
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNewEpoch):
			return err
		case errors.Is(err, errRelist), errors.Is(err, errAhead):
			relist = true
			continue
		case err == nil: // the server closed the watch in good order
			continue
		case stage == stageList && !s.unavailable && (kube.IsExpired(err) || kube.IsTooLargeRV(err)):
			s.unavailable = true // again at once, with the most recent state
			s.r.fail(ctx, stage, err, 0)
			continue
		}
		// Nobody there, or too many requests: the watch is opened again without a list.
		if stage == stageWatch && !kube.IsConnectionRefused(err) && !kube.IsTooManyRequests(err) {
			relist = true
		}
		if kube.IsForbidden(err) && s.chosen != nil {
			err = fmt.Errorf("%w; several namespaces are read from one list and one watch of the whole cluster", err)
		}
		wait := s.retry.fail(kube.RetryAfter(err))
		s.r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF)
		s.r.fail(ctx, stage, err, wait)
		if s.pause(ctx, wait) {
			relist = true
		}
	}
}

// round reads the whole state, if it is due, and watches. It returns the stage at which it ended;
// from stageWatch on the state was complete.
func (s *source) round(ctx context.Context, relist bool) (string, error) {
	switch is := s.r.identity(ctx, s.ended); {
	case is == "" || is == s.of:
	case s.of == "":
		s.of = is
		s.p.identify(is)
	default:
		return stageList, errReplaced
	}
	if relist {
		s.r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_LISTING)
		s.asks.settled(ctx)
		if s.streaming() {
			complete, err := s.stream(ctx)
			if complete {
				return stageWatch, err
			}
			if !s.lists(ctx, err) {
				return stageList, err
			}
			s.asks.settled(ctx) // the stream may have ended before its last lookup
		}
		if err := s.list(ctx); err != nil {
			s.slow = s.slow || errors.Is(err, context.DeadlineExceeded) || kube.IsTimeout(err) && !kube.IsTooLargeRV(err)
			return stageList, err
		}
	}
	return stageWatch, s.watch(ctx)
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	return s.untilRelist(ctx, cancel, func(ctx context.Context) error {
		w, err := s.open(ctx, kube.WatchOptions{RV: s.w})
		if err != nil {
			return fmt.Errorf("watch %s at %q: %w", s.r.col, s.w, err)
		}
		defer w.Close()
		s.r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING)
		return s.follow(ctx, w, 0)
	})
}

// open opens a watch that lasts a random time.
func (s *source) open(ctx context.Context, opts kube.WatchOptions) (*kube.Watch, error) {
	opts.Scope = s.r.want.Scope
	opts.Timeout = s.r.cfg.MinWatchTimeout + rand.N(s.r.cfg.MinWatchTimeout)
	w, err := s.r.kube.Watch(ctx, s.r.resource, opts)
	if err == nil {
		s.r.metrics.watches.WithLabelValues(s.r.label()).Inc()
		s.r.state.set(func(v *view) { v.watches++ })
	}
	return w, err
}

// follow takes the events of an open watch in, after so many of its initial state, until it ends.
func (s *source) follow(ctx context.Context, w *kube.Watch, events int) error {
	end := "LEFT"
	s.r.state.set(func(v *view) { v.sourceAt, v.sourceRV = time.Now(), s.w })
	s.p.watching(true)
	defer s.p.watching(false)
	began := time.Now()
	s.retry.succeed(began)
	defer func() {
		name := s.r.label()
		s.r.metrics.watchSeconds.WithLabelValues(name).Observe(time.Since(began).Seconds())
		s.r.metrics.itemsPerWatch.WithLabelValues(name).Observe(float64(events))
		s.r.metrics.watchEnds.WithLabelValues(name, end).Inc()
	}()
	for {
		ev, err := w.Next()
		now := time.Now()
		short := events == 0 && now.Sub(began) < shortWatch
		if !short && ctx.Err() == nil { // a watch that ends was well until then, also one that had nothing to say
			s.retry.succeed(now)
		}
		switch {
		case err == nil:
			events++
			s.event(ev, now)
			s.well(ctx, now)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, kube.ErrBadEvent):
			events++
			s.poisoned(err, now)
		case errors.Is(err, io.EOF) && short:
			s.r.metrics.shortWatches.WithLabelValues(s.r.label()).Inc()
			s.r.state.set(func(v *view) { v.shortWatches++ })
			end = reasonOf(stageWatch, errVeryShort)
			return errVeryShort
		case errors.Is(err, io.EOF):
			end = "CLOSED"
			return nil
		case isStatus(err):
			end = reasonOf(stageWatch, err)
			return fmt.Errorf("watch %s at %q: %w", s.r.col, s.w, err)
		default: // the connection broke: like a close, but told
			end = reasonOf(stageWatch, err)
			s.r.fail(ctx, stageWatch, err, 0)
			if short {
				return err
			}
			return nil
		}
	}
}

// well notes that the source is well, which ends an error's stay in ListReflections.
func (s *source) well(ctx context.Context, now time.Time) {
	if s.r.state.failing() {
		s.r.well(ctx)
	}
	if now.Sub(s.expired) > expireEvery {
		s.expired = now
		s.shadow.Expire(now)
	}
}

// event stages one event. W moves with every event whose version can be read, also when there is
// nothing to publish.
func (s *source) event(ev kube.Event, now time.Time) {
	if s.chosen.leaves(ev.Object) {
		s.pass(ev, now)
		return
	}
	var rec delta.Record
	var publish bool
	var rv delta.RV
	switch ev.Type {
	case kube.EventAdded, kube.EventModified, kube.EventDeleted:
		rec, rv, publish = s.change(ev, now)
	default: // a bookmark, or a type from the future, moves only the version
		var err error
		if rv, err = kube.EventRV(ev.Object); err != nil {
			s.poisoned(err, now)
		}
	}
	if !s.asks.event(rec, publish, rv) {
		s.shadow.Doubt(&rec) // the list that the publisher asks for tells it
	}
	s.reached(rv, now)
}

// pass goes over the event of an object in another namespace. One without a version moves nothing,
// and nothing was missed.
func (s *source) pass(ev kube.Event, now time.Time) {
	rv, err := kube.EventRV(ev.Object)
	if err != nil {
		rv = ""
	}
	s.leave(1)
	s.asks.pass(rv)
	s.reached(rv, now)
}

// leave counts what is left out because of its namespace.
func (s *source) leave(n int) {
	if n > 0 {
		s.r.metrics.leftOut.WithLabelValues(s.r.label()).Add(float64(n))
	}
}

// reached notes that an event of a version was heard.
func (s *source) reached(rv delta.RV, now time.Time) {
	s.w = delta.MaxRV(s.w, rv)
	s.r.state.set(func(v *view) {
		v.objects, v.tombstones, v.sourceAt, v.sourceRV = s.shadow.Len(), s.shadow.Tombstones(), now, s.w
	})
}

// change takes an event of an object in; it returns the record to publish, if there is one, and the
// event's version.
func (s *source) change(ev kube.Event, now time.Time) (delta.Record, delta.RV, bool) {
	o, err := s.normalize(ev.Object, now)
	if err != nil && (ev.Type != kube.EventDeleted || o.Key == "" || o.RV == "") {
		rec, publish := s.poison(o, err, now)
		if o.Key == "" || o.RV == "" {
			s.missed(now)
		}
		return rec, o.RV, publish
	}
	if err == nil && !s.chosen.holds(o.Key) {
		s.leave(1)
		return delta.Record{}, o.RV, false
	}
	var rec delta.Record
	var publish bool
	switch ev.Type {
	case kube.EventAdded:
		rec, publish = s.shadow.Upsert(delta.Added, &o, s.epoch, now)
	case kube.EventModified:
		rec, publish = s.shadow.Upsert(delta.Updated, &o, s.epoch, now)
	default:
		if err != nil { // the last state is not readable, the deletion is
			o.Payload, o.Hash, o.Encoding = nil, 0, ""
			s.r.state.heal(o.Key)
		}
		rec, publish = s.shadow.Delete(delta.Observed, &o, s.epoch, now)
	}
	return rec, o.RV, publish
}

// poisoned quarantines an event of which not even the key is known. Something was missed: a list is
// due.
func (s *source) poisoned(why error, now time.Time) {
	s.poison(delta.Object{}, why, now)
	s.missed(now)
}

// missed makes a list due. Until it is made the log claims nothing behind the event that was
// missed, and who leads next meets that event again.
func (s *source) missed(now time.Time) {
	s.p.add((*delta.Stage).Miss)
	s.lost.arm(now)
}

func isStatus(err error) bool {
	_, ok := errors.AsType[*kube.StatusError](err)
	return ok
}
