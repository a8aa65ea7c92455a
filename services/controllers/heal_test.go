package controllers

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// sweeps sums the rounds over every key that were made for a reason.
func sweeps(t *testing.T, reason string, of ...*Service) int {
	t.Helper()
	n := 0
	for _, s := range of {
		families, err := s.deps.Telemetry.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "deltaplane_controllers_sweeps_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				labels := prometheus.Labels{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if labels["reason"] == reason && labels["result"] == "success" {
					n += int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return n
}

func TestTheReplicasTogetherMakeOneResyncInEachPeriod(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	const period = 400 * time.Millisecond
	often := func(c *Config) { c.Resync = period }
	a, _ := f.controllers("a", often)
	b, _ := f.controllers("b", often)
	f.eventually("both are ready", func() string {
		for _, s := range []*Service{a, b} {
			if r := s.Ready(t.Context()); !r.Ready {
				return fmt.Sprint(r.Checks)
			}
		}
		return ""
	})
	// A replica that starts adds the key, which may start another round: both are to be over.
	started := sweeps(t, client.SweepResync, a, b)
	f.eventually("two resyncs", func() string {
		if n := sweeps(t, client.SweepResync, a, b) - started; n < 2 {
			return fmt.Sprint(n)
		}
		return ""
	})
	began, before := time.Now(), sweeps(t, client.SweepResync, a, b)
	f.eventually("more of them", func() string {
		if n := sweeps(t, client.SweepResync, a, b) - before; n < 4 {
			return fmt.Sprint(n)
		}
		return ""
	})
	made := sweeps(t, client.SweepResync, a, b) - before
	if most := int(time.Since(began)/period) + 1; made > most {
		t.Errorf("%d rounds in %v: want at most %d, one in each %v", made, time.Since(began), most, period)
	}
}

func TestAQueueReplicaThatRestartsOnRedisLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFlowWith(t, embeddedtest.Redis(t).URL())
	a, _ := f.controllers("a", nil)
	f.createJob("slow", 2, 6, "300ms")
	f.eventually("pods", func() string {
		if len(f.pods("slow")) == 0 {
			return "none yet"
		}
		return ""
	})
	f.eventually("the first start was healed", func() string {
		if sweeps(t, client.SweepGeneration, a) == 0 {
			return "not yet"
		}
		return ""
	})
	before := sweeps(t, client.SweepGeneration, a)
	f.stopQueue()
	f.createJob("born-meanwhile", 1, 1, "50ms")
	f.startQueue()
	f.eventually("slow", func() string { return complete(f.job("slow")) })
	f.eventually("born-meanwhile", func() string { return complete(f.job("born-meanwhile")) })
	if n := len(f.pods("slow")); n != 6 {
		t.Errorf("%d pods, want exactly 6", n)
	}
	if n := sweeps(t, client.SweepGeneration, a) - before; n != 0 {
		t.Errorf("%d rounds over every key, want none: the store is the same", n)
	}
}
