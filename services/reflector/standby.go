package reflector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

var (
	// errDifferentSpec says that the collection is led by a process that mirrors it in another form.
	errDifferentSpec = errors.New("reflector: the collection is mirrored in another form")
	errInherited     = errors.New("quarantined before this process led the collection")
	// errNewerLog says that this build does not read all of the log: what it cannot read it must not
	// replace, since nobody else could tell.
	errNewerLog = errors.New("reflector: the log is not written by this build")
)

// standby follows a collection's log by its headers for as long as somebody else may lead it, so
// that a takeover needs no more of the log than what was written since a moment ago. What it holds
// is the shadow a leader needs, and how far the log is.
type standby struct {
	r *reflection

	mu       sync.Mutex // guards what follows
	shadow   *delta.Shadow
	follower delta.Follower
	created  time.Time // of the log that was read; zero before anything was
	replayed bool      // and no replay is under way
	// unknown: a record could not be read. What a log read from its start says of it must be found out
	// then.
	unknown bool
	unread  bool
	misfit  bool // see handoverState
	// counted says that the last record with a count told live keys, and that nothing without one came
	// behind it.
	counted  bool
	live     int
	digested bool // as counted, of the digest
	digest   delta.Digest
	filtered time.Time               // when a tombstone of an object that left the form was last seen
	newer    error                   // why this build must not write the log; see errNewerLog
	giveUp   context.CancelCauseFunc // ends the wait for the lease then; nil while there is none
	expired  time.Time
	moved    chan struct{} // cap 1; something was applied
	stop     context.CancelFunc
	done     chan struct{}
}

// follow begins to follow the log until ctx ends or what it holds is taken.
func (r *reflection) follow(ctx context.Context) *standby {
	s := &standby{r: r, moved: make(chan struct{}, 1)}
	s.begin(ctx)
	return s
}

// begin reads from the start of the log.
func (s *standby) begin(ctx context.Context) {
	ctx, s.stop = context.WithCancel(ctx)
	s.done = make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.created, s.replayed, s.unknown, s.unread, s.counted, s.digested = time.Time{}, false, false, false, false, false
	s.newer = nil
	s.shadow, s.follower = delta.NewShadow(s.r.log.TombstoneTTL()), delta.Follower{}
	go func() {
		defer close(s.done)
		_ = s.r.log.Read(ctx, s.r.col, stream.ReadConfig{HeadersOnly: true}, s.apply) // it ends when it is instructed to
	}()
}

// end stops following; nothing runs any more when it returns.
func (s *standby) end() {
	s.stop()
	<-s.done
}

func (s *standby) apply(_ context.Context, b delta.Batch) error {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Newer != nil {
		s.refuse(b.Newer)
		return nil
	}
	s.created = b.Created
	if b.Reset {
		s.shadow, s.follower = delta.NewShadow(s.r.log.TombstoneTTL()), delta.Follower{}
		s.replayed, s.unknown, s.unread, s.counted, s.digested, s.filtered = false, false, false, false, false, time.Time{}
		s.misfit = false
		s.r.state.healAll()
	}
	for i := range b.Records {
		s.restore(&b.Records[i], now)
	}
	s.restoreUnreadable(b.Unreadable, now)
	if b.Replayed {
		s.replayed = true
	}
	if now.Sub(s.expired) > expireEvery {
		s.expired = now
		s.shadow.Expire(now)
	}
	at := s.follower.Apply(b)
	s.r.state.set(func(v *view) {
		v.shadow = at
		if v.term == 0 {
			v.objects, v.tombstones, v.revision = s.shadow.Len(), s.shadow.Tombstones(), at
		}
	})
	select {
	case s.moved <- struct{}{}:
	default:
	}
	return nil
}

