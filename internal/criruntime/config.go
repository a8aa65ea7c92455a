package criruntime

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Config is how a simulated runtime behaves. The zero value is a runtime in memory.
type Config struct {
	// Dir holds the journal by which everything survives the process. It is made when it is
	// missing, and belongs to one process at a time. Empty keeps all in memory.
	Dir string
	// StartDelay is how long StartContainer takes; 0 by default.
	StartDelay time.Duration
	// StopDelay is how long a container takes to end on SIGTERM; 20 ms by default.
	StopDelay time.Duration
	// PullDelay is how long it takes to pull an image that is not slow; 50 ms by default.
	PullDelay time.Duration
	// CompactAt is how many bytes the journal grows by at least before it is rewritten; it
	// then has to double. 8 MiB by default.
	CompactAt int64
	// NoEvents makes GetContainerEvents Unimplemented, as in containerd 1.6.
	NoEvents bool
	// Log is notified of what an operator would act on; nil discards it.
	Log *slog.Logger
}

const (
	defaultStopDelay = 20 * time.Millisecond
	defaultPullDelay = 50 * time.Millisecond
	defaultCompactAt = 8 << 20
)

func (c Config) withDefaults() Config {
	c.StopDelay = cmp.Or(c.StopDelay, defaultStopDelay)
	c.PullDelay = cmp.Or(c.PullDelay, defaultPullDelay)
	c.CompactAt = cmp.Or(c.CompactAt, defaultCompactAt)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	for _, d := range []struct {
		name string
		time.Duration
	}{{"start delay", c.StartDelay}, {"stop delay", c.StopDelay}, {"pull delay", c.PullDelay}} {
		if d.Duration < 0 {
			faults = append(faults, fmt.Errorf("%s is %s: want 0 or more", d.name, d.Duration))
		}
	}
	if c.CompactAt < 0 {
		faults = append(faults, fmt.Errorf("compact at is %d: want 0 or more", c.CompactAt))
	}
	return errors.Join(faults...)
}
