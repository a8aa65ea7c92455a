package pleg

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	rules "github.com/deltaplane/deltaplane/core/pleg"
)

// Config holds the knobs; the zero value of each means its default.
type Config struct {
	// Period is the pause between lists, Threshold how old the last may be before
	// the PLEG is unhealthy: 1 s and 3 min.
	Period, Threshold time.Duration
	// SlowPeriod and SlowThreshold are these while the event stream is trusted: 5 min and 10 min.
	SlowPeriod, SlowThreshold time.Duration
	// Capacity is how many events wait for the reader of Events: 1000. More are kept and delivered
	// later.
	Capacity int
	// Requests is how many pods may wait for a relist on demand: 200.
	Requests int
	// Parallel is how many pods are asked about at once: 8.
	Parallel int
	// StatusLimit is how long one inspection about a pod may take: 10 s. ListLimit is that of a list:
	// 2 min.
	StatusLimit, ListLimit time.Duration
	// Bump is how often the cache as a whole is declared current while the event stream is trusted:
	// 5 s.
	Bump time.Duration
	// StreamTries, StreamPause and StreamRetry are how the event stream is opened
	// again: 5 failures, 500 ms doubling between them, and a retry every 5 min once given up.
	StreamTries              int
	StreamPause, StreamRetry time.Duration
	// NoStream leaves the runtime's event stream alone.
	NoStream bool
}

func (c Config) withDefaults() Config {
	p, s := rules.Standard(), rules.StandardStream()
	c.Period = cmp.Or(c.Period, p.Period)
	c.Threshold = cmp.Or(c.Threshold, p.Threshold)
	c.SlowPeriod = cmp.Or(c.SlowPeriod, p.SlowPeriod)
	c.SlowThreshold = cmp.Or(c.SlowThreshold, p.SlowThreshold)
	c.Capacity = cmp.Or(c.Capacity, 1000)
	c.Requests = cmp.Or(c.Requests, 200)
	c.Parallel = cmp.Or(c.Parallel, 8)
	c.StatusLimit = cmp.Or(c.StatusLimit, 10*time.Second)
	c.ListLimit = cmp.Or(c.ListLimit, 2*time.Minute)
	c.Bump = cmp.Or(c.Bump, 5*time.Second)
	c.StreamTries = cmp.Or(c.StreamTries, s.Tries)
	c.StreamPause = cmp.Or(c.StreamPause, s.Pause)
	c.StreamRetry = cmp.Or(c.StreamRetry, s.Retry)
	return c
}

func (c Config) pace() rules.Pace {
	return rules.Pace{Period: c.Period, Threshold: c.Threshold, SlowPeriod: c.SlowPeriod, SlowThreshold: c.SlowThreshold}
}

func (c Config) stream() rules.StreamRules {
	return rules.StreamRules{Tries: c.StreamTries, Pause: c.StreamPause, Retry: c.StreamRetry}
}

func (c Config) validate() error {
	faults := []error{c.pace().Validate()}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Capacity", int64(c.Capacity)},
		{"Requests", int64(c.Requests)},
		{"Parallel", int64(c.Parallel)},
		{"StatusLimit", int64(c.StatusLimit)},
		{"ListLimit", int64(c.ListLimit)},
		{"Bump", int64(c.Bump)},
		{"StreamTries", int64(c.StreamTries)},
		{"StreamPause", int64(c.StreamPause)},
		{"StreamRetry", int64(c.StreamRetry)},
	} {
		if f.value < 0 {
			faults = append(faults, fmt.Errorf("pleg: %s is negative", f.name))
		}
	}
	return errors.Join(faults...)
}
