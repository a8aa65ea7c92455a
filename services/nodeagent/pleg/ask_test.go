package pleg_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
)

// Upstream's TestRelistWithCache.
func TestAPodWithoutAStatusIsReportedOnceThereIsOne(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		away := errors.New("unable to get status")
		h.w.put("p1", states{"c1": running}, nil)
		h.w.put("p2", states{"c2": running}, nil)
		h.w.statusErr["p2"] = away
		h.start()
		h.wantEvents("p1 ContainerStarted c1")
		if got := h.state("p1", "c1"); got != "running" {
			t.Errorf("the cache has c1 %s", got)
		}
		if s, err := h.Cache().Get("p2"); !errors.Is(err, away) || s != nil {
			t.Errorf("Get(p2) = %v, %v, want the error alone", s, err)
		}
		h.w.do(func() { delete(h.w.statusErr, "p2") })
		h.pass(time.Second)
		h.wantEvents("p2 ContainerStarted c2")
		if got := h.state("p2", "c2"); got != "running" {
			t.Errorf("the cache has c2 %s", got)
		}
		if n := h.count("p1"); n != 1 {
			t.Errorf("p1 was asked about %d times without a change", n-1)
		}
	})
}

// Upstream's TestRemoveCacheEntry.
func TestAPodThatIsGoneLeavesTheCache(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", states{"c1": running}, nil)
		h.start()
		h.w.do(func() { delete(h.w.pods, "1234") })
		h.count("1234")
		h.pass(time.Second)
		s, err := h.Cache().Get("1234")
		if err != nil || s.UID != "1234" || len(s.Containers) > 0 {
			t.Errorf("Get() = %+v, %v, want a status with nothing but the UID", s, err)
		}
		if n := h.count("1234"); n != 0 {
			t.Errorf("a pod that is gone was asked about %d times", n)
		}
	})
}

// Upstream's TestReinspect. A pod is in the set because its last inspection failed.
func TestAPodInTheReinspectionSetIsInspected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                         string
		requested, already           bool
		fails, deleted               bool
		wantAsked, wantStays, wantOK bool
	}{
		{"requested, not in the set, success", true, false, false, false, true, false, true},
		{"requested, not in the set, failure", true, false, true, false, true, true, false},
		{"requested, in the set, success", true, true, false, false, true, false, true},
		{"requested, in the set, failure", true, true, true, false, true, true, false},
		{"not requested, not in the set", false, false, false, false, false, false, false},
		{"not requested, in the set, success", false, true, false, false, true, false, true},
		{"not requested, in the set, failure", false, true, true, false, true, true, false},
		{"the pod is deleted", false, true, false, true, false, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, noStream, func(h *harness) {
				h.w.put("1234", states{"c1": running}, nil)
				h.start()
				h.taken()
				if c.already {
					h.w.do(func() { h.w.statusErr["1234"] = errors.New("fail") })
					h.RequestReinspect("1234")
					h.pass(time.Second)
					h.wantEvents()
					h.w.do(func() { delete(h.w.statusErr, "1234") })
				}
				if c.requested {
					h.RequestReinspect("1234")
				}
				h.w.do(func() {
					if c.fails {
						h.w.statusErr["1234"] = errors.New("fail")
					}
					if c.deleted {
						delete(h.w.pods, "1234")
					}
				})
				h.count("1234")
				h.pass(time.Second)
				if n := h.count("1234"); (n == 1) != c.wantAsked || n > 1 {
					t.Errorf("asked %d times, want %t", n, c.wantAsked)
				}
				switch {
				case c.deleted:
					// Upstream's pod had no containers: it has something to tell besides.
					h.wantEvents("1234 ContainerDied c1", "1234 ContainerRemoved c1")
				case c.wantOK:
					h.wantEvents("1234 PodSync ")
				default:
					h.wantEvents()
				}
				if _, err := h.Cache().Get("1234"); (err != nil) != c.fails {
					t.Errorf("Get() = %v", err)
				}
				// What stays in the set is asked about again.
				h.pass(time.Second)
				if n := h.count("1234"); (n == 1) != c.wantStays {
					t.Errorf("asked %d times a list later, want %t", n, c.wantStays)
				}
			})
		})
	}
}

