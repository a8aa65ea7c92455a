package pleg

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	rules "github.com/deltaplane/deltaplane/core/pleg"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// lateness is how old a declaration of the whole cache is: what happened longer ago the stream has
// told of.
const lateness = time.Second

// stream is what the loop knows of the runtime's event stream.
type stream struct {
	rules.Stream
	// open says that one is open, proved that it delivered something.
	open, proved bool
	// next is when to open one.
	next time.Time
	// away says that the last list failed.
	away bool
}

// news is one message of a stream, with the time it came.
type news struct {
	event container.Event
	at    time.Time
}

// end is that of a stream.
type end struct {
	err error
}

// listen opens the runtime's event stream when it is time to.
func (p *PLEG) listen(ctx context.Context, now time.Time) {
	if p.cfg.NoStream || p.stream.open || now.Before(p.stream.next) {
		return
	}
	p.stream.open, p.stream.proved = true, false
	p.running.Go(func() {
		err := p.runtime.Events(ctx, func(e container.Event) {
			select {
			case p.news <- news{event: e, at: time.Now()}:
			default:
				p.lost.Store(true)
			}
		})
		select {
		case p.ends <- end{err: err}:
		case <-ctx.Done():
		}
	})
}

// ended sees to the end of a stream: lists take over at once, and one is forced.
func (p *PLEG) ended(ctx context.Context, e end) {
	p.hearAll(ctx) // what came before the end; nothing comes after it
	p.stream.open = false
	wait := p.cfg.StreamRetry
	if !errors.Is(e.err, container.ErrNoEvents) {
		p.metrics.streamErrors.Inc()
		var gaveUp bool
		wait, gaveUp = p.stream.Failed(p.cfg.stream())
		p.log.LogAttrs(ctx, slog.LevelWarn, "the runtime's event stream ended",
			slog.Any(telemetry.KeyError, e.err), slog.Duration(telemetry.KeyAfter, wait), slog.Bool("gave_up", gaveUp))
	}
	p.stream.next = time.Now().Add(wait)
	if p.distrust(ctx, "the stream ended") {
		p.forced = true
	}
}

// hearAll takes in the news that have come.
func (p *PLEG) hearAll(ctx context.Context) {
	for range len(p.news) {
		p.told(ctx, <-p.news)
	}
}

// trust takes note that a stream delivered something.
func (p *PLEG) trust(ctx context.Context) {
	if p.lost.Swap(false) {
		p.distrust(ctx, "more events came than there was room for")
		p.forced = true
		return
	}
	if !p.stream.proved {
		p.stream.proved = true
		p.stream.Proved()
		p.metrics.streams.Inc()
	}
	if p.health.streamed {
		return
	}
	// The list that is due within a period sees what happened before the stream was there; the slow
	// period counts from it.
	p.mu.Lock()
	p.health.streamed = true
	p.mu.Unlock()
	p.log.LogAttrs(ctx, slog.LevelInfo, "the runtime's event stream tells of changes")
}

// distrust makes lists tell of changes again, and reports whether the stream did until now.
func (p *PLEG) distrust(ctx context.Context, reason string) bool {
	if !p.health.streamed {
		return false
	}
	p.mu.Lock()
	p.health.streamed, p.health.since = false, time.Now()
	p.mu.Unlock()
	p.log.LogAttrs(ctx, slog.LevelInfo, "lists tell of changes", slog.String(telemetry.KeyReason, reason))
	return true
}

// waits is notified of readers that wait for the cache. While the stream is trusted no
// list comes to their help soon, so that the pod is asked about.
func (p *PLEG) waits(uid types.UID, newer time.Time) {
	p.mu.Lock()
	streamed := p.health.streamed
	p.mu.Unlock()
	if streamed {
		p.requests.relist(uid, newer) // with no room, the next tick asks
	}
}
