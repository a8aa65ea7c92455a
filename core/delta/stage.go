package delta

import (
	"slices"
	"time"
)

// Stage stands between the watch and the log, so that a slow log never makes the API server cut the
// watch. It never blocks. While there is room it keeps every change and hands them out in the order
// they came, which is that of their resource versions in a watch: what a reader of the log has
// applied is then the state at the watermark, wherever its batch ends. (client-go's queue hands out
// all changes of a key together.) Consecutive deletions are collapsed. Beyond its bound it
// keeps only the latest change of each key, and counts what it dropped; tombstones give up their
// payload. Beyond [Overfill] times its bound it takes no further key from the watch
// ([Stage.Offer]): those are read again when the log has recovered. It also keeps the watermark: no
// record it hands out vouches for a change that is still waiting, or was not taken.
//
// The record that stands for several changes has the number, and the place in the line, of the
// oldest. So the line is in the order of these numbers, each record that is handed out moves the
// watermark, and however long a log lags, W is never further behind than one turn of the line.
type Stage struct {
	limit int
	bytes int

	line  []turn // line[head:] waits, one for each change that is kept
	head  int
	items map[Key][]staged
	multi int // keys with more than one change waiting

	source RV // every event at or below it has been pushed
	told   RV // the watermark of the last record handed out
	seen   []sight
	base   uint64 // the number of seen[0]; the first is 1

	controls  []staged
	coalesced uint64
	waiting   int

	live     int // keys that live in the log once everything handed out is in it
	counted  bool
	digest   Digest // theirs
	digested bool

	lost       bool   // a change was not taken, or missed, and no list has made up for it
	refused    bool   // a change was not taken, and no list was pushed since
	lostAt     RV     // the watermark before the first of them
	recovered  uint64 // once the event of this number is handed out, they are made up for; 0 when no list was pushed since
	overflowed uint64
}

// Overfill is how many times its bound a stage holds at most in changes of keys that a watch tells
// it.
const Overfill = 4

// turn is the place of a change in the line.
type turn struct {
	key    Key
	number uint64
}

type staged struct {
	rec  Record
	size int
	// seen is the number of the oldest event this record stands for.
	seen uint64
	// since is when that event was observed.
	since time.Time
}

// sight is one event pushed. Floor is the watermark before it.
type sight struct {
	floor RV
	done  bool
}

// NewStage returns a stage that holds everything up to limit bytes, and the latest change of each
// key beyond it. The watermark begins at w, which may be empty.
func NewStage(limit int, w RV) *Stage {
	return &Stage{limit: limit, items: map[Key][]staged{}, source: w, told: w, base: 1}
}

// Count says how many keys live in the log before anything is handed out. From then on every record
// tells how many do once it is in the log.
func (s *Stage) Count(live int) { s.live, s.counted = live, true }

// Digest says what is in the log before anything is handed out. From then on every record has the
// digest of what is there once it is in the log.
func (s *Stage) Digest(d Digest) { s.digest, s.digested = d, true }

// Agree compares what will be in the log once everything pushed is there with what the caller says.
// Where they differ, no further record has a digest: readers would go by one that nothing comes up
// to. It returns false then, once.
func (s *Stage) Agree(d Digest) bool {
	if !s.digested {
		return true
	}
	planned := s.digest
	for _, list := range s.items {
		for i := range list {
			planned += list[i].rec.Change
		}
	}
	s.digested = planned == d
	return s.digested
}

// Tell sets what r says of the keys that live once everything handed out is in the log, as far as
// it is known.
func (s *Stage) Tell(r *Record) {
	if s.counted = s.counted && s.live >= 0; s.counted {
		r.Live, r.Counted = s.live, true
	}
	if s.digested {
		r.Digest, r.Digested = s.digest, true
	}
}

// Len is the number of records that wait.
func (s *Stage) Len() int { return s.waiting + len(s.controls) }

// Bytes is the estimated memory of what waits.
func (s *Stage) Bytes() int { return s.bytes }