// refuse gives up the wait for the lease: who leads writes what this build cannot read.
func (s *standby) refuse(why error) {
	s.newer = fmt.Errorf("%w: %w", errNewerLog, why)
	if s.giveUp != nil {
		s.giveUp(s.newer)
	}
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// contest is a context for the wait for the lease, which ends when this build turns out not to read
// the log.
func (s *standby) contest(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.giveUp = cancel; s.newer != nil {
		cancel(s.newer)
	}
	return ctx, cancel
}

func (s *standby) restore(rec *delta.Record, now time.Time) {
	s.shadow.Restore(rec, now)
	s.count(rec)
	if err := delta.Needs(rec.Needs); err != nil && rec.Kind == delta.KindTerm {
		s.refuse(err)
	}
	switch {
	case rec.Kind != delta.KindDelta:
	case rec.Tombstone():
		if rec.DeleteReason == delta.FilteredOut || !rec.DeleteReason.Known() { // it may be another way to leave the form
			s.filtered = now
		}
		s.r.state.heal(rec.Key)
	case rec.Encoding == delta.EncodingUnreadable:
		s.r.state.poison(rec.Key, errInherited, now)
	default:
		s.misfit = s.misfit || rec.Sealed != s.r.log.Key(s.r.col)
		s.r.state.heal(rec.Key)
	}
}

// count takes what a record says of the keys that live. What only begins a term tells nothing, and
// changes nothing.
func (s *standby) count(rec *delta.Record) {
	if !rec.Kind.BeginsTerm() {
		s.live, s.counted = rec.Live, rec.Counted
		s.digest, s.digested = rec.Digest, rec.Digested
	}
}

// restoreUnreadable takes records that are damaged or foreign: their keys are known to be in the
// log, and nothing else. A relist then replaces or buries them. What the shadow holds of such a key
// may be newer than nothing, so only a log read from its start tells which keys these are.
func (s *standby) restoreUnreadable(records []delta.Unreadable, now time.Time) {
	for _, u := range records {
		if u.Key == "" {
			continue
		}
		s.unread, s.unknown = true, s.unknown || s.replayed
		s.shadow.Restore(&delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: u.Key, Overflow: true}, now)
	}
}

// warm reports that a takeover would have to read next to nothing.
func (s *standby) warm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replayed && !s.unknown
}

// term is the highest term seen in the log.
func (s *standby) term() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.follower.Position().Term
}

// handoverState is what a standby leaves to the leader it becomes.
type handoverState struct {
	shadow *delta.Shadow
	// at is the revision the log had reached; zero when no complete list of its epoch is in it.
	at delta.Revision
	// unread says that records could not be read and must be replaced by a relist.
	unread bool
	// misfit says that payloads are not encrypted as they are to be: not at all, or with a key of
	// before.
	misfit bool
	// missing is how many keys more, or fewer, live by the count of the leader than by the log's
	// records: somebody took some away, and nobody can say which. 0 also when the log holds no count.
	missing int
	// differs says that other keys or versions live by the last leader's digest than by the log's
	// records, though as many.
	differs bool
	// filtered is when an object was last seen to leave the form of the collection.
	filtered time.Time
}

// departures reports whether some reader may remember tombstones of objects that left the form. One
// that was behind when it took such a tombstone remembers it for as much longer than the log holds
// it, and one that is further behind than the TTL begins again.
func (l *handoverState) departures(now time.Time, ttl time.Duration) bool {
	return !l.filtered.IsZero() && now.Sub(l.filtered) <= 2*ttl
}

// take follows the log up to what w has written of it, which must be its end and stay it, then
// stops following and returns what it found. The sequence alone would not do: in a log recreated,
// or one that was cut short, it may lie below what was read of the log that was.
func (s *standby) take(ctx context.Context, w *stream.Writer) (handoverState, error) {
	s.mu.Lock()
	again := !s.created.Equal(w.Created()) || s.unknown
	s.mu.Unlock()
	if again { // what was read is of no log, or of another one, or does not suffice
		s.end()
		s.begin(ctx)
	}
	defer s.end()
	for {
		s.mu.Lock()
		at := s.follower.Position()
		there := s.replayed && at.Term == w.Term() && at.Sequence >= w.Acked() && !s.follower.Frozen()
		l := handoverState{shadow: s.shadow, unread: s.unread, misfit: s.misfit, filtered: s.filtered}
		if s.counted && !s.unread {
			l.missing = s.live - s.shadow.Len()
		}
		if s.digested && !s.unread {
			l.differs = s.digest != s.shadow.Digest()
		}
		if s.follower.Readable() {
			l.at = s.follower.Revision()
		}
		newer := s.newer
		s.mu.Unlock()
		if newer != nil {
			return handoverState{}, newer
		}
		if there {
			return l, nil
		}
		select {
		case <-s.moved:
		case <-s.done:
			return handoverState{}, errors.New("reflector: following the log has ended")
		case <-ctx.Done():
			return handoverState{}, ctx.Err()
		}
	}
}
