package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
)

const (
	running = container.Running
	exited  = container.Exited
	unknown = container.Unknown
)

var noStream = pleg.Config{NoStream: true}

// Upstream's TestRelisting.
func TestAListReportsEachContainerThatStartedDiedOrWasRemoved(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", states{"c1": exited, "c2": running, "c3": unknown}, nil)
		h.w.put("4567", states{"c1": exited}, nil)
		h.start()
		h.wantEvents("1234 ContainerDied c1", "1234 ContainerStarted c2", "4567 ContainerDied c1")
		h.pass(time.Second)
		h.wantEvents()
		h.w.put("1234", states{"c2": exited, "c3": running}, nil)
		h.w.put("4567", states{"c4": running}, nil)
		h.pass(time.Second)
		h.wantEvents("1234 ContainerRemoved c1", "1234 ContainerDied c2", "1234 ContainerStarted c3",
			"4567 ContainerRemoved c1", "4567 ContainerStarted c4")
	})
}

// Upstream's TestRelistingWithSandboxes; a sandbox is ready or not, and never unknown.
func TestSandboxesAreReportedLikeContainers(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", nil, map[string]bool{"s1": false, "s2": true})
		h.w.put("4567", nil, map[string]bool{"s1": false})
		h.start()
		h.wantEvents("1234 ContainerDied s1", "1234 ContainerStarted s2", "4567 ContainerDied s1")
		h.pass(time.Second)
		h.wantEvents()
		h.w.put("1234", nil, map[string]bool{"s2": false, "s3": true})
		h.w.put("4567", nil, map[string]bool{"s4": true})
		h.pass(time.Second)
		h.wantEvents("1234 ContainerRemoved s1", "1234 ContainerDied s2", "1234 ContainerStarted s3",
			"4567 ContainerRemoved s1", "4567 ContainerStarted s4")
	})
}

// Upstream's TestEventChannelFull, where the fifth event is lost.
func TestEventsBeyondAFullChannelAllArrive(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{NoStream: true, Capacity: 4}, func(h *harness) {
		h.w.put("1234", states{"c1": exited, "c2": running, "c3": unknown}, nil)
		h.w.put("4567", states{"c1": exited}, nil)
		h.start()
		h.taken()
		h.w.put("1234", states{"c2": exited, "c3": running}, nil)
		h.w.put("4567", states{"c4": running}, nil)
		h.pass(time.Second)
		if n := len(h.Events()); n != 4 {
			t.Fatalf("%d events wait, want the 4 there is room for", n)
		}
		if n := h.metric("kubelet_pleg_discard_events"); n < 1 {
			t.Errorf("kubelet_pleg_discard_events = %v, want at least 1", n)
		}
		got := h.taken()
		h.pass(time.Second)
		got = append(got, h.taken()...)
		if len(got) != 5 {
			t.Errorf("events %q, want 5", got)
		}
		h.pass(10 * time.Second)
		h.wantEvents()
	})
}

func TestAPodWithMoreEventsThanTheChannelHoldsIsReportedInFull(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{NoStream: true, Capacity: 1}, func(h *harness) {
		h.w.put("1234", states{"c1": running, "c2": running, "c3": running}, nil)
		h.start()
		h.wantEvents("1234 ContainerStarted c1")
		h.w.do(func() { delete(h.w.pods, "1234") })
		var got []string
		for range 20 {
			h.pass(time.Second)
			got = append(got, h.taken()...)
		}
		want := []string{
			"1234 ContainerStarted c2", "1234 ContainerStarted c3",
			"1234 ContainerDied c1", "1234 ContainerRemoved c1", "1234 ContainerDied c2", "1234 ContainerRemoved c2",
			"1234 ContainerDied c3", "1234 ContainerRemoved c3",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("events %q\nwant   %q", got, want)
		}
	})
}

