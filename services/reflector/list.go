package reflector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// version says from where to list: "0" only onto an empty log, the most recent state after an
// expired version or when nothing is known, else not older than W. (client-go lists from "0" or the
// last version seen, which may go back.)
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

// list makes one complete list, stages what differs while it arrives, and then the synced record. A
// list that breaks off has staged true states and nothing else: only a complete one moves W, names
// what is gone and is followed by the synced record.
func (s *source) list(ctx context.Context) error {
	began := time.Now()
	s.r.metrics.lists.WithLabelValues(s.r.label()).Inc()
	s.r.state.listing(false, began)
	defer s.r.state.listed()
	rv, match, limit := s.version()
	opts := kube.ListOptions{Scope: s.r.want.Scope, RV: rv, Match: match, Limit: limit}
	listRV, items := "", 0
	s.beginList()
	for {
		in := intake{s: s}
		page, err := s.page(ctx, opts, &listRV, &in)
		if err != nil && opts.Continue != "" && kube.IsExpired(err) {
			// The pages have expired; one answer without pages, from where this list began.
			s.beginList()
			s.r.state.listing(false, began)
			opts.Continue, opts.Limit, listRV, items = "", 0, "", 0
			page, err = s.page(ctx, opts, &listRV, &in)
		}
		switch {
		case errors.Is(err, errNewEpoch):
			return err
		case err != nil:
			return fmt.Errorf("list %s at %q: %w", s.r.col, rv, err)
		}
		s.paged = s.paged || rv == "0" && page.Continue != ""
		if items += in.items; page.Continue == "" {
			break
		}
		opts.Continue = page.Continue
	}
	if err := s.finish(ctx, listRV); err != nil {
		return err
	}
	name := s.r.label()
	s.r.metrics.listSeconds.WithLabelValues(name).Observe(time.Since(began).Seconds())
	s.r.metrics.itemsPerList.WithLabelValues(name).Observe(float64(items))
	s.complete(ctx, listRV, items-s.left, time.Since(began))
	return nil
}

// complete notes that the whole state was taken in.
func (s *source) complete(ctx context.Context, rv delta.RV, items int, took time.Duration) {
	s.r.state.set(func(v *view) { v.lists++ })
	s.r.slog.LogAttrs(ctx, slog.LevelInfo, "whole state taken in", slog.String(telemetry.KeyRV, rv), slog.Int(telemetry.KeyCount, items),
		slog.Duration(telemetry.KeyDuration, took))
}

// page takes one page in. The first page's version is the list's.
func (s *source) page(ctx context.Context, opts kube.ListOptions, listRV *delta.RV, in *intake) (kube.Page, error) {
	page, err := s.r.kube.ListEach(ctx, s.r.resource, opts, func(header kube.Page) (err error) {
		if *listRV == "" {
			*listRV, err = s.begin(header.RV)
		}
		return err
	}, in.item)
	in.flush() // also after an error: the shadow counts them as published
	if err == nil {
		err = in.rest(ctx)
		s.r.state.page(page.Remaining)
	}
	return page, err
}

// begin checks a list's version. One below W, although W or the most recent state was asked for,
// shows that the source's history was restarted, as after a restored etcd.
func (s *source) begin(listRV string) (string, error) {
	rv, err := delta.ParseRV(listRV)
	if err != nil {
		return "", fmt.Errorf("%w: list %s: %w", kube.ErrBadAnswer, s.r.col, err)
	}
	if delta.Compare(rv, s.w) < 0 {
		return "", fmt.Errorf("%w: %s lists at %s, the log is at %s", errNewEpoch, s.r.col, rv, s.w)
	}
	return rv, nil
}

func (s *source) beginList() {
	s.shadow.BeginList()
	s.nameless, s.left = 0, 0
}

