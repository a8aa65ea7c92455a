package transaction

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func TestAQuietQueueHasTurnsThatFreeWhatItKeeps(t *testing.T) {
	t.Parallel()
	busy := &workqueue.Turn{Ops: make([]workqueue.Op, 1)}
	idle := &workqueue.Turn{}
	const now = int64(1e15)
	for name, tc := range map[string]struct {
		turn  *workqueue.Turn
		sweep int64
		want  time.Duration
	}{
		"a turn with operations does not tell: ask a minute later": {busy, 0, time.Minute},
		"nothing is kept":                                  {idle, 0, time.Hour},
		"something expires in 4 minutes":                   {idle, now + 240e6, 4 * time.Minute},
		"more has expired than a turn frees: soon another": {idle, now - 5, 100 * time.Millisecond},
	} {
		if got := sweepIn(tc.turn, &workqueue.Result{Now: now, NextSweep: tc.sweep}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
