package pleg_test

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
)

// The histories of this file were found by the model test and by fuzzing.

func slow(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func TestALateAnswerKeepsEventsThatWaitForAFullChannel(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{Capacity: 1}, func(h *harness) {
		h.w.streams = true
		h.w.put("1234", states{"c1": running}, nil)
		h.start()
		h.w.tell("1234", "c1", container.EventStarted, true)
		h.pass(10 * time.Second) // the event of c1 fills the channel
		h.w.mu.Lock()
		h.w.pods["1234"].containers["c2"] = running
		late := container.Event{ContainerID: "c2", PodUID: "1234", Kind: container.EventStarted, At: time.Now(), Status: h.w.status("1234")}
		h.w.statusDelay = slow(2 * time.Second)
		h.w.mu.Unlock()
		h.pass(time.Second)
		h.RequestRelist("1234")
		h.pass(time.Second / 2)
		h.w.hear(late) // refused, with the newest stamp
		h.pass(2 * time.Second)
		h.wantEvents("1234 ContainerStarted c1")
		h.pass(time.Second)
		h.wantEvents("1234 ContainerStarted c2")
	})
}

func TestAnAnswerFromBeforeARemovalRestoresNothing(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.w.do(func() { h.w.statusDelay = slow(2 * time.Second) })
		h.RequestRelist("1234")
		h.pass(time.Second / 2)
		h.w.do(func() { h.w.pods["1234"].containers["c2"] = running }) // its event is lost
		h.pass(time.Second)                                            // the answer has all three now
		h.w.do(func() { delete(h.w.pods["1234"].containers, "c1"); delete(h.w.pods["1234"].sandboxes, "s1") })
		h.w.tell("1234", "c1", container.EventDeleted, false)
		h.w.tell("1234", "s1", container.EventDeleted, false)
		h.pass(time.Second)
		h.wantEvents("1234 ContainerDied c1", "1234 ContainerRemoved c1", "1234 ContainerDied s1", "1234 ContainerRemoved s1")
		if got := h.state("1234", "c1"); got != "none" {
			t.Errorf("the cache has c1 %s", got)
		}
		h.pass(2 * time.Second)
		h.wantEvents("1234 ContainerStarted c2")
		if got := h.state("1234", "c2"); got != "running" {
			t.Errorf("the cache has c2 %s", got)
		}
	})
}

func TestAnEventDuringAListKeepsTheStreamTrusted(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.w.do(func() { h.w.listDelay = slow(4 * time.Second) })
		for h.lists() == 0 {
			h.pass(time.Second)
		}
		h.w.do(func() { h.w.pods["1234"].containers["c1"] = exited })
		h.w.tell("1234", "c1", container.EventStopped, true)
		h.pass(4 * time.Second)
		h.wantEvents("1234 ContainerDied c1")
		h.pass(time.Minute)
		if n := h.lists(); n != 0 {
			t.Errorf("%d lists in a minute: the stream is not trusted any more", n)
		}
	})
}

func TestAPodRemovedDuringAListIsNotCounted(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.w.do(func() { h.w.pods["1234"].containers = nil })
		h.w.tell("1234", "c1", container.EventDeleted, true)
		h.pass(time.Second)
		h.taken()
		h.w.do(func() { h.w.listDelay = slow(4 * time.Second) })
		for h.lists() == 0 {
			h.pass(time.Second)
		}
		h.pass(2 * time.Second) // the list is made up with the pod in it, and under way
		h.w.do(func() { delete(h.w.pods, "1234") })
		h.w.tell("1234", "s1", container.EventDeleted, false)
		h.pass(20 * time.Minute)
		h.wantEvents("1234 ContainerDied s1", "1234 ContainerRemoved s1")
		if n := h.metric("kubelet_running_pods"); n != 0 {
			t.Errorf("%v pods run, want none", n)
		}
	})
}

func TestAWrongRuntimeClockMakesNoStatusNewerThanLaterOnes(t *testing.T) {
	t.Parallel()
	streamed(t, func(h *harness) {
		h.w.mu.Lock()
		h.w.pods["1234"].containers["c2"] = running
		ahead := container.Event{ContainerID: "c2", PodUID: "1234", Kind: container.EventStarted, At: time.Now().Add(time.Hour), Status: h.w.status("1234")}
		h.w.mu.Unlock()
		h.w.hear(ahead)
		h.pass(time.Second)
		h.w.do(func() { h.w.pods["1234"].containers["c2"] = exited })
		h.count("1234")
		h.RequestRelist("1234")
		h.pass(time.Second)
		h.wantEvents("1234 ContainerStarted c2", "1234 ContainerDied c2")
		if got, n := h.state("1234", "c2"), h.count("1234"); got != "exited" || n != 1 {
			t.Errorf("the cache has c2 %s after %d inspections", got, n)
		}
	})
}

func TestAnEventLostDuringAListForcesAnother(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{Capacity: 2}, func(h *harness) {
		h.w.streams = true
		h.w.put("1234", states{"c1": running}, nil)
		h.start()
		h.w.tell("1234", "c1", container.EventStarted, true)
		h.pass(10 * time.Second)
		h.taken()
		h.w.do(func() { h.w.listDelay = slow(4 * time.Second) })
		h.lists()
		for h.lists() == 0 {
			h.pass(time.Second)
		}
		h.pass(2 * time.Second) // the list is made up, and under way
		for range 3 {
			h.w.tell("1234", "c1", container.EventStarted, true)
		}
		h.w.do(func() { h.w.pods["1234"].containers["c1"] = exited })
		h.w.tell("1234", "c1", container.EventStopped, true)
		h.pass(10 * time.Second)
		h.wantEvents("1234 ContainerDied c1")
	})
}
