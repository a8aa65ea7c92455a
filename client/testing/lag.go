package testing

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// lagging is a log that passes changes on some time after they were stored.
type lagging struct {
	*stream.Conn
	lag *lag
}

// Read reads like the connection, later.
func (l *lagging) Read(ctx context.Context, col delta.Collection, cfg stream.ReadConfig, h stream.Handler) error {
	return l.Conn.Read(ctx, col, cfg, func(ctx context.Context, b delta.Batch) error {
		for _, r := range slices.Backward(b.Records) {
			if r.Kind == delta.KindDelta { // what only tells how far the log is need not wait
				l.lag.wait(ctx, r.StoredAt)
				break
			}
		}
		return h(ctx, b)
	})
}

// lag is how long records are held back, between its begin and its end.
type lag struct {
	by         time.Duration
	begun      chan struct{}
	ended      chan struct{}
	begin, end func()
}

func newLag(by time.Duration) *lag {
	l := &lag{by: by, begun: make(chan struct{}), ended: make(chan struct{})}
	l.begin = sync.OnceFunc(func() { close(l.begun) })
	l.end = sync.OnceFunc(func() { close(l.ended) })
	return l
}

// wait returns when what was stored at a time may be passed on.
func (l *lag) wait(ctx context.Context, stored time.Time) {
	select {
	case <-l.begun:
	default:
		return
	}
	timer := time.NewTimer(time.Until(stored.Add(l.by)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ended:
	case <-ctx.Done():
	}
}
