package queue

import "github.com/deltaplane/deltaplane/core/workqueue"

// notice tells the listener what an operator did to the queue.
func (d *dispatcher) notice(c *call) {
	var revoked map[string]bool
	for i := range c.ops {
		switch c.ops[i].Kind {
		case workqueue.OpPause, workqueue.OpResume:
			if d.part == 0 {
				d.of.pause(c.ops[i].Kind == workqueue.OpPause)
			}
		case workqueue.OpRevoke:
			if c.status(i) == workqueue.OK {
				if revoked == nil {
					revoked = map[string]bool{}
				}
				revoked[c.ops[i].Key] = true
			}
		}
	}
	if revoked != nil {
		d.queues.Listener.Revoked(d, revoked)
	}
}

// pause remembers that the queue is paused or not, and tells the listener when
// it has just been paused.
func (l *lines) pause(paused bool) {
	if was := l.paused.Swap(paused); !was && paused {
		l.queues.Listener.Paused(l.name)
	}
}
