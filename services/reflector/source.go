package reflector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
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
)

// source lists and watches on behalf of one reign. It is for one goroutine.
type source struct {
	r      *reflection
	p      *publisher
	shadow *delta.Shadow
	epoch  uint64
	w      delta.RV // everything up to it is staged; empty: a complete list is due
	retry  retry

	unavailable bool // the last list found its version expired or too large
	paged       bool // a list at "0" came back in pages: the server's cache is off
	expired     time.Time
}

// run lists when it must and watches until ctx ends or the epoch must change.
func (s *source) run(ctx context.Context) error {
	relist := s.w == ""
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

// version says from where to list: "0" only onto an empty log, the most recent state after an expired version or when nothing is known, else
// not older than W (design 6.5; would go back).
func (s *source) version() (rv, match string, limit int) {
	limit = cmp.Or(s.r.cfg.PageSize, defaultPage)
	switch {
	case s.unavailable:
		return "", "", limit
	case s.w == "" && s.shadow.Empty():
		return "0", "", limit
	case s.w == "":
		return "", "", limit
	case s.r.cfg.PageSize == 0 && !s.paged:
		limit = 0 // only then the server's cache may answer
	}
	return s.w, kube.NotOlderThan, limit
}

// list makes one complete list, stages what differs, and then the synced record.
func (s *source) list(ctx context.Context) error {
	began := time.Now()
	name := s.r.col.String()
	s.r.metrics.lists.WithLabelValues(name).Inc()
	s.r.state.set(func(v *view) { v.lists++ })
	rv, match, limit := s.version()
	opts := kube.ListOptions{Scope: s.r.want.Scope, RV: rv, Match: match, Limit: limit}
	listRV, items := "", 0
	s.shadow.BeginList()
	for {
		page, err := s.r.kube.List(ctx, s.r.resource, opts)
		if err != nil && opts.Continue != "" && kube.IsExpired(err) {
			// the pages have expired; one answer without pages, from where this list began.
			s.shadow.BeginList()
			opts.Continue, opts.Limit, listRV, items = "", 0, "", 0
			page, err = s.r.kube.List(ctx, s.r.resource, opts)
		}
		if err != nil {
			return fmt.Errorf("list %s at %q: %w", s.r.col, rv, err)
		}
		if listRV == "" { // the result has the first page's version
			if listRV, err = s.begin(page.RV); err != nil {
				return err
			}
		}
		s.paged = s.paged || rv == "0" && page.Continue != ""
		if err := s.take(ctx, page.Items); err != nil {
			return err
		}
		if items += len(page.Items); page.Continue == "" {
			break
		}
		opts.Continue = page.Continue
	}
	s.finish(listRV)
	s.r.metrics.listSeconds.WithLabelValues(name).Observe(time.Since(began).Seconds())
	s.r.metrics.itemsPerList.WithLabelValues(name).Observe(float64(items))
	s.r.slog.LogAttrs(ctx, slog.LevelInfo, "listed", slog.String(telemetry.KeyRV, listRV), slog.Int(telemetry.KeyCount, items),
		slog.Duration(telemetry.KeyDuration, time.Since(began)))
	return nil
}

// begin checks a list's version. One below W, although W or the most recent state was asked for, shows that the source's history was
// restarted, as after a restored etcd.
func (s *source) begin(listRV string) (string, error) {
	rv, err := delta.ParseRV(listRV)
	if err != nil {
		return "", fmt.Errorf("list %s: %w", s.r.col, err)
	}
	if delta.Compare(rv, s.w) < 0 {
		return "", fmt.Errorf("%w: %s lists at %s, the log is at %s", errNewEpoch, s.r.col, rv, s.w)
	}
	return rv, nil
}

// take stages what differs in a page. A list may wait for the log, unlike a watch: it holds no connection open meanwhile.
func (s *source) take(ctx context.Context, items [][]byte) error {
	const chunk = 256
	for len(items) > 0 {
		n := min(chunk, len(items))
		now := time.Now()
		records := make([]delta.Record, 0, n)
		for _, raw := range items[:n] {
			if rec, ok := s.listed(raw, now); ok {
				records = append(records, rec)
			}
		}
		items = items[n:]
		s.p.add(func(st *delta.Stage) {
			for i := range records {
				st.Push(records[i])
			}
		})
		s.r.state.set(func(v *view) { v.objects, v.sourceAt = s.shadow.Len(), now })
		for s.p.bytes() > s.r.cfg.StageBytes/2 {
			if !sleep(ctx, 5*time.Millisecond, nil) {
				return ctx.Err()
			}
		}
	}
	return nil
}

func (s *source) listed(raw []byte, now time.Time) (delta.Record, bool) {
	o, err := s.normalize(raw, now)
	if err != nil {
		s.shadow.Keep(o.Key)
		return s.poison(o, err, now)
	}
	return s.shadow.Listed(&o, s.epoch, now)
}

// normalize takes an object in; an error says why it is quarantined.
func (s *source) normalize(raw []byte, now time.Time) (delta.Object, error) {
	o, err := s.r.want.Transform.Normalize(raw, s.r.resource)
	if err == nil && len(o.Payload) > s.r.log.MaxPayload() {
		err = fmt.Errorf("%d bytes, the log takes %d", len(o.Payload), s.r.log.MaxPayload())
	}
	o.ObservedAt = now
	if err == nil {
		s.r.state.heal(o.Key)
	}
	return o, err
}

// poison quarantines an object (R-26: it holds nothing back and does not vanish silently). When its key and version are known, a record
// without a payload tells readers that what they hold for the key is out of date.
func (s *source) poison(o delta.Object, why error, now time.Time) (delta.Record, bool) {
	s.r.metrics.quarantined.WithLabelValues(s.r.col.String()).Inc()
	s.r.state.poison(o.Key, why, now)
	s.r.slog.Warn("object quarantined", slog.String(telemetry.KeyKey, string(o.Key)), telemetry.Err(why))
	if o.Key == "" || o.RV == "" {
		return delta.Record{}, false
	}
	o.Payload, o.Hash, o.Encoding = nil, 0, delta.EncodingUnreadable
	return s.shadow.Upsert(delta.Updated, &o, s.epoch, now)
}

// finish ends a list: tombstones for what it did not hold, then the synced record behind everything.
func (s *source) finish(listRV delta.RV) {
	now := time.Now()
	gone := s.shadow.EndList(listRV, s.epoch, now)
	for i := range gone {
		s.r.state.heal(gone[i].Key)
	}
	s.p.add(func(st *delta.Stage) {
		for i := range gone {
			st.Push(gone[i])
		}
		st.Advance(listRV)
		st.Control(delta.Record{Kind: delta.KindSynced, RV: listRV, ObservedAt: now})
	})
	s.w, s.unavailable = delta.MaxRV(s.w, listRV), false
	s.r.state.set(func(v *view) { v.objects, v.sourceAt = s.shadow.Len(), now })
	s.r.state.fail(nil, now)
}

// watch opens one watch behind W and follows it to its end.
func (s *source) watch(ctx context.Context) error {
	name := s.r.col.String()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a relist asked for ends the watch
		select {
		case <-s.r.relist:
			cancel(errRelist)
		case <-stop:
		}
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
	if s.r.state.get().lastErr != "" {
		s.r.state.fail(nil, now)
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
		if publish {
			st.Push(rec)
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
