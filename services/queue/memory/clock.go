package memory

import (
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// What the machine's clock may move beside the time that goes by without being
// said to step: so much, and one in so many of the time.
const (
	leastStep = 250 * time.Millisecond
	slew      = 200
)

// steady is the machine's clock as it was when it was made, without the steps
// that it did since, which it counts.
type steady struct {
	began time.Time
	step  func() time.Duration
	log   *slog.Logger

	mu    sync.Mutex
	at    time.Duration // since began, when it was read last
	off   time.Duration // of the machine's clock then
	steps int64
}

func newSteady(step func() time.Duration, log *slog.Logger) *steady {
	if step == nil {
		step = func() time.Duration { return 0 }
	}
	return &steady{began: time.Now(), step: step, log: log}
}

func (s *steady) now() time.Time {
	read := time.Now()
	at := read.Sub(s.began)
	off := read.Round(0).Sub(s.began.Round(0)) + s.step() - at
	s.mu.Lock()
	defer s.mu.Unlock()
	by := off - s.off
	if by.Abs() >= leastStep+max(at-s.at, 0)/slew {
		s.steps++
		s.log.Warn("the machine's clock stepped: queues go on as before", slog.Duration(telemetry.KeyDuration, by))
	}
	s.at, s.off = at, off
	return s.began.Add(at)
}

// ClockSteps is how often the machine's clock was seen to step.
func (e *Engine) ClockSteps() int64 {
	if e.steady == nil {
		return 0
	}
	e.steady.mu.Lock()
	defer e.steady.mu.Unlock()
	return e.steady.steps
}
