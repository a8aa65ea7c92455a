package link

import (
	"testing"
	"time"
)

func TestTheLogsClockIsAheadOnlyByWhatAnAnswerCannotHaveTaken(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, row := range []struct{ now, want time.Duration }{
		{0, 0},
		{3 * time.Millisecond, 0},
		{10 * time.Millisecond, 0},
		{12 * time.Millisecond, 2 * time.Millisecond},
		{-5 * time.Millisecond, -5 * time.Millisecond},
		{time.Hour, time.Hour - 10*time.Millisecond},
		{-time.Hour, -time.Hour},
	} {
		tail := Tail{Now: now.Add(row.now), Asked: now, Answered: now.Add(10 * time.Millisecond)}
		if got := tail.Ahead(); got != row.want {
			t.Errorf("asked at 0, answered after 10ms by a clock that read %v: %v ahead, want %v", row.now, got, row.want)
		}
	}
}
