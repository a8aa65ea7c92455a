package stream

import "sync"

// signal tells any number of waiters that something happened since they last looked.
type signal struct {
	mu sync.Mutex
	ch chan struct{} // guarded by mu; closed and replaced by fire
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}
