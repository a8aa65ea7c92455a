package informer

import (
	"context"
	"log/slog"
	"time"
)

// schedule decides how often a new handler is resynced:
//
//   - A period below a second is one of a second.
//   - Before the start, the shortest period becomes the check period; after it, periods
//     below the check period are raised to that.
//   - An informer with no check period at its start resyncs nobody.
//
// The mutex is held.
func (i *Shared[T]) schedule(l *listener[T], asked time.Duration, now time.Time) {
	switch {
	case asked < 0:
		asked = 0
	case asked == 0:
		asked = i.cfg.Resync
	}
	if asked > 0 && asked < minimumResync {
		i.cfg.Log.Warn("resync period is too short", slog.Duration("period", asked), slog.Duration("minimum", minimumResync))
		asked = minimumResync
	}
	if asked > 0 && asked < i.check {
		if i.started {
			i.cfg.Log.Warn("resync period is raised to the check period of a running informer", slog.Duration("period", asked), slog.Duration("check", i.check))
			asked = i.check
		} else {
			i.check = asked
			for _, other := range i.listeners {
				other.reschedule(i.check)
			}
		}
	}
	l.mu.Lock()
	l.requested = asked
	l.mu.Unlock()
	l.reschedule(i.check)
	l.mu.Lock()
	l.due = now.Add(l.period)
	l.mu.Unlock()
}

// reschedule makes the period what the check period permits.
func (r *Registration) reschedule(check time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.requested == 0 || check == 0:
		r.period = 0
	default:
		r.period = max(r.requested, check)
	}
}

// isDue reports whether a resync is due, and plans the next.
func (r *Registration) isDue(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.period == 0 || now.Before(r.due) {
		return false
	}
	r.due = now.Add(r.period)
	return true
}

// resyncs tells handlers that are due of everything again, from the store: nothing
// is asked of the index.
func (i *Shared[T]) resyncs(ctx context.Context, check time.Duration) {
	if check == 0 {
		return
	}
	tick := time.NewTicker(check)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			i.resync(time.Now())
		}
	}
}

func (i *Shared[T]) resync(now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var notes []note[T]
	for _, l := range i.listeners {
		if !l.isDue(now) {
			continue
		}
		if notes == nil {
			notes = i.same(now)
		}
		l.push(notes...)
	}
}

// same is the notes of a resync. The mutex is held.
func (i *Shared[T]) same(now time.Time) []note[T] {
	i.store.mu.RLock()
	defer i.store.mu.RUnlock()
	notes := make([]note[T], 0, len(i.store.entries))
	for _, e := range i.store.entries {
		if e.has {
			notes = append(notes, note[T]{kind: updated, key: e.key, uid: e.uid, old: e.obj, obj: e.obj, sync: true, at: now})
		}
	}
	return notes
}
