package workqueue

import (
	"cmp"
	"maps"
	"slices"

	"github.com/deltaplane/deltaplane/core/expectations"
)

// Snapshot is all of a [Machine], for a log that starts with it.
type Snapshot struct {
	Config    Config       `json:"config"`
	Closed    bool         `json:"closed,omitempty"`
	Paused    bool         `json:"paused,omitempty"`
	LastToken uint64       `json:"last_token,omitempty"`
	Granted   uint64       `json:"granted,omitempty"`
	Buckets   []float64    `json:"buckets,omitempty"`
	Throttle  float64      `json:"throttle,omitempty"`
	Entries   []SavedEntry `json:"entries,omitempty"`
	Items     []SavedItem  `json:"items,omitempty"` // ready ones in the order of their lines
}

// SavedEntry is one back-off id of a [Snapshot].
type SavedEntry struct {
	ID string `json:"id"`
	BackoffEntry
}

// SavedItem is one key of a [Snapshot].
type SavedItem struct {
	Key          string            `json:"key"`
	State        State             `json:"state,omitempty"`
	Level        uint8             `json:"level,omitempty"`
	Again        uint8             `json:"again,omitempty"`
	DueLevel     uint8             `json:"due_level,omitempty"`
	Attempt      int               `json:"attempt,omitempty"`
	Token        uint64            `json:"token,omitempty"`
	Holder       string            `json:"holder,omitempty"`
	Deadline     int64             `json:"deadline,omitempty"`
	AddedAt      int64             `json:"added_at,omitempty"`
	ReadyAt      int64             `json:"ready_at,omitempty"`
	DirtyAt      int64             `json:"dirty_at,omitempty"`
	Due          int64             `json:"due,omitempty"`
	DueLimited   bool              `json:"due_limited,omitempty"`
	DueOnce      uint64            `json:"due_once,omitempty"`
	Failures     int               `json:"failures,omitempty"`
	Barrier      Barrier           `json:"barrier,omitempty"`
	BarrierUntil int64             `json:"barrier_until,omitempty"`
	Traces       []string          `json:"traces,omitempty"`
	Data         []byte            `json:"data,omitempty"`
	Expect       *expectations.Set `json:"expect,omitempty"`
	Reason       string            `json:"reason,omitempty"`
}

// Snapshot copies the queue.
func (m *Machine) Snapshot() *Snapshot {
	s := &Snapshot{Config: m.cfg, Closed: m.closed, Paused: m.paused, LastToken: m.lastToken, Granted: m.granted, Buckets: slices.Clone(m.tats), Throttle: m.throttle.TAT}
	for _, id := range slices.Sorted(maps.Keys(m.entries)) {
		s.Entries = append(s.Entries, SavedEntry{id, m.entries[id].Entry})
	}
	all := make([]*item, 0, len(m.items))
	for _, it := range m.items {
		all = append(all, it)
	}
	slices.SortFunc(all, func(a, b *item) int { return cmp.Or(cmp.Compare(a.place(), b.place()), cmp.Compare(a.key, b.key)) })
	for _, it := range all {
		v := SavedItem{
			Key: it.key, State: it.state, Level: it.level, Again: it.again, DueLevel: it.dueLvl, Attempt: it.attempt,
			Token: it.token, Holder: it.holder, Deadline: it.deadline,
			AddedAt: it.addedAt, ReadyAt: it.readyAt, DirtyAt: it.dirtyAt, Due: it.due, DueLimited: it.limited, DueOnce: it.once, Failures: it.failures,
		}
		if a := it.aux; a != nil {
			v.Barrier, v.BarrierUntil, v.Traces, v.Data, v.Reason = a.barrier, a.barrierUntil, a.traces, a.data, a.reason
			if a.expect.Owner != "" || !a.expect.Satisfied() {
				v.Expect = &a.expect
			}
		}
		s.Items = append(s.Items, v)
	}
	return s
}

// place is the number of a ready item's place in line, zero for others.
func (it *item) place() uint64 {
	if it.state == Ready {
		return it.seq
	}
	return 0
}

// Restore makes a queue from a snapshot.
func Restore(s *Snapshot) *Machine {
	m := New(s.Config)
	m.closed, m.paused, m.lastToken, m.granted = s.Closed, s.Paused, s.LastToken, s.Granted
	copy(m.tats, s.Buckets)
	m.throttle.TAT = s.Throttle
	for _, v := range s.Entries {
		e := &entry{id: v.ID, Entry: v.BackoffEntry, pos: -1}
		m.entries[v.ID] = e
		m.aging.fix(e)
	}
	for _, v := range s.Items {
		it := m.get(v.Key)
		it.state, it.level, it.again, it.dueLvl, it.attempt = v.State, v.Level%Levels, v.Again, v.DueLevel%Levels, v.Attempt
		it.token, it.holder, it.deadline = v.Token, v.Holder, v.Deadline
		it.addedAt, it.readyAt, it.dirtyAt, it.due, it.failures = v.AddedAt, v.ReadyAt, v.DirtyAt, v.Due, v.Failures
		it.limited, it.once = v.DueLimited, v.DueOnce
		it.aux = &aux{barrier: v.Barrier, barrierUntil: v.BarrierUntil, traces: v.Traces, data: v.Data, reason: v.Reason, expectPos: -1}
		if v.Expect != nil {
			m.expect(it, *v.Expect)
		}
		switch it.state {
		case Ready:
			m.counts.Ready++
			m.line(it)
		case Dirty:
			m.counts.Dirty++
			fallthrough
		case Processing:
			m.counts.Processing++
			m.leases.fix(it)
		case Buried:
			m.counts.Dead++
		}
		if it.due != 0 {
			m.due.fix(it)
		}
		if it.barrierUntil != 0 {
			m.barriers.fix(it)
		}
		m.drop(it)
	}
	return m
}

// EndLeases brings the deadline of every lease forward to at, when it is later.
func (m *Machine) EndLeases(at int64) {
	for _, it := range slices.Clone(m.leases.all) {
		if it := it.it; it.deadline > at {
			it.deadline = at
			m.leases.fix(it)
		}
	}
}
