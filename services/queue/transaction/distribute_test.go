package transaction

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func TestAQuietQueueHasTransactionsThatFreeWhatItKeeps(t *testing.T) {
	t.Parallel()
	busy := &workqueue.Transaction{Ops: make([]workqueue.Op, 1)}
	idle := &workqueue.Transaction{}
	const now = int64(1e15)
	for name, tc := range map[string]struct {
		tx    *workqueue.Transaction
		sweep int64
		want  time.Duration
	}{
		"a transaction with operations does not tell: ask a minute later": {busy, 0, time.Minute},
		"nothing is kept":                                         {idle, 0, time.Hour},
		"something expires in 4 minutes":                          {idle, now + 240e6, 4 * time.Minute},
		"more has expired than a transaction frees: soon another": {idle, now - 5, 100 * time.Millisecond},
	} {
		if got := sweepIn(tc.tx, &workqueue.Result{Now: now, NextSweep: tc.sweep}); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