func (s *source) listed(raw []byte, now time.Time) (delta.Record, bool) {
	o, err := s.normalize(raw, now)
	if err != nil {
		rec, publish := s.poison(o, err, now)
		s.shadow.Keep(o.Key) // also one that was not known before
		if o.Key == "" {
			s.nameless++
		}
		return rec, publish
	}
	if !s.chosen.holds(o.Key) {
		s.leave(1)
		s.left++
		return delta.Record{}, false
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
		o.Hash = s.r.log.Hash(s.r.col, o.Hash)
		s.r.state.heal(o.Key)
	}
	return o, err
}

// poison quarantines an object: it delays nothing and does not vanish silently. When its key is
// known, a record without a payload tells readers that what they hold for the key is out of date;
// without a version, it carries the one they hold.
func (s *source) poison(o delta.Object, why error, now time.Time) (delta.Record, bool) {
	s.r.metrics.quarantined.WithLabelValues(s.r.label()).Inc()
	s.r.state.poison(o.Key, why, now)
	s.r.slog.Warn("object quarantined", slog.String(telemetry.KeyKey, string(o.Key)), telemetry.Err(why))
	if o.Key == "" || o.RV == "" {
		return s.shadow.Unread(o.Key, s.epoch, now)
	}
	o.Payload, o.Hash, o.Encoding = nil, 0, delta.EncodingUnreadable
	return s.shadow.Upsert(delta.Updated, &o, s.epoch, now)
}

// finish ends a list: tombstones for what it did not hold, then the synced record behind
// everything. A list that holds what the log says is gone ends the epoch instead: nothing else
// makes readers take it.
func (s *source) finish(ctx context.Context, listRV delta.RV) error {
	if s.shadow.Risen(listRV) {
		return fmt.Errorf("%w: %s lists objects at %s that were deleted before", errNewEpoch, s.r.col, listRV)
	}
	now := time.Now()
	gone, doubts := s.missing(listRV, now)
	if doubts {
		s.p.lease.Owe(true) // before the log says that the list was made
	}
	held, agreed := s.asks.holds(), true // only this goroutine makes more of them
	s.p.add(func(st *delta.Stage) {
		for i := range gone {
			st.Push(gone[i])
		}
		st.Recover()
		agreed = held || st.Agree(s.shadow.Digest())
		s.p.lists = append(s.p.lists, doubts)
		s.p.asked = false // what finds no room from here on needs a list of its own
		st.Advance(listRV)
		st.Control(s.r.describe(delta.Record{Kind: delta.KindSynced, RV: listRV, ObservedAt: now}))
	})
	if !agreed {
		s.r.slog.LogAttrs(ctx, slog.LevelError, "the digest of the log went wrong: its records have none until somebody else leads")
	}
	s.w, s.unavailable = delta.MaxRV(s.w, listRV), false
	s.lost.found()
	if doubts {
		s.lost.arm(now)
	} else {
		s.reform = ""
	}
	s.asks.told(listRV)
	s.r.state.set(func(v *view) { v.objects, v.tombstones, v.sourceAt = s.shadow.Len(), s.shadow.Tombstones(), now })
	s.r.well(ctx)
	return nil
}

// missing is what a complete list says of the keys that it does not hold: they are gone. While it
// holds objects without a name nobody can tell which are gone and which are these: then no key is
// deleted, readers learn that each is unresolved, and another list is due.
func (s *source) missing(listRV delta.RV, now time.Time) (records []delta.Record, doubts bool) {
	if s.nameless == 0 {
		records = s.shadow.EndList(listRV, s.epoch, now)
		for i := range records {
			records[i].DeleteReason = cmp.Or(s.reform, records[i].DeleteReason)
			s.r.state.heal(records[i].Key)
		}
		return records, false
	}
	keys, records := s.shadow.Unlisted(listRV, s.epoch, now)
	why := fmt.Errorf("%w: it holds %d without a name", errNameless, s.nameless)
	for _, key := range keys {
		s.r.state.poison(key, why, now)
	}
	if len(keys) > 0 {
		s.r.metrics.quarantined.WithLabelValues(s.r.label()).Add(float64(len(records)))
		s.r.slog.Warn("objects that a list does not name are unresolved", slog.Int(telemetry.KeyCount, len(keys)), telemetry.Err(why))
	}
	return records, len(keys) > 0
}
