package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

const (
	healthEvery = 5 * time.Second
	healthSoon  = time.Second // while the runtime is in error
	healthLimit = 5 * time.Second
	// healthStale is how long a runtime may be slow to answer before it counts as in error.
	healthStale = 20 * time.Second
)

// errNotAsked stands until the runtime has answered, or has not, for the first time.
var errNotAsked = errors.New("the runtime has not been asked yet")

// conditions asks a runtime how it is: kuberuntime.Manager.
type conditions interface {
	Status(ctx context.Context) (kuberuntime.Conditions, error)
}

// health asks the runtime how it is, again and again.
type health struct {
	rt      conditions
	check   func(context.Context) (cri.Version, error)
	log     *slog.Logger
	changed func() // told when the runtime turned well or not

	mu      sync.Mutex  // guards what follows
	version cri.Version // zero while it is not known
	name    string      // of the last version known: container IDs must not change while the runtime is away
	last    kuberuntime.Conditions
	at      time.Time // of the last answer; zero before the first
	fault   error
}

func newHealth(rt conditions, check func(context.Context) (cri.Version, error), log *slog.Logger) *health {
	return &health{rt: rt, check: check, log: log, changed: func() {}, fault: errNotAsked}
}

// err is why the runtime cannot be worked with; nil when it can.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fault
}

// network is nil when the runtime has a network for pods, and says why it has none.
func (h *health) network() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fault != nil || h.last.NetworkReady {
		return nil // a runtime in error says nothing of its network
	}
	return errors.New(h.last.NetworkReadyMessage)
}

// run asks until ctx ends.
func (h *health) run(ctx context.Context) {
	for {
		fault := h.look(ctx)
		if ctx.Err() != nil {
			return
		}
		wait := healthEvery
		if fault != nil {
			wait = healthSoon
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// look asks once, and judges.
func (h *health) look(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	v, err := h.known(asked)
	var c kuberuntime.Conditions
	if err == nil {
		c, err = h.rt.Status(asked)
	}
	now := time.Now()

	h.mu.Lock()
	was := h.fault
	h.version = v
	h.name = cmp.Or(v.Name, h.name)
	switch {
	case err == nil && c.Ready:
		h.last, h.at, h.fault = c, now, nil
	case err == nil:
		h.last, h.at, h.fault = c, now, fmt.Errorf("the runtime is not ready: %s", c.ReadyMessage)
	case cri.IsUnavailable(err), errors.Is(err, cri.ErrVersion), now.Sub(h.at) > healthStale:
		// A refused connection is certain; an answer that is late is not yet.
		h.version = cri.Version{} // what comes back may be another
		h.fault = fmt.Errorf("the runtime does not answer: %w", err)
	}
	fault := h.fault
	h.mu.Unlock()

	if (was == nil) != (fault == nil) && ctx.Err() == nil {
		if fault == nil {
			h.log.Info("runtime is ready")
		} else {
			h.log.Warn("runtime is in error", telemetry.Err(fault))
		}
		h.changed()
	}
	return fault
}

// known is the runtime's version, asked for once while it is well.
func (h *health) known(ctx context.Context) (cri.Version, error) {
	h.mu.Lock()
	v := h.version
	h.mu.Unlock()
	if v != (cri.Version{}) {
		return v, nil
	}
	return h.check(ctx)
}

// runtimeVersion is the runtime's name and version as a node tells them; empty while they are not
// known.
func (h *health) runtimeVersion() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.version == (cri.Version{}) {
		return ""
	}
	return h.version.Name + "://" + h.version.Version
}

// runtimeName is the runtime's name, as last known: the scheme of its containers' IDs.
func (h *health) runtimeName() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.name
}