func TestAReinspectionOfAnUnknownPodIsAnsweredToo(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.start()
		h.RequestReinspect("1234")
		h.pass(time.Second)
		h.wantEvents("1234 PodSync ")
		h.pass(5 * time.Second)
		h.wantEvents()
	})
}

func TestAHungPodStallsNoOtherAndIsInspectedOnceAtATime(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("hung", states{"h1": running}, nil)
		h.w.hung["hung"] = true
		h.start()
		for i := range 60 {
			id := fmt.Sprintf("c%d", i)
			h.w.put("p", states{id: running}, nil)
			begun := time.Now()
			waits := h.newer("p", begun)
			h.pass(time.Second)
			if got := h.state("p", id); got != "running" {
				t.Fatalf("second %d: the cache has %s %s", i, id, got)
			}
			if at := unblocked(t, waits).At; at.Sub(begun) > time.Second {
				t.Fatalf("second %d: the status is of %v", i, at)
			}
		}
		h.w.mu.Lock()
		if h.w.twice {
			t.Error("the hung pod was asked about twice at once")
		}
		h.w.mu.Unlock()
		if n := h.count("hung"); n < 5 || n > 7 {
			t.Errorf("the hung pod was asked about %d times in a minute, want one every 10 s", n)
		}
		if _, err := h.Cache().Get("hung"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "default/hung") {
			t.Errorf("Get() of the hung pod = %v", err)
		}
		if err := h.Healthy(); err != nil {
			t.Errorf("Healthy() = %v", err)
		}
		h.taken()
		h.w.do(func() { delete(h.w.hung, "hung") })
		h.pass(12 * time.Second)
		h.wantEvents("hung ContainerStarted h1")
	})
}

func TestManyHungPodsDoNotStarveTheOthers(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		for i := range 100 {
			uid := types.UID(fmt.Sprintf("hung%d", i))
			h.w.put(uid, states{"h": running}, nil)
			h.w.hung[uid] = true
		}
		h.start()
		h.pass(3 * time.Minute) // each was asked about, and took too long
		for i := range 20 {
			id := fmt.Sprintf("c%d", i)
			h.w.put("p", states{id: running}, nil)
			h.pass(time.Second)
			if got := h.state("p", id); got != "running" {
				t.Fatalf("second %d: the cache has %s %s", i, id, got)
			}
		}
		if h.w.most > 8 {
			t.Errorf("%d calls at once, want 8 at most", h.w.most)
		}
	})
}

func TestARuntimeThatIgnoresTheTimeLimitHoldsNoSlotForever(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{NoStream: true, Parallel: 2}, func(h *harness) {
		release := make(chan struct{})
		for _, uid := range []types.UID{"d1", "d2", "d3"} {
			h.w.put(uid, states{"h": running}, nil)
			h.w.deaf[uid] = release
		}
		h.start()
		h.pass(time.Minute)
		h.w.put("p", states{"c1": running}, nil)
		h.pass(20 * time.Second)
		h.wantEvents("p ContainerStarted c1")
		h.w.mu.Lock()
		if h.w.twice {
			t.Error("a pod was asked about twice at once")
		}
		h.w.deaf = nil
		h.w.mu.Unlock()
		close(release)
		h.pass(20 * time.Second)
		h.wantEvents("d1 ContainerStarted h", "d2 ContainerStarted h", "d3 ContainerStarted h")
	})
}

func TestReadersOfAChangedPodWaitForItsStatus(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", states{"c1": running}, nil)
		h.start()
		h.pass(time.Second)
		h.w.put("1234", states{"c1": exited}, nil)
		h.w.do(func() { h.w.statusDelay = func() time.Duration { return 5 * time.Second } })
		waits := h.newer("1234", time.Now())
		h.pass(time.Second) // the list has it now, the status is being asked for
		blocked(t, waits)
		other := unblocked(t, h.newer("other", time.Now().Add(-time.Second/2)))
		if len(other.Containers) > 0 {
			t.Errorf("a pod that nobody knows has %v", other.Containers)
		}
		h.pass(5 * time.Second)
		if s := unblocked(t, waits); s.Latest("c1").State != exited {
			t.Errorf("GetNewerThan() = %v, want the status that shows the change", s.Latest("c1").State)
		}
	})
}

