package maintain

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
)

// limitsSet are those for which the metric says that adds are refused.
func limitsSet(t *testing.T, registry *prometheus.Registry) (reasons []string) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "deltaplane_queue_store_refuses_adds" && m.GetGauge().GetValue() == 1 {
				reasons = append(reasons, m.GetLabel()[0].GetValue())
			}
		}
	}
	return reasons
}

// logged is a log in memory.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func TestAStoreAtItsLimitIsOneLineOfTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		m, err := metrics.New(prometheus.NewRegistry(), nil)
		if err != nil {
			t.Fatal(err)
		}
		c := Condition{log: slog.New(slog.NewTextHandler(&log, nil)), gauge: m.Refusing}
		for range 100 { // an add is refused, then something ends, and a check finds room
			c.Refused(engine.ErrFull)
			if err := c.checked(nil); err != nil || !errors.Is(c.Ready(), engine.ErrFull) {
				t.Fatalf("checked = %v, ready = %v", err, c.Ready())
			}
			time.Sleep(3 * time.Second)
		}
		if n := strings.Count(log.String(), "refuses adds"); n != 1 || strings.Contains(log.String(), "again") {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
		time.Sleep(refusedFor)
		if err := c.checked(nil); err != nil || c.Ready() != nil {
			t.Errorf("checked = %v, ready = %v", err, c.Ready())
		}
		if n := strings.Count(log.String(), "takes adds again"); n != 1 {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
		for _, limit := range []error{engine.ErrEviction, engine.ErrFull} { // another limit is another line
			if err := c.checked(limit); err != nil {
				t.Error(err)
			}
		}
		if n := strings.Count(log.String(), "refuses adds"); n != 3 {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
	})
}

func TestADiskWithoutSpaceIsSeenInHealthTheMetricAndOneLine(t *testing.T) {
	t.Parallel()
	var log logged
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := Condition{log: slog.New(slog.NewTextHandler(&log, nil)), gauge: m.Refusing}
	full := fmt.Errorf("%w: %w", engine.ErrUnavailable, engine.ErrNoSpace)
	for range 3 {
		if err := c.checked(full); !errors.Is(err, engine.ErrNoSpace) || !errors.Is(c.Ready(), engine.ErrNoSpace) {
			t.Errorf("checked = %v, ready = %v", err, c.Ready())
		}
	}
	if got := limitsSet(t, registry); !slices.Equal(got, []string{"disk"}) {
		t.Errorf("the metric says %v", got)
	}
	if err := c.checked(nil); err != nil || c.Ready() != nil || len(limitsSet(t, registry)) > 0 {
		t.Errorf("with space again: checked = %v, ready = %v", err, c.Ready())
	}
	if n := strings.Count(log.String(), "store cannot be used"); n != 1 || strings.Count(log.String(), "store is ready") != 1 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}