// Upstream's TestDetectingContainerDeaths.
func TestAContainerThatVanishedBetweenTwoListsDied(t *testing.T) {
	t.Parallel()
	for _, before := range []int{1, 3} {
		t.Run(fmt.Sprintf("containers, after %d lists", before), func(t *testing.T) {
			t.Parallel()
			inBubble(t, noStream, func(h *harness) {
				h.w.put("1234", states{"c1": running, "c2": running, "c3": exited}, nil)
				h.start()
				h.pass(time.Duration(before-1) * time.Second)
				h.taken()
				h.w.put("1234", states{"c1": running}, nil)
				h.pass(time.Second)
				h.wantEvents("1234 ContainerDied c2", "1234 ContainerRemoved c2", "1234 ContainerRemoved c3")
			})
		})
		t.Run(fmt.Sprintf("pods, after %d lists", before), func(t *testing.T) {
			t.Parallel()
			inBubble(t, noStream, func(h *harness) {
				h.w.put("1234", states{"c2": running}, nil)
				h.start()
				h.pass(time.Duration(before-1) * time.Second)
				h.taken()
				h.w.do(func() { delete(h.w.pods, "1234") })
				h.pass(time.Second)
				h.wantEvents("1234 ContainerDied c2", "1234 ContainerRemoved c2")
			})
		})
	}
}

func TestAFailedListChangesNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", states{"c1": running}, nil)
		h.start()
		h.taken()
		waits := h.newer("1234", time.Now())
		seen := h.metric("kubelet_pleg_last_seen_seconds")
		h.w.do(func() { h.w.listErr = errors.New("away"); delete(h.w.pods, "1234") })
		h.pass(time.Minute)
		h.wantEvents()
		blocked(t, waits)
		if got := h.metric("kubelet_pleg_last_seen_seconds"); got != seen {
			t.Errorf("kubelet_pleg_last_seen_seconds moved from %v to %v while lists failed", seen, got)
		}
		h.w.do(func() { h.w.listErr = nil })
		h.pass(time.Second)
		h.wantEvents("1234 ContainerDied c1", "1234 ContainerRemoved c1")
		unblocked(t, waits)
	})
}

func TestThePeriodCountsFromTheEndOfTheLastList(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.listDelay = func() time.Duration { return 4 * time.Second }
		h.start()
		h.pass(49 * time.Second)
		if n := h.lists(); n != 10 {
			t.Errorf("%d lists in 49 s, want 10: 4 s each and 1 s between them, the first at once", n)
		}
		if n := h.metric("kubelet_pleg_relist_interval_seconds"); n != 9 {
			t.Errorf("%v intervals between 10 lists", n)
		}
	})
}

// Upstream's TestHealthy.
func TestHealthNeedsAListWithinThreeMinutes(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.listErr = errors.New("away")
		if h.Healthy() == nil {
			t.Error("healthy before it ran")
		}
		h.start()
		h.pass(10 * time.Minute)
		if h.Healthy() == nil {
			t.Error("healthy without a list that succeeded")
		}
		h.w.do(func() { h.w.listErr = nil })
		h.pass(time.Minute)
		if err := h.Healthy(); err != nil {
			t.Errorf("Healthy() = %v", err)
		}
		h.w.do(func() { h.w.listErr = errors.New("away") })
		h.pass(3*time.Minute - time.Second)
		if err := h.Healthy(); err != nil {
			t.Errorf("Healthy() = %v within the threshold", err)
		}
		h.pass(2 * time.Second)
		if h.Healthy() == nil {
			t.Error("healthy 3 min after the last list")
		}
	})
}

func TestAListThatHangsIsUnhealthyAndIsAbandoned(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.start()
		h.w.do(func() { h.w.listDelay = func() time.Duration { return time.Hour } })
		h.pass(3*time.Minute + 2*time.Second)
		if h.Healthy() == nil {
			t.Error("healthy while the list hangs")
		}
		h.w.do(func() { h.w.listDelay = func() time.Duration { return 0 } })
		h.pass(2 * time.Minute)
		if err := h.Healthy(); err != nil {
			t.Errorf("Healthy() = %v after the hung list was given up", err)
		}
	})
}

// Upstream's TestRunningPodAndContainerCount.
func TestRunningPodsAndContainersAreCountedByState(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", states{"c1": running, "c2": unknown, "c3": unknown, "c4": 77, "c5": container.Created}, map[string]bool{"s1": true, "s2": true, "s3": false})
		h.w.put("4567", states{"d1": exited}, map[string]bool{"t1": true, "t2": false})
		h.start()
		h.pass(time.Second)
		h.wantGauges(3, map[string]float64{"running": 1, "unknown": 3, "created": 1, "exited": 1})
		h.w.put("1234", states{"c1": exited}, map[string]bool{"s1": false})
		h.w.do(func() { delete(h.w.pods, "4567") })
		h.pass(time.Second)
		h.wantGauges(0, map[string]float64{"running": 0, "unknown": 0, "created": 0, "exited": 1})
	})
}

