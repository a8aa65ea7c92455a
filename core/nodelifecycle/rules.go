package nodelifecycle

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Rules are the numbers in force. The zero value of each is Kubernetes' default,
// except that of the rates: see [Rules.WithDefaults].
type Rules struct {
	// Grace is how long a node may be silent; 50 s.
	Grace time.Duration
	// StartupGrace is how long one may take to post its first status; 60 s.
	StartupGrace time.Duration
	// Gap is the longest time between two looks at which the collections may be
	// taken to have been followed all along; two fifths of Grace, at most 20 s.
	Gap time.Duration
	// Threshold is the share of nodes that are not ready from which a zone is
	// partially disrupted; 0.55.
	Threshold float64
	// LargeZone is the number of nodes above which such a zone goes on slowly; 50.
	LargeZone int
	// Rate is nodes tainted per second and zone, 0.1 when nil; SlowRate that of
	// large zones partially disrupted, 0.01 when nil. Zero stops.
	Rate, SlowRate *float64
}

// WithDefaults fills in what is left out.
func (r Rules) WithDefaults() Rules {
	r.Grace = cmp.Or(r.Grace, 50*time.Second)
	r.StartupGrace = cmp.Or(r.StartupGrace, 60*time.Second)
	r.Gap = cmp.Or(r.Gap, min(r.Grace*2/5, 20*time.Second))
	r.Threshold = cmp.Or(r.Threshold, 0.55)
	r.LargeZone = cmp.Or(r.LargeZone, 50)
	if r.Rate == nil {
		r.Rate = new(0.1)
	}
	if r.SlowRate == nil {
		r.SlowRate = new(0.01)
	}
	return r
}

// Validate reports every fault of r together.
func (r Rules) Validate() error {
	r = r.WithDefaults()
	var faults []error
	fault := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("node lifecycle: "+format, args...))
		}
	}
	fault(r.Grace >= time.Second && r.StartupGrace >= time.Second, "grace %v and startup grace %v must be at least 1s", r.Grace, r.StartupGrace)
	fault(r.Gap > 0 && r.Gap <= r.Grace/2, "gap %v is not within 0 and half of the grace %v", r.Gap, r.Grace)
	fault(r.Threshold > 0 && r.Threshold <= 1, "unhealthy zone threshold %v is not above 0 and at most 1", r.Threshold)
	fault(r.LargeZone >= 0, "large zone threshold %d is negative", r.LargeZone)
	fault(*r.Rate >= 0 && *r.Rate <= 1e6 && *r.SlowRate >= 0 && *r.SlowRate <= 1e6, "rates %v and %v are not within 0 and a million a second", *r.Rate, *r.SlowRate)
	return errors.Join(faults...)
}
