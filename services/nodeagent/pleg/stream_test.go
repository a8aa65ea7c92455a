package pleg_test

import (
	"errors"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
)

// streamed runs a world with pod 1234, container c1 and sandbox s1, and a stream that has proved
// itself: lists are slow.
func streamed(t *testing.T, f func(h *harness)) {
	t.Helper()
	inBubble(t, pleg.Config{}, func(h *harness) {
		h.w.streams = true
		h.w.put("1234", states{"c1": running}, map[string]bool{"s1": true})
		h.start()
		h.w.tell("1234", "c1", container.EventStarted, true)
		h.pass(10 * time.Second)
		h.taken()
		h.count("1234")
		h.lists()
		f(h)
	})
}

func TestListsAreRareWhileTheStreamWorks(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.pass(5 * time.Minute)
		if n := h.lists(); n != 1 {
			t.Errorf("%d lists in 5 min, want 1", n)
		}
		if err := h.Healthy(); err != nil {
			t.Errorf("Healthy() = %v", err)
		}
		if n := h.metric("kubelet_evented_pleg_connection_success_count"); n != 1 {
			t.Errorf("%v streams counted", n)
		}
	})
}

func TestAnEventIsPublishedAtOnceWithItsStatus(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		begun := time.Now()
		step := func(id string, kind container.EventKind, change func(), cached string, want ...string) {
			t.Helper()
			h.w.do(change)
			h.w.tell("1234", id, kind, true)
			h.pass(time.Millisecond)
			h.wantEvents(want...)
			if got := h.state("1234", id); got != cached {
				t.Errorf("after %v the cache has %s %s, want %s", kind, id, got, cached)
			}
		}
		p := h.w.pods["1234"]
		step("c2", container.EventCreated, func() { p.containers["c2"] = container.Created }, "created")
		step("c2", container.EventStarted, func() { p.containers["c2"] = running }, "running", "1234 ContainerStarted c2")
		step("c2", container.EventStarted, func() {}, "running")
		step("c2", container.EventStopped, func() { p.containers["c2"] = exited }, "exited", "1234 ContainerDied c2")
		step("c2", container.EventDeleted, func() { delete(p.containers, "c2") }, "none", "1234 ContainerRemoved c2")
		step("c1", container.EventDeleted, func() { delete(p.containers, "c1") }, "none", "1234 ContainerDied c1", "1234 ContainerRemoved c1")
		if n := h.count("1234"); n != 0 {
			t.Errorf("the runtime was asked %d times although every event brought a status", n)
		}
		if took := time.Since(begun); took > 10*time.Millisecond || h.lists() > 0 {
			t.Errorf("took %v, or lists", took)
		}
	})
}

func TestAPodWhoseSandboxWasDeletedLeavesTheCache(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.w.do(func() { h.w.pods["1234"].containers = nil })
		h.w.tell("1234", "c1", container.EventDeleted, true)
		h.pass(0)
		h.taken()
		h.w.do(func() { delete(h.w.pods, "1234") })
		h.w.tell("", "s1", container.EventDeleted, false) // a runtime that knows no sandbox cannot say whose it was
		h.pass(0)
		h.wantEvents("1234 ContainerDied s1", "1234 ContainerRemoved s1")
		if s, err := h.Cache().Get("1234"); err != nil || len(s.Sandboxes) > 0 {
			t.Errorf("Get() = %+v, %v", s, err)
		}
		if n := h.count("1234"); n != 0 {
			t.Errorf("a pod that is gone was asked about %d times", n)
		}
	})
}

func TestAnOldSandboxThatIsDeletedLeavesTheNewOneInTheCache(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		p := h.w.pods["1234"]
		h.w.do(func() { p.sandboxes["s1"] = false; p.sandboxes["s2"] = true })
		h.w.tell("1234", "s2", container.EventStarted, true)
		h.pass(0)
		h.w.do(func() { delete(p.sandboxes, "s1") })
		h.w.tell("1234", "s1", container.EventDeleted, false)
		h.pass(0)
		h.wantEvents("1234 ContainerDied s1", "1234 ContainerRemoved s1", "1234 ContainerStarted s2")
		if s, err := h.Cache().Get("1234"); err != nil || len(s.Sandboxes) != 1 {
			t.Errorf("Get() = %+v, %v", s, err)
		}
	})
}

func TestAnEventWithoutAStatusMakesThePodBeInspected(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.w.do(func() { h.w.pods["1234"].containers["c1"] = exited })
		h.w.tell("1234", "c1", container.EventStopped, false)
		h.pass(0)
		h.wantEvents("1234 ContainerDied c1")
		if got := h.state("1234", "c1"); got != "exited" || h.count("1234") != 1 {
			t.Errorf("the cache has c1 %s", got)
		}
		h.w.do(func() { h.w.pods["1234"].containers["c9"] = running })
		h.w.tell("1234", "c9", container.EventUnknown, false)
		h.pass(0)
		h.wantEvents("1234 ContainerStarted c9")
		h.w.tell("", "nobody's", container.EventStarted, false)
		h.pass(2 * time.Second)
		if n := h.lists(); n != 1 {
			t.Errorf("%d lists after an event of nobody knows whom, want 1", n)
		}
	})
}

