package reflector

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// lost knows that something of a watch was missed, because it could not be read: what is held for
// some key is out of date, and nothing says for which. A list is due, soon at first, and the later
// the more often it happens, as one source of bad events must not make a storm of lists.
type lost struct {
	timer    *time.Timer
	backoff  Backoff
	failures int
	last     time.Time
	armed    bool
}

func newLost(b Backoff) lost {
	t := time.NewTimer(time.Hour)
	t.Stop()
	b.Cap *= 10
	return lost{timer: t, backoff: b}
}

// due delivers once when the list is due.
func (l *lost) due() <-chan time.Time { return l.timer.C }

// arm makes a list due, if none is.
func (l *lost) arm(now time.Time) {
	if l.armed {
		return
	}
	if now.Sub(l.last) > 2*l.backoff.Cap {
		l.failures = 0
	}
	l.armed, l.last = true, now
	l.timer.Reset(l.backoff.delay(l.failures, 0))
	l.failures++
}

// found says that a complete list was made.
func (l *lost) found() {
	l.timer.Stop()
	l.armed = false
}

// errAhead says that the source has not reached W yet.
var errAhead = errors.New("reflector: the log is ahead of the source")

// relistCause is why a list is due, when that ended ctx.
func relistCause(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errRelist) || errors.Is(cause, errAhead) {
		return cause
	}
	return nil
}

// untilRelist runs fn, and ends it when a list is asked for or due.
func (s *source) untilRelist(ctx context.Context, cancel context.CancelCauseFunc, fn func(context.Context) error) (err error) {
	aside, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(s.r.cfg.QuietAfter)
		defer tick.Stop()
		for {
			select {
			case <-s.r.relist:
				cancel(errRelist)
			case <-s.lost.due():
				cancel(errRelist)
			case <-tick.C:
				if !s.ahead(aside) {
					continue
				}
				cancel(errAhead)
			case <-aside.Done():
			}
			return
		}
	}()
	defer func() {
		stop()
		<-ended
		err = cmp.Or(relistCause(ctx), err) // also one that came while the watch was ending by itself
	}()
	return fn(ctx)
}

// ahead reports whether the source has not even reached W, as after a restored etcd. Nobody else
// says so: a watch from a version that does not exist yet stays open and silent, until the source
// gets there and everything in between is missed. A watch that is well has bookmarks every minute;
// only a silent one costs a request.
func (s *source) ahead(ctx context.Context) bool {
	v := s.r.state.get()
	if v.sourceRV == "" || time.Since(v.sourceAt) < s.r.cfg.QuietAfter {
		return false
	}
	_, err := s.r.kube.List(ctx, s.r.resource, kube.ListOptions{Scope: s.r.want.Scope, RV: v.sourceRV, Match: kube.NotOlderThan, Limit: 1})
	return kube.IsTooLargeRV(err)
}

// identifyFor is how long a term, or a watch, may wait to hear which cluster it is of.
const identifyFor = time.Second

// identity tells the cluster from every other one, as it was after since; empty when that is not
// known: the API server is away, or does not let this process know. Versions alone cannot tell once
// those of another cluster under the same name are higher, and its objects would join those of the
// first one.
func (r *reflection) identity(ctx context.Context, since time.Time) string {
	ctx, cancel := context.WithTimeout(ctx, identifyFor)
	defer cancel()
	is, err := r.kube.Identity(ctx, since)
	if kube.IsForbidden(err) && !r.unnamed {
		r.unnamed = true
		name := r.state.get().name
		r.faults.warn(name, stageLead, reasonOf(stageList, err), err.Error(), func() {
			r.slog.LogAttrs(ctx, slog.LevelWarn, "another cluster under this name will not be noticed at once", telemetry.Err(err))
		})
	}
	return is
}
