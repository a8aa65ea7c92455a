package pleg_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
)

// harness runs a PLEG over a world, inside a bubble of fake time.
type harness struct {
	*pleg.PLEG
	t   *testing.T
	w   *world
	reg *prometheus.Registry
}

// inBubble runs a test with a PLEG that has not started yet: the world can be made first.
func inBubble(t *testing.T, cfg pleg.Config, f func(h *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		w := newWorld()
		p, err := pleg.New(cfg, w, slog.New(slog.NewTextHandler(t.Output(), nil)), reg)
		if err != nil {
			t.Fatal(err)
		}
		f(&harness{PLEG: p, t: t, w: w, reg: reg})
	})
}

// start runs the PLEG until the test ends.
func (h *harness) start() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Errorf("Run() = %v, want nil on a clean stop", err)
		}
	})
	synctest.Wait()
}

// pass lets time pass.
func (h *harness) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// taken are the events that were published since, as "pod kind container", sorted by pod and then
// in their order.
func (h *harness) taken() []string {
	var out []pleg.Event
	for len(h.Events()) > 0 {
		out = append(out, <-h.Events())
	}
	slices.SortStableFunc(out, func(a, b pleg.Event) int {
		return strings.Compare(string(a.PodUID)+" "+a.ContainerID, string(b.PodUID)+" "+b.ContainerID)
	})
	var lines []string
	for _, e := range out {
		lines = append(lines, fmt.Sprintf("%s %v %s", e.PodUID, e.Kind, e.ContainerID))
	}
	return lines
}

func (h *harness) wantEvents(want ...string) {
	h.t.Helper()
	if diff := cmp.Diff(want, h.taken()); diff != "" {
		h.t.Errorf("events (-want +got):\n%s", diff)
	}
}

// count is how often a pod was asked about since the last count.
func (h *harness) count(uid types.UID) int {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	n := h.w.asked[uid]
	h.w.asked[uid] = 0
	return n
}

func (h *harness) lists() int {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	n := h.w.lists
	h.w.lists = 0
	return n
}

// opened is how many streams were opened.
func (h *harness) opened() int {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	return h.w.opened
}

func (h *harness) metric(name string) float64 {
	h.t.Helper()
	families, err := h.reg.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		m := f.GetMetric()[0]
		return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	h.t.Fatalf("no metric %s", name)
	return 0
}

// state is what the cache says of a container.
func (h *harness) state(uid types.UID, id string) string {
	s, err := h.Cache().Get(uid)
	if err != nil {
		return err.Error()
	}
	if c := s.Latest(id); c != nil {
		return c.State.String()
	}
	return "none"
}

// newer asks the cache on the side; the channel gets the answer.
func (h *harness) newer(uid types.UID, at time.Time) <-chan *container.PodStatus {
	out := make(chan *container.PodStatus, 1)
	go func() {
		if s, err := h.Cache().GetNewerThan(h.t.Context(), uid, at); err == nil {
			out <- s
		}
	}()
	synctest.Wait()
	return out
}

func blocked(t *testing.T, c <-chan *container.PodStatus) {
	t.Helper()
	synctest.Wait()
	if len(c) > 0 {
		t.Fatal("GetNewerThan() answered, want it to wait")
	}
}

func unblocked(t *testing.T, c <-chan *container.PodStatus) *container.PodStatus {
	t.Helper()
	synctest.Wait()
	if len(c) == 0 {
		t.Fatal("GetNewerThan() waits, want an answer")
	}
	return <-c
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
