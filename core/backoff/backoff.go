package backoff

import "time"

// Backoff is client-go's flowcontrol.Backoff with the time passed in: a delay
// per id that doubles while the id keeps failing and starts anew once it has
// been quiet. NewBackoff makes one.
type Backoff struct {
	initial, max time.Duration
	factor       float64
	random       func() float64
	expired      ExpiredFunc
	entries      map[string]entry
}

type entry struct {
	delay  time.Duration
	update time.Time
}

// ExpiredFunc decides whether an id last updated at update is forgotten at
// event. It replaces the rule of B-03.
type ExpiredFunc func(event, update time.Time, limit time.Duration) bool

// Option changes a [Backoff] when it is made.
type Option func(*Backoff)

// WithJitter adds random*factor*delay to every growth; random gives [0,1).
func WithJitter(factor float64, random func() float64) Option {
	return func(b *Backoff) { b.factor, b.random = factor, random }
}

// WithExpiry replaces "quiet for more than twice the maximum" (B-03).
func WithExpiry(f ExpiredFunc) Option { return func(b *Backoff) { b.expired = f } }

// NewBackoff returns an empty table. The first delay is initial, also when it
// is above limit (B-02).
func NewBackoff(initial, limit time.Duration, options ...Option) *Backoff {
	b := &Backoff{initial: initial, max: limit, entries: map[string]entry{}}
	for _, o := range options {
		o(b)
	}
	return b
}

// Get is the id's present delay, 0 when it has none (B-01).
func (b *Backoff) Get(id string) time.Duration { return b.entries[id].delay }

// Next moves the id on: an unknown or expired id gets the initial delay, any
// other twice its last one up to the maximum. The entry is stamped now, not
// event (B-01).
func (b *Backoff) Next(id string, event, now time.Time) {
	e, ok := b.entries[id]
	if !ok || b.hasExpired(event, e.update) {
		e.delay = b.initial + b.jitter(b.initial)
	} else {
		e.delay = min(2*e.delay+b.jitter(e.delay), b.max)
	}
	e.update = now
	b.entries[id] = e
}

// IsInBackOffSince says whether less than the delay has passed from event to
// now; an unknown or expired id is not in back-off (B-04).
func (b *Backoff) IsInBackOffSince(id string, event, now time.Time) bool {
	e, ok := b.entries[id]
	return ok && !b.hasExpired(event, e.update) && now.Sub(event) < e.delay
}

// IsInBackOffSinceUpdate says whether event lies less than the delay after the
// id's last update (B-04).
func (b *Backoff) IsInBackOffSinceUpdate(id string, event time.Time) bool {
	e, ok := b.entries[id]
	return ok && !b.hasExpired(event, e.update) && event.Sub(e.update) < e.delay
}

// Reset forgets the id (B-05).
func (b *Backoff) Reset(id string) { delete(b.entries, id) }

// DeleteEntry forgets the id (B-05).
func (b *Backoff) DeleteEntry(id string) { delete(b.entries, id) }

// GC forgets every id that has expired at now. The caller runs it (B-05).
func (b *Backoff) GC(now time.Time) {
	for id, e := range b.entries {
		if b.hasExpired(now, e.update) {
			delete(b.entries, id)
		}
	}
}

// Len is how many ids are remembered.
func (b *Backoff) Len() int { return len(b.entries) }

func (b *Backoff) hasExpired(event, update time.Time) bool {
	if b.expired != nil {
		return b.expired(event, update, b.max)
	}
	return event.Sub(update) > 2*b.max // strictly: exactly twice still doubles (B-03)
}

func (b *Backoff) jitter(d time.Duration) time.Duration {
	if b.factor == 0 || b.random == nil {
		return 0
	}
	return time.Duration(b.random() * b.factor * float64(d))
}
