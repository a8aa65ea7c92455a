package backoff

import "math"

// Entry is what is kept of one id of flowcontrol.Backoff: its delay and when it
// was last moved, in microseconds. The zero value is an unknown id.
type Entry struct {
	Delay   int64 `json:"delay"`
	Updated int64 `json:"updated"`
}

// Growth is how entries grow, in microseconds: client-go's flowcontrol.Backoff as pure
// functions of an [Entry], for stores that keep entries of their own.
type Growth struct {
	Initial, Max int64
	ExpireAfter  int64   // an entry not moved for longer starts over
	Jitter       float64 // 0 to 1
}

// Next moves an entry on because of something that happened at event: an
// unknown or expired one gets the initial delay, which Max does not cap, any
// other twice its last one up to Max; the jitter adds random*Jitter of the
// delay before, random from [0,1), and fractions of a microsecond are dropped.
// The entry is stamped now, not event.
func (g Growth) Next(e Entry, event, now int64, random float64) Entry {
	if e == (Entry{}) || g.Expired(e, event) {
		initial := float64(g.Initial)
		return Entry{int64(math.Floor(initial + float64(random*g.Jitter*initial))), now}
	}
	old := float64(e.Delay)
	return Entry{int64(math.Floor(min(2*old+float64(random*g.Jitter*old), float64(g.Max)))), now}
}

// Expired says whether an entry was not moved for longer than ExpireAfter
// before event, strictly.
func (g Growth) Expired(e Entry, event int64) bool { return event-e.Updated > g.ExpireAfter }

// Since is how much of an entry's delay is left at now, counted from event;
// zero or less means not in back-off, as for an unknown or expired one. It is
// IsInBackOffSince.
func (g Growth) Since(e Entry, event, now int64) (left int64) {
	if e == (Entry{}) || g.Expired(e, event) {
		return 0
	}
	return e.Delay - (now - event)
}

// SinceUpdate is how much of an entry's delay is left at event, counted from
// its last update; zero or less means not in back-off. It is
// IsInBackOffSinceUpdate.
func (g Growth) SinceUpdate(e Entry, event int64) (left int64) {
	if e == (Entry{}) || g.Expired(e, event) {
		return 0
	}
	return e.Delay - (event - e.Updated)
}
