package redis_test

import (
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

var barrier = workqueue.NewBarrier(
	workqueue.Mark{Collection: "dev/pods", Epoch: 1, RV: "184467440"},
	workqueue.Mark{Collection: "dev/jobs", Epoch: 1, RV: "184467441"},
)

// noDelay counts failures and delays nothing worth a turn.
func noDelay() *backoff.Limiter {
	return &backoff.Limiter{Kind: backoff.Exponential, Base: 0, Max: time.Second}
}
