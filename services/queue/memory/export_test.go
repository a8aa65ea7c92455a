package memory

import (
	"testing"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// Orphan takes the deadline of a held key away, as if the queue had been
// restored from a log without it.
func Orphan(t *testing.T, e *Engine, queue, key string) {
	t.Helper()
	p := e.queues[queue].parts[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	s, found := p.m.Snapshot(), false
	for i := range s.Items {
		if it := &s.Items[i]; it.Key == key {
			it.Deadline, found = 0, it.Deadline != 0
		}
	}
	if !found {
		t.Fatalf("%q has no deadline", key)
	}
	p.m = workqueue.Restore(s)
}