func TestEventsThatComeLateOrTwiceOrOutOfOrderContradictNothing(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		p := h.w.pods["1234"]
		h.w.do(func() { p.containers["c2"] = exited })
		h.w.tell("1234", "c2", container.EventStopped, true)
		h.w.tell("1234", "c2", container.EventStarted, true)
		h.w.tell("1234", "c2", container.EventCreated, false)
		h.pass(0)
		h.wantEvents("1234 ContainerDied c2")
		h.w.do(func() { delete(p.containers, "c2") })
		h.w.tell("1234", "c2", container.EventDeleted, true)
		h.w.tell("1234", "c2", container.EventStopped, false)
		h.w.tell("1234", "c2", container.EventDeleted, true)
		h.pass(0)
		h.wantEvents("1234 ContainerRemoved c2")
		if got := h.state("1234", "c2"); got != "none" {
			t.Errorf("the cache has c2 %s", got)
		}
	})
}

func TestAStatusOlderThanWhatIsKnownIsNotUsed(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		old := container.Event{
			ContainerID: "c1", SandboxID: "s1", PodUID: "1234", Kind: container.EventStarted,
			At: time.Now().Add(-time.Minute), Status: &container.PodStatus{UID: "1234"},
		}
		ahead := old
		ahead.Kind, ahead.At = container.EventStopped, time.Now().Add(time.Hour)
		h.w.hear(old)
		h.pass(0)
		h.wantEvents()
		if got := h.state("1234", "c1"); got != "running" {
			t.Errorf("the cache has c1 %s", got)
		}
		// A status from the future that lacks what is known is asked for again.
		h.w.do(func() { h.w.pods["1234"].containers["c1"] = exited })
		h.w.hear(ahead)
		h.pass(0)
		h.wantEvents("1234 ContainerDied c1")
		if got := h.state("1234", "c1"); got != "exited" || h.count("1234") != 1 {
			t.Errorf("the cache has c1 %s", got)
		}
	})
}

func TestAStreamThatFailsForcesAListAndIsOpenedAgain(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.pass(time.Minute)
		h.w.do(func() { h.w.pods["1234"].containers["c1"] = exited })
		h.w.dead <- errors.New("broken")
		h.pass(0)
		h.wantEvents("1234 ContainerDied c1")
		h.lists()
		h.pass(10 * time.Second) // the stream is there again, and has told nothing yet
		if n := h.lists(); n != 10 || h.opened() != 2 {
			t.Errorf("%d lists in 10 s, %d streams; want a list every second until the second stream tells something", n, h.opened())
		}
		h.w.tell("1234", "c1", container.EventStopped, true)
		h.pass(2 * time.Second)
		h.lists()
		h.pass(time.Minute)
		if n := h.lists(); n != 0 {
			t.Errorf("%d lists in a minute with a stream", n)
		}
		if n := h.metric("kubelet_evented_pleg_connection_error_count"); n != 1 {
			t.Errorf("%v errors counted", n)
		}
	})
}

func TestAfterFiveFailuresListsGoOnAloneAndTheStreamIsTriedEveryFiveMinutes(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{}, func(h *harness) {
		h.w.streams = true
		h.start()
		for range 5 {
			h.w.dead <- errors.New("broken")
			h.pass(10 * time.Second)
		}
		if n := h.opened(); n != 5 {
			t.Fatalf("%d streams were opened, want 5", n)
		}
		h.lists()
		h.pass(4 * time.Minute)
		if n := h.lists(); n != 240 || h.opened() != 5 {
			t.Errorf("%d lists in 4 min, %d streams, want 240 and 5", n, h.opened())
		}
		h.pass(time.Minute)
		if n := h.opened(); n != 6 {
			t.Errorf("%d streams were opened, want one more after 5 min", n)
		}
		h.w.tell("", "c", container.EventDeleted, false)
		h.pass(2 * time.Second)
		h.lists()
		h.pass(time.Minute)
		if n := h.lists(); n != 0 {
			t.Errorf("%d lists in a minute although the stream is back", n)
		}
	})
}

func TestARuntimeWithoutAStreamIsListedEverySecond(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{}, func(h *harness) {
		h.start()
		h.pass(time.Minute)
		if n := h.lists(); n != 61 {
			t.Errorf("%d lists in a minute, want 61", n)
		}
		if n := h.metric("kubelet_evented_pleg_connection_error_count"); n != 0 {
			t.Errorf("%v errors counted for a stream that is not there", n)
		}
		h.w.do(func() { h.w.streams = true }) // the runtime was upgraded
		h.pass(5 * time.Minute)
		if n := h.opened(); n != 1 {
			t.Errorf("%d streams were opened", n)
		}
	})
}

