package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// errAway is that the index cannot be read at present. It is everybody's
// trouble, not a key's: the key comes back uncounted.
var errAway = errors.New("controllers: the index cannot be read")

// awayRetry is when a key comes back that could not be judged.
const awayRetry = 2 * time.Second

// reads is the index as a controller reads it, safe for concurrent use. That it
// cannot be read is logged once, not for every key, and so is that it can again.
type reads struct {
	index *client.Index
	log   *slog.Logger

	mu   sync.Mutex // guards away
	away bool
}

func newReads(s *Service, controller string) *reads {
	return &reads{index: s.index, log: s.log.With(slog.String(telemetry.KeyController, controller))}
}

// heard takes note of how a read ended, and marks what is the index's trouble.
func (r *reads) heard(ctx context.Context, err error) error {
	away := err != nil && ctx.Err() == nil && unreadable(err)
	if err != nil && !away {
		return err
	}
	r.mu.Lock()
	was := r.away
	r.away = away
	r.mu.Unlock()
	switch {
	case away && !was:
		level := slog.LevelWarn
		if errors.Is(err, client.ErrCollectionNotFound) {
			level = slog.LevelInfo // the services may start in any order, and readiness tells
		}
		r.log.LogAttrs(ctx, level, "index cannot be read", telemetry.Err(err))
	case was && !away:
		r.log.InfoContext(ctx, "index can be read again")
	}
	if away {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	return nil
}

// unreadable says that a read failed whatever key it was of.
func unreadable(err error) bool {
	if errors.Is(err, client.ErrCollectionNotFound) {
		return true
	}
	e, ok := errors.AsType[*client.Error](err)
	return ok && (e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded) &&
		!errors.Is(err, client.ErrRevisionNotReached) && !errors.Is(err, client.ErrNotSynced) // the worker knows these
}

// look is one look at a key: reads of the index at the item's barrier and not
// below floor, and what they were of.
type look struct {
	*reads
	item  client.Item
	floor client.Barrier
	read  client.Reading
}

func (r *reads) look(item client.Item) look {
	return look{reads: r, item: item, read: client.Reading{}}
}

// find is an object as JSON, nil when there is none.
func (l *look) find(ctx context.Context, collection, key string) ([]byte, error) {
	obj, at, err := l.index.Find(ctx, collection, key, client.ReadOptions{AtLeast: l.least(collection)})
	if err := l.heard(ctx, err); err != nil {
		return nil, err
	}
	l.read.Raise(collection, at)
	if obj == nil {
		return nil, nil
	}
	return obj.Payload, nil
}

func (l *look) least(collection string) client.Revision {
	b := client.Barrier{}
	b.Merge(l.floor)
	if at := l.item.AtLeast(collection); !at.IsZero() {
		b.Raise(collection, at)
	}
	return b[collection]
}

// settled is how a look ends: a lost lease is not settled, and what could not be
// judged comes back.
func settled(res client.Result, err error, stale ...error) (client.Result, error) {
	if errors.Is(err, client.ErrLeaseLost) {
		res.Outcome = client.OutcomeAbandon
		return res, nil
	}
	for _, s := range append(stale, errAway) {
		if errors.Is(err, s) {
			res.Outcome, res.After, res.Reason = client.OutcomeRelease, awayRetry, err.Error()
			return res, nil
		}
	}
	return res, err
}
