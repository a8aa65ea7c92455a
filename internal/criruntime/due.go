package criruntime

import (
	"container/heap"
	"log/slog"
	"time"
)

// dueHeap are the running containers whose end is planned, soonest first: one
// timer serves them all.
type dueHeap []*container

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i+1, j+1
}

// Push and Pop are heap.Interface's.
func (h *dueHeap) Push(x any) {
	c := x.(*container)
	*h = append(*h, c)
	c.at = len(*h)
}

func (h *dueHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.at = 0
	return c
}

// setDue plans the end of a run, or takes the plan back with a due of 0.
func (s *state) setDue(c *container, due int64, code int32) {
	c.due, c.dueCode = due, code
	switch {
	case due == 0 && c.at > 0:
		heap.Remove(&s.due, c.at-1)
	case due == 0:
	case c.at > 0:
		heap.Fix(&s.due, c.at-1)
	default:
		heap.Push(&s.due, c)
	}
}

// next is when the first run ends; false when none is planned.
func (s *state) next() (int64, bool) {
	if len(s.due) == 0 {
		return 0, false
	}
	return s.due[0].due, true
}

// runTimers ends runs when they are due.
func (s *Server) runTimers() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		s.mu.Lock()
		s.endDue(time.Now())
		if due, ok := s.state.next(); ok {
			wait = max(0, time.Duration(due-time.Now().UnixNano()))
		}
		s.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-s.replanned:
		case <-s.stop:
			return
		}
	}
}

// endDue ends every run that is due, each dated when it was. The mutex is held.
func (s *Server) endDue(now time.Time) {
	for {
		due, ok := s.state.next()
		if !ok || due > now.UnixNano() {
			return
		}
		c := s.state.due[0]
		// The plan is in the journal: should the write of its end fail, a restart finds the same end.
		if err := s.end(c, due, c.dueCode); err != nil {
			s.cfg.Log.Error("the end of a container cannot be journaled", slog.String("container", c.item.Id), slog.Any("error", err))
			s.state.setDue(c, now.Add(time.Second).UnixNano(), c.dueCode)
			return
		}
	}
}

// replan wakes the timers because a due time changed.
func (s *Server) replan() {
	select {
	case s.replanned <- struct{}{}:
	default:
	}
}
