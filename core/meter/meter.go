package meter

import (
	"maps"
	"time"
)

const (
	// lately is how long what somebody counted is taken for what goes on.
	lately = 10 * time.Second
	// apart is how far two readings must be from each other to tell a rate.
	apart = 250 * time.Millisecond
)

type (
	// Reading is counts that only grow; those that are not used are zero.
	Reading [5]int64
	// Flow is the rates of the counts of a [Reading], by the second.
	Flow [5]float64
)

// Set is what was read lately, by name and by since when it is counted. It is made by make or a
// literal, and is for one goroutine at a time.
type Set map[string]map[int64]*meter

type meter struct {
	at    time.Time
	last  Reading
	flow  Flow
	known bool
}

// Count takes a reading of one who has counted under a name since a time, or epoch. Counts that
// fell began again: their rates are known from the next reading on. A reading that follows at once
// on another one is left out.
func (s Set) Count(name string, since int64, at time.Time, r Reading) {
	before := s[name][since]
	if before != nil && at.Sub(before.at) < apart {
		return
	}
	now := &meter{at: at, last: r}
	if before != nil {
		now.known = true
		for i := range r {
			now.flow[i] = float64(r[i]-before.last[i]) / at.Sub(before.at).Seconds()
			now.known = now.known && r[i] >= before.last[i]
		}
	}
	if s[name] == nil {
		s[name] = map[int64]*meter{}
	}
	s[name][since] = now
}

// Flow is what all that count under a name did within the last 10 s, together; false while nobody
// knows.
func (s Set) Flow(name string, at time.Time) (sum Flow, known bool) {
	for _, one := range s[name] {
		if !one.known || at.Sub(one.at) > lately {
			continue
		}
		known = true
		for i := range sum {
			sum[i] += one.flow[i]
		}
	}
	return sum, known
}

// Rate takes a reading of one count, and is its rate; nil while it is not known.
func (s Set) Rate(name string, at time.Time, count int64, since uint64) *float64 {
	s.Count(name, int64(since), at, Reading{count}) //nolint:gosec // it only tells epochs apart
	if f := s[name][int64(since)]; f.known {        //nolint:gosec // as above
		return new(f.flow[0])
	}
	return nil
}

// Forget drops what nobody has counted for a minute.
func (s Set) Forget(at time.Time) {
	for name, counted := range s {
		maps.DeleteFunc(counted, func(_ int64, one *meter) bool { return at.Sub(one.at) > 6*lately })
		if len(counted) == 0 {
			delete(s, name)
		}
	}
}