func TestASilentStreamIsNotTrusted(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{}, func(h *harness) {
		h.w.streams = true
		h.start()
		h.pass(time.Minute)
		if n := h.lists(); n != 61 {
			t.Errorf("%d lists in a minute with a mute stream, want 61", n)
		}
	})
	streamed(t, func(h *harness) {
		h.w.do(func() { h.w.pods["1234"].containers["c1"] = exited }) // and not a word of it
		h.pass(5 * time.Minute)
		h.wantEvents("1234 ContainerDied c1")
		h.lists()
		h.pass(10 * time.Second)
		if n := h.lists(); n != 10 {
			t.Errorf("%d lists in 10 s after the stream kept a change quiet, want 10", n)
		}
	})
}

func TestEventsBeyondTheBufferForceAList(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{Capacity: 5}, func(h *harness) {
		h.w.streams = true
		h.w.put("1234", states{"c1": running}, nil)
		h.start()
		h.w.tell("1234", "c1", container.EventStarted, true)
		h.pass(2 * time.Second)
		h.taken()
		h.lists()
		for range 20 { // the loop has no chance to run in between
			h.w.hear(container.Event{ContainerID: "c1", PodUID: "1234", Kind: container.EventStarted})
		}
		h.w.do(func() { h.w.pods["1234"].containers["c1"] = exited }) // its event was among the lost
		h.pass(time.Second)
		h.wantEvents("1234 ContainerDied c1")
		if n := h.lists(); n < 1 {
			t.Error("no list was forced")
		}
	})
}

func TestAReaderThatWaitsWhileListsAreRareIsServedAtOnce(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		begun := time.Now()
		waits := h.newer("1234", begun.Add(-time.Nanosecond))
		if s := unblocked(t, waits); !s.At.Equal(begun) {
			t.Errorf("the status is of %v, want %v", s.At, begun)
		}
		unknown := h.newer("nobody", begun.Add(-time.Nanosecond))
		if s := unblocked(t, unknown); len(s.Containers) > 0 {
			t.Errorf("a pod that is not there has %v", s.Containers)
		}
		// The answer of this very moment is not newer: the next tick asks again.
		waits = h.newer("1234", time.Now())
		blocked(t, waits)
		h.pass(time.Second)
		unblocked(t, waits)
	})
}

func TestTheCacheAsAWholeIsDeclaredCurrentEveryFiveSeconds(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.count("1234")
		begun := time.Now()
		h.pass(7 * time.Second)
		waits := h.newer("1234", begun)
		unblocked(t, waits)
		if n := h.count("1234"); n != 0 {
			t.Errorf("a reader of a declared time made %d inspections", n)
		}
	})
}

// Upstream's TestHealthyEventedPLEG calls a full channel unhealthy, and an unhealthy PLEG is not
// read from.
func TestAFullChannelIsNotUnhealthy(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{Capacity: 2}, func(h *harness) {
		h.w.put("1234", states{"c1": running, "c2": running, "c3": running}, nil)
		h.start()
		h.pass(10 * time.Minute)
		if err := h.Healthy(); err != nil {
			t.Errorf("Healthy() = %v", err)
		}
	})
}

// Upstream's TestUpdateRunningPodMetric.
func TestEventsCorrectTheCountsOfRunningContainers(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.wantGauges(1, map[string]float64{"running": 1, "unknown": 0, "created": 0, "exited": 0})
		h.w.do(func() { h.w.pods["1234"].containers["c1"] = exited; h.w.pods["1234"].sandboxes["s1"] = false })
		h.w.tell("1234", "c1", container.EventStopped, true)
		h.pass(time.Second)
		h.wantGauges(0, map[string]float64{"running": 0, "unknown": 0, "created": 0, "exited": 1})
	})
}

func TestAHungPodIsInspectedAgainWhileListsAreRare(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.w.do(func() { h.w.statusErr["1234"] = errors.New("away"); h.w.pods["1234"].containers["c1"] = exited })
		h.w.tell("1234", "c1", container.EventStopped, false)
		h.pass(3 * time.Second)
		h.wantEvents()
		h.w.do(func() { delete(h.w.statusErr, "1234") })
		h.pass(time.Second)
		h.wantEvents("1234 ContainerDied c1")
	})
}

func TestARestartedRuntimesStreamIsUsedAtOnce(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.w.do(func() { h.w.streams, h.w.listErr = false, errors.New("the runtime is away") })
		h.w.dead <- errors.New("the runtime went away")
		h.pass(time.Minute)
		h.w.do(func() { h.w.streams, h.w.listErr = true, nil })
		before := h.opened()
		h.pass(3 * time.Second)
		if n := h.opened() - before; n != 1 {
			t.Errorf("%d streams were opened within 3 s of the runtime's return, want 1", n)
		}
	})
}
