package tracing

import (
	"time"

	"golang.org/x/time/rate"
)

const (
	errorsEach  = time.Second
	errorsBurst = 10
)

// Errors bounds the traces that begin at errors: 10 at once, and one a second from then on. Make it
// with [NewErrors]; it is safe for concurrent use.
type Errors struct{ limit *rate.Limiter }

// NewErrors permits the first ones.
func NewErrors() Errors { return Errors{rate.NewLimiter(rate.Every(errorsEach), errorsBurst)} }

// Allow says whether an error may begin a trace now.
func (e Errors) Allow(now time.Time) bool { return e.limit.AllowN(now, 1) }
