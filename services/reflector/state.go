package reflector

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// maxListedQuarantined bounds the keys an answer names, maxQuarantined those remembered.
const (
	maxListedQuarantined = 100
	maxQuarantined       = 10_000
)

// state is what a reflection tells about itself. It is safe for concurrent use.
type state struct {
	mu sync.Mutex
	v  view // guarded by mu
}

type view struct {
	name       string
	scope      kube.Scope
	namespaces []string                    // of the scope, one or several; not to be changed
	spec       *reflectorv1.ReflectionSpec // as it was asked for; not to be changed
	origin     reflectorv1.ReflectionOrigin
	phase      reflectorv1.ReflectionState
	asked      uint64 // revision of the request for a list that was not begun yet
	revision   delta.Revision
	shadow     delta.Revision // how far a standby has followed the log
	term       uint64         // of this process' own leadership
	leader     string         // who holds the lease; empty when it is not known
	led        uint64         // the term of that lease
	holder     string         // this process in leases

	objects, pending    int
	tombstones          int
	lists, watches      uint64
	shortWatches        uint64
	published           uint64
	coalesced, dropped  uint64
	quarantined         map[delta.Key]quarantine
	poisoned            uint64 // how many are quarantined, in a copy
	unnamed             uint64 // quarantined objects without a key
	unnamedWhy          string
	unnamedAt           time.Time
	lag                 time.Duration // of the oldest change of the last batch that got to the log
	waitingSince        time.Time     // when the oldest change was read that waits, or is on its way to the log; zero when none is
	reason, lastErr     string
	attempts            int // failures in a row for that reason
	lastErrAt, sourceAt time.Time
	sourceRV            delta.RV
	nextRetry           time.Time // zero while it does not wait
	list                progress
}

type quarantine struct {
	reason string
	at     time.Time
}

func (s *state) set(fn func(*view)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(&s.v)
}

func (s *state) get() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.v
	v.poisoned = v.unnamed + uint64(len(v.quarantined))
	v.quarantined = nil
	return v
}

// behind is how far the log is behind the source: the lag of what got there last, or how long
// the next change has waited already.
func (v *view) behind(now time.Time) time.Duration {
	if v.waitingSince.IsZero() {
		return v.lag
	}
	return max(v.lag, now.Sub(v.waitingSince))
}

// leaderTerm is the term of the leader, as far as it is known.
func (v *view) leaderTerm() uint64 {
	if v.term == 0 && v.leader != "" && v.phase != reflectorv1.ReflectionState_REFLECTION_STATE_STOPPED {
		return v.led
	}
	return v.term
}

// fail notes an error, the word for it and how long the loop waits before it tries again; 0 when it
// does not wait. It returns how often in a row that was the reason, this time included, and how
// often the one before was.
func (s *state) fail(reason string, err error, now time.Time, wait time.Duration) (attempts, before int) {
	s.set(func(v *view) {
		if v.reason != reason {
			before, v.attempts = v.attempts, 0
		}
		v.attempts++
		attempts = v.attempts
		v.reason, v.lastErr, v.lastErrAt, v.nextRetry = reason, err.Error(), now, time.Time{}
		if wait > 0 {
			v.nextRetry = now.Add(wait)
		}
	})
	return attempts, before
}

func (s *state) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.v.lastErr != ""
}

// well notes that nothing fails any more; it returns how often it did, and for what reason the last
// time.
func (s *state) well() (attempts int, reason string) {
	s.set(func(v *view) {
		attempts, reason = v.attempts, v.reason
		v.reason, v.lastErr, v.attempts, v.lastErrAt, v.nextRetry = "", "", 0, time.Time{}, time.Time{}
	})
	return attempts, reason
}

func (s *state) poison(key delta.Key, why error, now time.Time) {
	s.set(func(v *view) {
		if key == "" {
			v.unnamed++
			v.unnamedWhy, v.unnamedAt = why.Error(), now
			return
		}
		if v.quarantined == nil {
			v.quarantined = map[delta.Key]quarantine{}
		}
		if _, known := v.quarantined[key]; known || len(v.quarantined) < maxQuarantined {
			v.quarantined[key] = quarantine{reason: why.Error(), at: now}
		}
	})
}

// healAll forgets what is quarantined; the log is about to be read from its start.
func (s *state) healAll() { s.set(func(v *view) { clear(v.quarantined) }) }

func (s *state) heal(key delta.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.v.quarantined) > 0 {
		delete(s.v.quarantined, key)
	}
}

func (s *state) proto() *reflectorv1.Reflection {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.v
	p := &reflectorv1.Reflection{
		Collection: v.name, State: v.phase, Term: v.leaderTerm(),
		Revision: &deltav1.Revision{Epoch: v.revision.Epoch, ResourceVersion: v.revision.RV},
		Objects:  int64(v.objects), Tombstones: int64(v.tombstones), Pending: int64(v.pending), Lag: durationpb.New(v.behind(time.Now())),
		Relists: int64(v.lists), Watches: int64(v.watches), Published: int64(v.published), Coalesced: int64(v.coalesced),
		QuarantinedTotal: int64(len(v.quarantined)) + int64(v.unnamed), LastError: v.lastErr, Reason: v.reason,
		LastErrorAt: stamp(v.lastErrAt), SourceSeenAt: stamp(v.sourceAt), NextRetryAt: stamp(v.nextRetry),
		ShortWatches: int64(v.shortWatches), List: v.list.proto(time.Now()),
		Namespace: v.scope.Namespace, Namespaces: v.namespaces, LabelSelector: v.scope.LabelSelector, FieldSelector: v.scope.FieldSelector,
		Leader: v.leader, Holder: v.holder, Spec: v.spec, Origin: v.origin,
		ShadowRevision: &deltav1.Revision{Epoch: v.shadow.Epoch, ResourceVersion: v.shadow.RV},
	}
	if v.nextRetry.Before(time.Now()) {
		p.NextRetryAt = nil // the retry is under way
	}
	if v.unnamed > 0 {
		p.Quarantined = append(p.Quarantined, &reflectorv1.QuarantinedKey{Reason: v.unnamedWhy, SeenAt: stamp(v.unnamedAt)})
	}
	for key, q := range v.quarantined {
		p.Quarantined = append(p.Quarantined, &reflectorv1.QuarantinedKey{Key: string(key), Reason: q.reason, SeenAt: stamp(q.at)})
	}
	slices.SortFunc(p.Quarantined, func(a, b *reflectorv1.QuarantinedKey) int { return cmp.Compare(a.Key, b.Key) })
	if v.term != 0 {
		p.ShadowRevision = p.GetRevision()
	}
	p.Quarantined = p.Quarantined[:min(len(p.Quarantined), maxListedQuarantined)]
	return p
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
