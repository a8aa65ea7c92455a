package maintain

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// Condition is what is known of the store: whether it can be used, and whether
// it refuses adds all the same. A change is one line of the log.
type Condition struct {
	log   *slog.Logger
	gauge *prometheus.GaugeVec // by reason

	mu    sync.Mutex
	err   error     // why the store cannot be used; guarded by mu, as is all that follows
	part  error     // why some of it cannot
	limit error     // why it refuses adds
	seen  time.Time // when it did last
}

// NewCondition is a condition that was not reached yet; the gauge is set by reason.
func NewCondition(log *slog.Logger, gauge *prometheus.GaugeVec) *Condition {
	return &Condition{log: log, gauge: gauge, err: errNotReached}
}

var errNotReached = fmt.Errorf("%w: not reached yet", engine.ErrUnavailable)

// refusedFor is how long a store must have refused nothing before it counts as one
// that takes adds: at its limit it alternates between both.
const refusedFor = 10 * time.Second

// checked takes in what a check found, and returns why the store cannot be used.
func (c *Condition) checked(err error) error {
	var part error
	if errors.Is(err, engine.ErrPartial) {
		part, err = err, nil
	} else if transaction.IsLimited(err) {
		c.Refused(err)
		err = nil
	} else if err == nil {
		c.accepts(time.Now())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was, whole := c.err, c.part == nil
	c.err, c.part = err, part
	c.setGauges()
	switch {
	case part != nil && whole:
		c.log.Warn("part of the store cannot be reached; the rest serves", telemetry.Err(part))
	case part == nil && !whole && err == nil:
		c.log.Info("the whole store is reached again")
	}
	switch {
	case err != nil && (was == nil || errors.Is(was, errNotReached)):
		c.log.Warn("store cannot be used", telemetry.Err(err))
	case err == nil && was != nil:
		c.log.Info("store is ready")
	}
	return err
}

// Refused takes in that an add was refused, or would be.
func (c *Condition) Refused(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = time.Now()
	if c.limit == nil || errors.Is(c.limit, engine.ErrFull) != errors.Is(err, engine.ErrFull) {
		c.log.Warn("store refuses adds; what it holds is worked off", telemetry.Err(err))
	}
	c.limit = err
	c.setGauges()
}

// accepts takes in that the store was found without a limit.
func (c *Condition) accepts(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit == nil || now.Sub(c.seen) < refusedFor {
		return
	}
	c.limit = nil
	c.log.Info("store takes adds again")
	c.setGauges()
}

// partial says that part of the store is not reached.
func (c *Condition) partial() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.part != nil
}

// Limit is why the store refuses adds, nil while it does not.
func (c *Condition) Limit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit
}

// setGauges sets the metric. Mu must be held.
func (c *Condition) setGauges() {
	set := func(reason string, on bool) {
		v := 0.0
		if on {
			v = 1
		}
		c.gauge.WithLabelValues(reason).Set(v)
	}
	for reason, is := range map[string]error{"full": engine.ErrFull, "evicts": engine.ErrEviction} {
		set(reason, errors.Is(c.limit, is))
	}
	set("disk", errors.Is(c.err, engine.ErrNoSpace))
}

// Ready is nil when the store can be used, else why not. A store that refuses
// adds is ready, and says so.
func (c *Condition) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil && c.limit != nil {
		return telemetry.Degraded(fmt.Errorf("adds are refused, everything else goes on: %w", c.limit))
	}
	if c.err == nil && c.part != nil {
		return telemetry.Degraded(c.part)
	}
	return c.err
}