func (h *harness) wantGauges(pods float64, containers map[string]float64) {
	h.t.Helper()
	if got := h.metric("kubelet_running_pods"); got != pods {
		h.t.Errorf("kubelet_running_pods = %v, want %v", got, pods)
	}
	families, err := h.reg.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "kubelet_running_containers" {
			continue
		}
		for _, m := range f.GetMetric() {
			state := m.GetLabel()[0].GetValue()
			if want, ok := containers[state]; !ok || m.GetGauge().GetValue() != want {
				h.t.Errorf("kubelet_running_containers{container_state=%q} = %v, want %v", state, m.GetGauge().GetValue(), want)
			}
		}
		if len(f.GetMetric()) != len(containers) {
			h.t.Errorf("%d states counted, want %d", len(f.GetMetric()), len(containers))
		}
	}
}

// Upstream's TestRelistIPChange and TestEventedPLEG_getPodIPs.
func TestAPodKeepsItsAddressesUnlessAReadySandboxSaysOtherwise(t *testing.T) {
	t.Parallel()
	old := []string{"192.168.0.10", "192.168.0.1"}
	for _, c := range []struct {
		name      string
		before    []string
		after     []string
		sandboxes map[string]bool
		want      []string
	}{
		{"the new status has addresses", old, []string{"10.0.0.10", "10.23.0.1"}, nil, []string{"10.0.0.10", "10.23.0.1"}},
		{"none, and a sandbox is ready", old, nil, map[string]bool{"s1": false, "s2": true}, nil},
		{"none now and before", nil, nil, nil, nil},
		{"none, and no sandbox is ready", old, nil, map[string]bool{"s1": false, "s2": false}, old},
		{"none, and no sandbox at all", old, nil, nil, old},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, noStream, func(h *harness) {
				h.w.put("1234", states{"c1": running}, nil)
				h.w.pods["1234"].ips = c.before
				h.start()
				// A failed inspection in between does not make it forget.
				h.w.do(func() { h.w.statusErr["1234"] = errors.New("away") })
				h.RequestReinspect("1234")
				h.pass(time.Second)
				if _, err := h.Cache().Get("1234"); err == nil {
					t.Error("Get() after a failed inspection: no error")
				}
				h.w.put("1234", states{"c1": exited}, c.sandboxes)
				h.w.do(func() { h.w.pods["1234"].ips = c.after; delete(h.w.statusErr, "1234") })
				h.pass(time.Second)
				got, err := h.Cache().Get("1234")
				if err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(got.IPs) != fmt.Sprint(c.want) {
					t.Errorf("addresses %v, want %v", got.IPs, c.want)
				}
			})
		})
	}
}

func TestAPodThatIsListedTwiceIsOnePod(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", states{"c1": running}, map[string]bool{"s1": true})
		twice := &listedTwice{h.w}
		p, err := pleg.New(noStream, twice, discard(), nil)
		if err != nil {
			t.Fatal(err)
		}
		h.PLEG = p
		h.start()
		h.pass(5 * time.Second)
		h.wantEvents("1234 ContainerStarted c1", "1234 ContainerStarted s1")
	})
}

func TestNewNamesEveryWrongKnob(t *testing.T) {
	t.Parallel()
	_, err := pleg.New(pleg.Config{Period: -1, Capacity: -1, StatusLimit: -1}, newWorld(), discard(), nil)
	if err == nil {
		t.Fatal("New() = nil error")
	}
	for _, want := range []string{"period", "Capacity", "StatusLimit"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want it to name %s", err, want)
		}
	}
}

// failing is a runtime whose containers ended with 3.
type failing struct{ *world }

func (f *failing) PodStatus(ctx context.Context, uid types.UID, namespace, name string) (*container.PodStatus, error) {
	s, err := f.world.PodStatus(ctx, uid, namespace, name)
	for i := range s.Containers {
		s.Containers[i].ExitCode = 3
	}
	return s, err
}

func TestTheExitCodeOfADeathIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put("1234", states{"c1": exited, "c2": running}, nil)
		var out strings.Builder
		p, err := pleg.New(noStream, &failing{w}, slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), nil)
		if err != nil {
			t.Fatal(err)
		}
		h := &harness{PLEG: p, t: t, w: w}
		h.start()
		h.wantEvents("1234 ContainerDied c1", "1234 ContainerStarted c2")
		if got := out.String(); strings.Count(got, "exit_code=3") != 1 || !strings.Contains(got, "container=c1") {
			t.Errorf("the log is %q, want c1's exit code in it once", got)
		}
	})
}
