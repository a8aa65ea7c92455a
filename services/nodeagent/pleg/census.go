package pleg

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// census counts what runs, pod by pod, so that what is learnt of one pod between
// two lists corrects the sums.
type census struct {
	pods  map[types.UID]heads
	total heads
}

// heads are a pod's numbers: containers by state, and 1 for a ready sandbox.
type heads struct {
	containers [container.Exited + 1]int
	running    int
}

func newCensus() census { return census{pods: map[types.UID]heads{}} }

// set corrects the numbers of a pod; the zero value strikes it off.
func (c *census) set(uid types.UID, h heads) {
	old := c.pods[uid]
	for s := range h.containers {
		c.total.containers[s] += h.containers[s] - old.containers[s]
	}
	c.total.running += h.running - old.running
	if h == (heads{}) {
		delete(c.pods, uid)
		return
	}
	c.pods[uid] = h
}

// show sets the gauges. Upstream's count of running pods counts ready sandboxes.
func (c *census) show(m *metrics) {
	m.pods.Set(float64(c.total.running))
	for s, n := range c.total.containers {
		m.containers.WithLabelValues(container.State(s).String()).Set(float64(n))
	}
}

func headsOf(p container.Pod) heads {
	var h heads
	for _, c := range p.Containers {
		h.containers[defined(c.State)]++
	}
	for _, s := range p.Sandboxes {
		if s.Ready {
			h.running++
		}
	}
	return h
}

func headsOfStatus(s *container.PodStatus) heads {
	var h heads
	for i := range s.Containers {
		h.containers[defined(s.Containers[i].State)]++
	}
	for i := range s.Sandboxes {
		if s.Sandboxes[i].Ready {
			h.running++
		}
	}
	return h
}

// defined is unknown for states that the CRI does not define.
func defined(s container.State) container.State {
	if s > container.Exited {
		return container.Unknown
	}
	return s
}