// Oldest is when the oldest change that waits was observed; zero when none waits.
func (s *Stage) Oldest() time.Time {
	if s.head == len(s.line) {
		return time.Time{}
	}
	return s.items[s.line[s.head].key][0].since
}

// Coalesced is how many changes were dropped in favour of a later one of the same key, because the
// stage was full.
func (s *Stage) Coalesced() uint64 { return s.coalesced }

// Overflowed is how many changes [Stage.Offer] refused.
func (s *Stage) Overflowed() uint64 { return s.overflowed }

// Lost reports whether changes were refused or missed and [Stage.Recover] was not called since.
func (s *Stage) Lost() bool { return s.lost && s.recovered == 0 }

// Refused reports whether changes were refused and [Stage.Recover] was not called since: a list is
// due once there is room.
func (s *Stage) Refused() bool { return s.refused }

// Miss says that an event could not be taken in, and that nobody can say whose it was: the
// watermark stands still before it until Recover is called, so that a reader of the log, and
// one that resumes from it, does not count the event as published.
func (s *Stage) Miss() {
	if !s.lost {
		s.lost, s.lostAt = true, s.source
	}
	s.recovered = 0
}

// Watermark is what the next record handed out may vouch for: the highest resource version such
// that every event at or below it has been handed out.
func (s *Stage) Watermark() RV {
	w := s.source
	if len(s.seen) > 0 {
		w = s.seen[0].floor
	}
	if s.lost && Compare(s.lostAt, w) < 0 {
		return s.lostAt
	}
	return w
}

// Offer is Push for a change seen in a watch, which does not wait for room. It returns false when
// the stage is so full that it takes no key that does not wait already. The change is then lost:
// the watermark stands still before it until the key was pushed again, by a complete list, and
// Recover called. Deletions are always taken.
func (s *Stage) Offer(r Record) bool {
	if len(s.items[r.Key]) > 0 || len(r.Payload) == 0 || r.Type == Deleted || s.bytes+r.Size() <= Overfill*s.limit {
		s.Push(r)
		return true
	}
	s.Miss()
	s.refused = true
	s.overflowed++
	return false
}

// Recover says that a complete list was pushed that began after the last change was lost: the
// watermark moves again once all of it is handed out.
func (s *Stage) Recover() {
	s.refused = false
	if s.lost {
		s.recovered = s.base + uint64(len(s.seen))
		s.settle()
	}
}

// settle ends a loss that is made up for.
func (s *Stage) settle() {
	if s.lost && s.recovered > 0 && s.base >= s.recovered {
		s.lost, s.lostAt, s.recovered = false, "", 0
	}
}

// Push adds a change of a key. Call Advance with the event's resource version afterwards.
func (s *Stage) Push(r Record) {
	number := s.base + uint64(len(s.seen))
	defer s.forget(number)
	s.seen = append(s.seen, sight{floor: s.source})
	list := s.items[r.Key]
	if r.Type == Deleted && s.bytes+r.Size() > s.limit {
		r.Payload, r.Encoding, r.Hash = nil, "", 0 // there is no end to the keys that may come and go
	}
	in := staged{rec: r, size: r.Size(), seen: number, since: r.ObservedAt}
	if n := len(list); n > 0 && r.Type == Deleted && list[n-1].rec.Type == Deleted {
		// The one with real state stays.
		last := &list[n-1]
		if last.rec.DeleteReason == Inferred {
			s.bytes += in.size - last.size
			r.Step += last.rec.Step
			r.Change += last.rec.Change
			last.rec, last.size = r, in.size
		} else {
			last.rec.Change += r.Change
		}
		s.finish(number)
		return
	}
	if len(list) == 1 {
		s.multi++
	}
	s.line = append(s.line, turn{r.Key, number})
	s.items[r.Key] = append(list, in)
	s.bytes += in.size
	s.waiting++
	if s.bytes > s.limit && s.multi > 0 {
		if s.multi == 1 && len(list) == 1 {
			s.squeeze(r.Key) // the usual case once the stage is full: no need to look at every key
			s.line = s.line[:len(s.line)-1]
			return
		}
		for key := range s.items {
			s.squeeze(key)
		}
		s.line = slices.DeleteFunc(s.line[s.head:], func(t turn) bool { return s.items[t.key][0].seen != t.number })
		s.head = 0
	}
}

