package reflector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// WatchList says how the whole state of a collection is read: as a list, or as the beginning of the
// watch (a streaming start).
type WatchList string

// The ways to read the whole state.
const (
	// WatchListAuto lists, and asks for a streaming start after a list that ran out of time: a stream
	// may take as long as a watch. Lists come first because they cost the API server half as much CPU,
	// and arrive in two thirds of the time.
	WatchListAuto WatchList = "auto"
	// WatchListAlways asks for a streaming start each time, and lists when that fails; this is what
	// client-go does.
	WatchListAlways WatchList = "always"
	// WatchListOnly never lists, for those who may watch but not list.
	WatchListOnly WatchList = "only"
	// WatchListNever always lists.
	WatchListNever WatchList = "never"
)

func (w WatchList) validate() error {
	switch w {
	case WatchListAuto, WatchListAlways, WatchListOnly, WatchListNever:
		return nil
	}
	return fmt.Errorf("reflector: watch list %q: want auto, always, only or never", string(w))
}

// errNoEnd says that the server watches, but never says that its initial state is complete: it does
// not know what was asked of it.
var errNoEnd = errors.New("reflector: the server does not mark the end of the initial state")

// streaming reports whether to begin with a streaming start. A server that does not mark its end is
// not asked again in this term: to find out costs time, where a refusal costs nothing.
func (s *source) streaming() bool {
	switch s.r.cfg.WatchList {
	case WatchListOnly:
		return true
	case WatchListAlways:
		return !s.endless
	case WatchListAuto:
		return s.slow && !s.endless
	}
	return false
}

// lists decides, after a streaming start that failed, whether to list in this round: not when
// nobody is there or when the server asks to wait, not when the version asked for is gone, and
// not when the stream merely ended too early for the first time. The next round asks for a stream
// again.
func (s *source) lists(ctx context.Context, err error) bool {
	s.endless = s.endless || errors.Is(err, errNoEnd)
	if errors.Is(err, errUnfinished) {
		s.unfinished++
	}
	switch {
	case ctx.Err() != nil, errors.Is(err, errNewEpoch), s.r.cfg.WatchList == WatchListOnly,
		kube.IsConnectionRefused(err), kube.IsTooManyRequests(err), errors.Is(err, errUnfinished) && s.unfinished < 2:
		return false
	case kube.IsExpired(err), kube.IsTooLargeRV(err):
		return s.unavailable // the most recent state was asked for already
	case kube.IsInvalid(err), kube.IsBadRequest(err):
		s.r.slog.LogAttrs(ctx, slog.LevelDebug, "no streaming start", telemetry.Err(err))
	default:
		s.r.fail(ctx, stageList, err, 0)
	}
	return true
}

// stream reads the whole state as the beginning of a watch, and follows that watch to its end.
// Complete says that the state was taken in; the error is then the watch's. A stream that ends
// before has staged true states and nothing else: W stays, and nothing is named as gone.
func (s *source) stream(parent context.Context) (complete bool, err error) {
	began := time.Now()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	opts := kube.WatchOptions{RV: s.w, Initial: true} // without W the most recent state; "0" is for lists only
	if s.unavailable {
		opts.RV = ""
	}
	s.r.state.listing(true, began)
	defer s.r.state.listed()
	w, err := s.open(ctx, opts)
	if err != nil {
		return false, fmt.Errorf("stream %s at %q: %w", s.r.col, opts.RV, err)
	}
	defer w.Close()
	rv, items, err := s.initial(ctx, cancel, w)
	switch {
	case parent.Err() != nil:
		return false, parent.Err()
	case err != nil:
		return false, fmt.Errorf("stream %s at %q: %w", s.r.col, opts.RV, err)
	}
	s.unfinished = 0
	if err := s.finish(ctx, rv); err != nil {
		return false, err
	}
	s.r.state.listed()
	s.complete(ctx, rv, items-s.left, time.Since(began))
	s.r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING)
	return true, s.untilRelist(ctx, cancel, func(ctx context.Context) error { return s.follow(ctx, w, items+1) })
}

// initial takes the initial events in, up to the bookmark that ends them, and returns its version.
func (s *source) initial(ctx context.Context, cancel context.CancelCauseFunc, w *kube.Watch) (rv delta.RV, items int, err error) {
	in := intake{s: s}
	defer in.flush() // also after an error: the shadow counts them as published
	var heard atomic.Int64
	stop := s.overdue(ctx, cancel, &heard)
	defer stop()
	s.beginList()
	for {
		ev, err := w.Next()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return "", in.items, context.Cause(ctx)
		case errors.Is(err, kube.ErrBadEvent):
			return "", in.items, fmt.Errorf("%w: %w", kube.ErrBadAnswer, err) // whose state it was is not known
		case isStatus(err):
			return "", in.items, err
		case errors.Is(err, io.EOF):
			return "", in.items, errUnfinished
		default: // the connection broke
			return "", in.items, fmt.Errorf("%w: %w", errUnfinished, err)
		}
		switch ev.Type {
		case kube.EventAdded, kube.EventModified:
			err = in.item(ev.Object)
			if err == nil && in.lateBytes > s.r.cfg.StageBytes {
				heard.Store(math.MaxInt64) // that nothing comes is our doing
				err = in.rest(ctx)         // a stream has no pages: not to read on is all that bounds it
			}
			heard.Store(time.Now().UnixNano())
		case kube.EventDeleted: // of what was streamed before
			if s.chosen.leaves(ev.Object) {
				s.leave(1)
				continue
			}
			if o, bad := s.normalize(ev.Object, time.Now()); bad != nil && (o.Key == "" || o.RV == "") {
				return "", in.items, fmt.Errorf("%w: a deletion: %w", kube.ErrBadAnswer, bad) // what is gone is not known
			}
			if err = in.rest(ctx); err == nil {
				rec, _, publish := s.change(ev, time.Now())
				s.asks.event(rec, publish, "")
				s.asks.settled(ctx) // what comes next of the key is staged as a list's item, and would overtake it
			}
		case kube.EventBookmark:
			if !kube.InitialEnd(ev.Object) {
				return "", in.items, fmt.Errorf("%w: a bookmark came first", errNoEnd)
			}
			if err = in.rest(ctx); err == nil {
				rv, err = kube.EventRV(ev.Object)
			}
			if err == nil {
				rv, err = s.begin(rv)
			}
			return rv, in.items, err
		}
		if err != nil {
			return "", in.items, err
		}
	}
}

// overdue warns while the end of the initial state is missing, and ends the stream when no object
// came for too long.
func (s *source) overdue(ctx context.Context, cancel context.CancelCauseFunc, heard *atomic.Int64) (stop func()) {
	timeout := s.r.cfg.WatchListTimeout
	began, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	heard.Store(began.UnixNano())
	go func() {
		defer close(ended)
		tick := time.NewTicker(max(timeout/3, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				s.r.slog.LogAttrs(ctx, slog.LevelWarn, "the initial state is not complete yet",
					slog.Int(telemetry.KeyCount, s.r.state.get().list.objects), slog.Duration(telemetry.KeyDuration, now.Sub(began)))
				if heard.Load() < now.Add(-timeout).UnixNano() {
					cancel(fmt.Errorf("%w: nothing came for %v", errNoEnd, timeout))
					return
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