// Upstream's TestWorkerLoop.
func TestARequestForOnePodIsServedAtOnceAndOnlyForThatPod(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{NoStream: true, Period: 2 * time.Second}, func(h *harness) {
		h.w.put("pod1", states{"c1": running}, nil)
		h.w.put("pod2", states{"c2": running}, nil)
		h.start()
		h.pass(time.Second)
		h.taken()
		h.count("pod1")
		h.count("pod2")
		now := time.Now()
		one, two := h.newer("pod1", now.Add(-time.Nanosecond)), h.newer("pod2", now.Add(-time.Nanosecond))
		blocked(t, one)
		blocked(t, two)
		h.RequestRelist("pod1")
		if s := unblocked(t, one); !s.At.Equal(now) {
			t.Errorf("the status is of %v, want %v", s.At, now)
		}
		blocked(t, two)
		if h.count("pod1") != 1 || h.count("pod2") != 0 || h.lists() != 1 {
			t.Error("a request for one pod made more than one inspection")
		}
		h.wantEvents() // nothing changed, and nobody asked for a reinspection

		h.pass(time.Second) // the list
		unblocked(t, two)
		if h.count("pod1") != 0 || h.count("pod2") != 0 {
			t.Error("a list asked about pods that did not change")
		}

		// A request for a pod that is in the reinspection set consumes it.
		h.pass(time.Second)
		h.RequestReinspect("pod1")
		h.RequestRelist("pod1")
		h.pass(0)
		h.wantEvents("pod1 PodSync ")
		h.count("pod1")
		h.pass(time.Second)
		if n := h.count("pod1"); n != 0 {
			t.Errorf("the next list asked about the pod %d times again", n)
		}
		h.wantEvents()
	})
}

func TestARequestIsSkippedWhenAListBeganAfterIt(t *testing.T) {
	t.Parallel()
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", states{"c1": running}, nil)
		h.start()
		h.w.do(func() { h.w.listDelay = func() time.Duration { return 4 * time.Second } })
		h.pass(1500 * time.Millisecond) // within the list
		h.count("1234")
		h.RequestRelist("1234")
		h.pass(4 * time.Second)
		if n := h.count("1234"); n != 1 {
			t.Errorf("a request made after the list began was served %d times, want 1", n)
		}
	})
	inBubble(t, noStream, func(h *harness) {
		h.w.put("1234", states{"c1": running}, nil)
		h.RequestRelist("1234")
		h.pass(time.Second)
		h.start()
		if n := h.count("1234"); n != 1 {
			t.Errorf("asked %d times, want once, for the list: the request is older", n)
		}
	})
}

func TestRequestsBeyondTheQueueAreDropped(t *testing.T) {
	t.Parallel()
	inBubble(t, pleg.Config{NoStream: true, Requests: 3}, func(h *harness) {
		for i := range 5 {
			uid := types.UID(fmt.Sprintf("p%d", i))
			h.w.put(uid, states{"c": running}, nil)
		}
		h.start()
		h.w.do(func() { h.w.listDelay = func() time.Duration { return 4 * time.Second } })
		h.pass(1500 * time.Millisecond) // within the list, while requests pile up
		for i := range 5 {
			h.count(types.UID(fmt.Sprintf("p%d", i)))
		}
		for range 3 {
			for i := range 5 {
				h.RequestRelist(types.UID(fmt.Sprintf("p%d", i)))
			}
		}
		h.pass(4 * time.Second)
		for i := range 5 {
			want := 1
			if i >= 3 {
				want = 0
			}
			if n := h.count(types.UID(fmt.Sprintf("p%d", i))); n != want {
				t.Errorf("p%d was asked about %d times, want %d", i, n, want)
			}
		}
	})
}
