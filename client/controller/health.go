package controller

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
)

// health is what keeps a replica from doing its part, by part.
type health struct {
	mu     sync.Mutex
	faults map[string]error
}

func (h *health) set(part string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		delete(h.faults, part)
		return
	}
	if h.faults == nil {
		h.faults = map[string]error{}
	}
	h.faults[part] = err
}

func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []error
	for _, part := range slices.Sorted(maps.Keys(h.faults)) {
		all = append(all, fmt.Errorf("%s: %w", part, h.faults[part]))
	}
	return errors.Join(all...)
}

// Ready is nil while the replica works on keys and can lead the feed, and while it leads,
// follows every collection. Otherwise it says what is wrong.
func (c *Controller) Ready() error {
	err := c.health.err()
	if c.o.Deltas != nil && !c.o.Deltas.Healthy() {
		err = errors.Join(err, errors.New("not connected to the delta log"))
	}
	return err
}

// Health answers a probe: 200 while [Controller.Ready] is nil, else 503 and why.
func (c *Controller) Health() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := c.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
}
