package top

import "time"

// lately is how long what a server counted is taken for what it does.
const lately = 10 * time.Second

// reading are counts that only grow, and flow their rates by the second.
type (
	reading [5]int64
	flow    [5]float64
)

// meters make rates of counts, by name and by who counts.
type meters map[meterID]*meter

type meterID struct {
	name  string
	since int64
}

type meter struct {
	at    time.Time
	last  reading
	flow  flow
	known bool
}

// count takes a reading. Counts that fell began again: their rate is known from the next one on.
func (m meters) count(name string, since int64, at time.Time, r reading) {
	id := meterID{name, since}
	before := m[id]
	now := &meter{at: at, last: r}
	if before != nil && at.After(before.at) {
		now.known = true
		for i := range r {
			now.flow[i] = float64(r[i]-before.last[i]) / at.Sub(before.at).Seconds()
			now.known = now.known && r[i] >= before.last[i]
		}
	}
	m[id] = now
}

// flow is what all that count under a name did lately, together; false while nobody knows.
func (m meters) flow(name string, at time.Time) (sum flow, known bool) {
	for id, one := range m {
		if id.name != name || !one.known || at.Sub(one.at) > lately {
			continue
		}
		known = true
		for i := range sum {
			sum[i] += one.flow[i]
		}
	}
	return sum, known
}

// rate is the rate of one count; nil while it is not known.
func (m meters) rate(name string, at time.Time, count int64, since uint64) *float64 {
	m.count(name, int64(since), at, reading{count})   //nolint:gosec // it only tells epochs apart
	if f := m[meterID{name, int64(since)}]; f.known { //nolint:gosec // as above
		return new(f.flow[0])
	}
	return nil
}

// forget drops what nobody has counted for long.
func (m meters) forget(at time.Time) {
	for id, one := range m {
		if at.Sub(one.at) > 6*lately {
			delete(m, id)
		}
	}
}
