package redis

import (
	"github.com/deltaplane/deltaplane/core/expectations"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// record is what the state hash holds of a key; lua/record.lua has its form.
type record struct {
	state        workqueue.State // Idle, Ready, Processing or Dirty
	token        uint64
	level        uint8
	attempt      int
	added, ready int64
	more         *moreRecord
}

// moreRecord is what few records have.
type moreRecord struct {
	failures     int
	dead         bool
	due          int64
	dueLevel     uint8
	barrier      workqueue.Barrier
	barrierUntil int64
	traces       []string
	data         []byte
	reason       string
	holders      []string
	expect       *expectations.Set
}

// lengths are those of records by their kind, before what more there is.
var lengths = map[byte]int{'F': 9, 'R': 18, 'L': 29, 'D': 37, 'I': 1}

// record reads a record; an empty one is of a key that nothing is known of.
func (r *reader) record(raw string) record {
	var rec record
	if raw == "" {
		return rec
	}
	const lower = 'a' - 'A'
	kind, hasMore := raw[0], raw[0] >= 'a'
	if hasMore {
		kind -= lower
	}
	at := lengths[kind]
	if at == 0 || len(raw) < at {
		r.fail()
		return rec
	}
	number := func(at, n int) uint64 {
		var v uint64
		for i := range n {
			v = v<<8 | uint64(raw[at+i])
		}
		return v
	}
	time := func(at int) int64 { return int64(number(at, 7)) }
	switch kind {
	case 'F':
		rec.state, rec.level, rec.added, rec.ready = workqueue.Ready, raw[1], time(2), time(2)
	case 'R':
		rec.state, rec.level, rec.attempt, rec.added, rec.ready = workqueue.Ready, raw[1], int(number(2, 2)), time(4), time(11)
	case 'L', 'D':
		rec.state, rec.token = workqueue.Processing, number(1, 8)
		rec.level, rec.attempt, rec.added, rec.ready = raw[9], int(number(10, 2)), time(15), time(22)
		if kind == 'D' {
			rec.state = workqueue.Dirty
		}
	}
	if hasMore {
		rec.more = r.more(raw[at:])
	} else if len(raw) != at {
		r.fail()
	}
	return rec
}

func (r *reader) more(raw string) *moreRecord {
	m, p := &moreRecord{}, &reader{b: raw}
	if n := int(p.uint(3)); n > 0 {
		t := &reader{b: p.take(n)}
		for range t.array() {
			m.traces = append(m.traces, t.trace())
		}
		if t.err != nil || t.b != "" {
			p.fail()
		}
		if p.b == "" {
			if p.err != nil {
				r.fail()
			}
			return m
		}
	}
	var owner, names string
	var token uint64
	var stored int64
	for range p.pairs() {
		switch p.str() {
		case "f":
			m.failures = int(p.num())
		case "x":
			m.dead = p.num() != 0
		case "u":
			m.due = p.num()
		case "ul":
			m.dueLevel = uint8(p.num())
		case "ub":
			p.num()
		case "uo":
			p.str()
		case "b":
			m.barrier = p.barrier(p.str())
		case "bu":
			m.barrierUntil = p.num()
		case "v":
			m.data = []byte(p.str())
		case "w":
			m.reason = p.str()
		case "h":
			for range p.array() {
				m.holders = append(m.holders, p.str())
			}
		case "e":
			names = p.str()
		case "eo":
			owner = p.str()
		case "et":
			token = p.id()
		case "es":
			stored = p.num()
		default:
			p.fail()
		}
	}
	if names != "" {
		m.expect = p.expect(owner, token, stored, names)
	}
	if p.err != nil || p.b != "" {
		r.fail()
	}
	return m
}

// item is what [workqueue.OpInspect] answers.
func (rec *record) item(key, holder string, deadline, now int64) *workqueue.Item {
	it := &workqueue.Item{Key: key, State: rec.state, Token: rec.token, Holder: holder, Deadline: deadline}
	m := rec.more
	if rec.state != workqueue.Idle {
		it.Attempt, it.Level, it.AddedAt, it.ReadyAt = rec.attempt, rec.level, rec.added, rec.ready
	} else if m != nil && m.dead {
		it.State = workqueue.StateDead
	} else if m != nil && m.due != 0 {
		it.State, it.Level, it.ReadyAt = workqueue.Waiting, m.dueLevel, m.due
	}
	if m != nil {
		it.Requeues, it.DelayedUntil, it.StateBytes, it.Reason = m.failures, m.due, len(m.data), m.reason
		it.Data = m.data
		it.Holders = m.holders
		if m.barrierUntil == 0 || m.barrierUntil > now {
			it.Barrier = m.barrier
		}
		if m.expect != nil {
			it.Expect = m.expect.Live(now)
		}
	}
	return it
}
