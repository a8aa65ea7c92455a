package transaction

import "github.com/deltaplane/deltaplane/core/workqueue"

// notice tells the listener what an operator did to the queue.
func (d *Dispatcher) notice(c *Call) {
	var revoked map[string]bool
	for i := range c.Ops {
		switch c.Ops[i].Kind {
		case workqueue.OpPause, workqueue.OpResume:
			if d.Part == 0 {
				d.Queue.pause(c.Ops[i].Kind == workqueue.OpPause)
			}
		case workqueue.OpRevoke:
			if c.Status(i) == workqueue.OK {
				if revoked == nil {
					revoked = map[string]bool{}
				}
				revoked[c.Ops[i].Key] = true
			}
		}
	}
	if revoked != nil {
		d.queues.Listener.Revoked(d, revoked)
	}
}

// pause remembers that the queue is paused or not, and tells the listener when
// it has just been paused.
func (l *Queue) pause(paused bool) {
	if was := l.Paused.Swap(paused); !was && paused {
		l.queues.Listener.Paused(l.Name)
	}
}
