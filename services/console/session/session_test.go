package session

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	"github.com/deltaplane/deltaplane/services/console/view"
)

// counter is a view whose state is a number.
type counter struct {
	mu      sync.Mutex
	changed func()
	n       uint32
	closed  bool
}

func (c *counter) set(n uint32) {
	c.mu.Lock()
	c.n = n
	c.mu.Unlock()
	c.changed()
}

func (c *counter) Next() *consolev1.OpenResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Rows{Rows: &consolev1.Rows{Total: c.n}}}
}

func (c *counter) Close() { c.closed = true }

func (c *counter) open(changed func()) (view.Reader, error) {
	c.changed = changed
	return c, nil
}

// tab runs a session whose messages go to got.
func tab(t *testing.T, s *Session, take func(*consolev1.OpenResponse) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, take)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func TestASlowReaderGetsTheLatestOfEachView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSession("id", "", nil)
		a, b := &counter{}, &counter{}
		for id, c := range map[uint32]*counter{1: a, 2: b} {
			if err := s.Subscribe(id, c.open); err != nil {
				t.Fatal(err)
			}
		}
		got := map[uint32][]uint32{}
		room := make(chan struct{})
		tab(t, s, func(m *consolev1.OpenResponse) error {
			if m.GetRows() == nil {
				return nil
			}
			<-room
			got[m.GetSubscription()] = append(got[m.GetSubscription()], m.GetRows().GetTotal())
			return nil
		})
		synctest.Wait() // the first message waits for room
		for n := range uint32(1000) {
			a.set(n + 1)
			b.set(n + 1)
		}
		close(room)
		time.Sleep(time.Second)
		synctest.Wait()
		for id, all := range got {
			if len(all) > 2 || all[len(all)-1] != 1000 {
				t.Errorf("subscription %d got %v, want at most what waited and then 1000", id, all)
			}
		}
	})
}

func TestAViewThatChangesAllTheTimeIsSentTwentyTimesASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSession("id", "", nil)
		c := &counter{}
		if err := s.Subscribe(1, c.open); err != nil {
			t.Fatal(err)
		}
		sent := 0
		tab(t, s, func(*consolev1.OpenResponse) error { sent++; return nil })
		for n := range uint32(1000) {
			c.set(n)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if sent < 19 || sent > 21 {
			t.Errorf("%d messages in a second", sent)
		}
	})
}

func TestAQuietSessionHasAHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSession("id", "", nil)
		beats := 0
		tab(t, s, func(m *consolev1.OpenResponse) error {
			if m.GetHeartbeat() != nil {
				beats++
			}
			return nil
		})
		time.Sleep(beat*4 + time.Second)
		synctest.Wait()
		if beats != 4 {
			t.Errorf("%d heartbeats in %v", beats, beat*4)
		}
	})
}

func TestWhatIsReplacedOrEndedIsGivenBack(t *testing.T) {
	t.Parallel()
	s := newSession("id", "", nil)
	a, b, c := &counter{}, &counter{}, &counter{}
	for id, one := range map[uint32]*counter{1: a, 2: c} {
		if err := s.Subscribe(id, one.open); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Subscribe(1, b.open); err != nil || !a.closed {
		t.Errorf("a view that was replaced is open: %v", err)
	}
	s.Unsubscribe(2)
	s.Unsubscribe(2)
	if !c.closed || b.closed {
		t.Error("the view that ended is open, or another is not")
	}
	s.end()
	if !b.closed {
		t.Error("a view of a session that is over is open")
	}
	late := &counter{}
	if err := s.Subscribe(3, late.open); !errors.Is(err, ErrOver) {
		t.Errorf("a session that is over: %v", err)
	}
}