// Control adds a control record that must not be handed out before everything pushed so far.
func (s *Stage) Control(r Record) {
	s.controls = append(s.controls, staged{rec: r, seen: s.base + uint64(len(s.seen))})
}

// Advance says that every event at or below rv has been pushed: the event's own resource version
// after Push, a bookmark's, a list's.
func (s *Stage) Advance(rv RV) { s.source = MaxRV(s.source, rv) }

// Pop hands out up to n records and about size bytes, in order, with their watermarks set; at least
// one when anything waits. When nothing is left and the watermark moved without a record to carry
// it, it adds a progress record. It returns nil when there is nothing to say.
func (s *Stage) Pop(n, size int) []Record {
	var out []Record
	for s.head < len(s.line) && len(out) < n && size > 0 {
		t := s.line[s.head]
		s.line[s.head] = turn{}
		s.head++
		list := s.items[t.key]
		in := list[0]
		if list[0] = (staged{}); len(list) == 1 {
			delete(s.items, t.key)
		} else {
			s.items[t.key] = list[1:]
		}
		if len(list) == 2 {
			s.multi--
		}
		s.bytes -= in.size
		size -= in.size
		s.waiting--
		s.finish(in.seen)
		out = s.ripe(s.say(out, in.rec))
	}
	if s.head == len(s.line) || s.head > 4096 && s.head > len(s.line)/2 {
		s.line = append(s.line[:0], s.line[s.head:]...)
		s.head = 0
	}
	out = s.ripe(out)
	if s.Len() == 0 && Compare(s.Watermark(), s.told) > 0 {
		out = s.say(out, Record{Kind: KindProgress})
	}
	return out
}

// ripe adds the control records that no longer wait for anything.
func (s *Stage) ripe(out []Record) []Record {
	for len(s.controls) > 0 && s.base >= s.controls[0].seen {
		out = s.say(out, s.controls[0].rec)
		s.controls = s.controls[1:]
	}
	return out
}

func (s *Stage) say(out []Record, r Record) []Record {
	r.Watermark = s.Watermark()
	s.live += int(r.Step)
	s.digest += r.Change
	s.Tell(&r)
	r.Step, r.Change = 0, 0
	s.told = MaxRV(s.told, r.Watermark)
	return append(out, r)
}

// finish notes that an event has been handed out, or that another record stands for it.
func (s *Stage) finish(number uint64) {
	s.seen[number-s.base].done = true
	n := 0
	for n < len(s.seen) && s.seen[n].done {
		n++
	}
	s.base += uint64(n)
	s.seen = s.seen[n:]
	s.settle()
}

// forget drops the newest event when another record stands for it, so that a log that stands still
// costs nothing for each further change of a key that waits. Controls wait for older events only.
func (s *Stage) forget(number uint64) {
	if last := len(s.seen) - 1; last >= 0 && s.base+uint64(last) == number && s.seen[last].done {
		s.seen = s.seen[:last]
	}
}

// squeeze keeps only the latest change of a key. It stands for all that were dropped: it takes the
// number of the oldest, so that the watermark waits for it.
func (s *Stage) squeeze(key Key) {
	list := s.items[key]
	if len(list) < 2 {
		return
	}
	last := list[len(list)-1]
	for _, in := range list[:len(list)-1] {
		last.rec.Step += in.rec.Step
		last.rec.Change += in.rec.Change
		s.bytes -= in.size
		s.waiting--
		s.coalesced++
	}
	last.seen, last.since = list[0].seen, list[0].since
	for _, in := range list[1:] {
		s.finish(in.seen)
	}
	s.items[key] = []staged{last}
	s.multi--
}
