// Package session keeps what tabs show: a session is one stream, with a bounded number of
// subscriptions, each of which has its latest state sent when the stream has room for it.
package session

import (
	"context"
	"errors"
	"sync"
	"time"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	"github.com/deltaplane/deltaplane/services/console/view"
)

const (
	// MaxSubscriptions is how many subscriptions a session has at most.
	MaxSubscriptions = 32
	// apart is the least time between two updates of a subscription.
	apart = 50 * time.Millisecond
	// beat is the longest time without a message.
	beat = 5 * time.Second
)

// ErrTooManySubscriptions refuses one more subscription.
var ErrTooManySubscriptions = errors.New("there are as many subscriptions as a session may have")

// ErrOver says that the session has ended.
var ErrOver = errors.New("the session is over")

// Session is what one tab shows. Its methods are safe for concurrent use.
type Session struct {
	// ID is its name.
	ID string
	// Hub is what its caller sees.
	Hub *view.Hub

	caller string
	wake   chan struct{}
	now    func() time.Time

	mu    sync.Mutex
	over  bool                     // guarded by mu
	all   map[uint32]*subscription // guarded by mu
	dirty []*subscription          // guarded by mu: those with news, in the order in which they came
}

type subscription struct {
	id     uint32
	reader view.Reader
	// Guarded by the session's mu.
	news, gone bool
	after      time.Time // nothing is sent before
}

func newSession(id, caller string, hub *view.Hub) *Session {
	return &Session{ID: id, Hub: hub, caller: caller, wake: make(chan struct{}, 1), now: time.Now, all: map[uint32]*subscription{}}
}

// Subscribe adds a subscription, or replaces the one with its number. Open begins the view, and is
// given what is to be called when it has news.
func (s *Session) Subscribe(id uint32, open func(changed func()) (view.Reader, error)) error {
	sub := &subscription{id: id}
	s.mu.Lock()
	_, known := s.all[id]
	switch {
	case s.over:
		s.mu.Unlock()
		return ErrOver
	case !known && len(s.all) >= MaxSubscriptions:
		s.mu.Unlock()
		return ErrTooManySubscriptions
	}
	s.mu.Unlock()
	reader, err := open(func() { s.changed(sub) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	old := s.all[id]
	if s.over || old == nil && len(s.all) >= MaxSubscriptions {
		over := s.over
		s.mu.Unlock()
		reader.Close()
		if over {
			return ErrOver
		}
		return ErrTooManySubscriptions
	}
	sub.reader = reader
	s.all[id] = sub
	s.mu.Unlock()
	s.changed(sub) // what is known already is shown at once
	s.retire(old)
	return nil
}

// Range gives a subscription another range of the collection that it shows. It reports whether it
// does: not where it shows something else.
func (s *Session) Range(id uint32, v *consolev1.CollectionView) (bool, error) {
	s.mu.Lock()
	sub := s.all[id]
	s.mu.Unlock()
	if sub == nil {
		return false, nil
	}
	return view.Range(sub.reader, v)
}

// Unsubscribe ends a subscription.
func (s *Session) Unsubscribe(id uint32) {
	s.mu.Lock()
	sub := s.all[id]
	delete(s.all, id)
	s.mu.Unlock()
	s.retire(sub)
}

// retire ends a subscription that is not in the session any more.
func (s *Session) retire(sub *subscription) {
	if sub == nil {
		return
	}
	s.mu.Lock()
	sub.gone = true
	s.mu.Unlock()
	sub.reader.Close()
}

func (s *Session) changed(sub *subscription) {
	s.mu.Lock()
	news := !sub.news && !sub.gone && sub.reader != nil
	if news {
		sub.news = true
		s.dirty = append(s.dirty, sub)
	}
	s.mu.Unlock()
	if news {
		s.stir()
	}
}

func (s *Session) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next is a subscription with news that may be sent now; nil with how long until there may be one.
func (s *Session) next() (sub *subscription, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, wait := s.now(), beat
	for i := 0; i < len(s.dirty); i++ {
		sub := s.dirty[i]
		if sub.gone {
			s.dirty = append(s.dirty[:i], s.dirty[i+1:]...)
			i--
			continue
		}
		if left := sub.after.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		s.dirty = append(s.dirty[:i], s.dirty[i+1:]...)
		sub.news, sub.after = false, now.Add(apart)
		return sub, 0
	}
	return nil, wait
}

// Run sends what the session shows until ctx ends or send fails. Messages are sent one by one, the
// latest of each subscription.
func (s *Session) Run(ctx context.Context, send func(*consolev1.OpenResponse) error) error {
	timer := time.NewTimer(beat)
	defer timer.Stop()
	last := s.now()
	for ctx.Err() == nil {
		sub, wait := s.next()
		if sub != nil {
			if m := sub.reader.Next(); m != nil {
				m.Subscription = sub.id
				if err := send(m); err != nil {
					return err
				}
				last = s.now()
			}
			continue
		}
		if silent := s.now().Sub(last); silent >= beat {
			if err := send(&consolev1.OpenResponse{Content: &consolev1.OpenResponse_Heartbeat{Heartbeat: &consolev1.Heartbeat{}}}); err != nil {
				return err
			}
			last = s.now()
		} else {
			wait = min(wait, beat-silent)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
	}
	return ctx.Err()
}

// end gives everything back.
func (s *Session) end() {
	s.mu.Lock()
	s.over = true
	all := s.all
	s.all, s.dirty = nil, nil
	s.mu.Unlock()
	for _, sub := range all {
		s.retire(sub)
	}
}
