package reflector

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// lost knows that something of a watch was missed, because it could not be read: what is held for some key is out of date, and nothing says for
// which. A list is due, soon at first, and the later the more often it happens, as one source of bad events must not make a storm of lists.
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

// relistCause is [errRelist] when that ended ctx.
func relistCause(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errRelist) {
		return errRelist
	}
	return nil
}

// untilRelist runs fn, and ends it when a relist is asked for or due.
func (s *source) untilRelist(ctx context.Context, cancel context.CancelCauseFunc, fn func(context.Context) error) (err error) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.r.relist:
			cancel(errRelist)
		case <-s.lost.due():
			cancel(errRelist)
		case <-stop:
		}
	}()
	defer func() {
		close(stop)
		<-ended
		err = cmp.Or(relistCause(ctx), err) // also one that came while the watch was ending by itself
	}()
	return fn(ctx)
}
