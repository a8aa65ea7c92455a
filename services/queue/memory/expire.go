package memory

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// find is a queue that exists. It needs mu.
func (e *Engine) find(name string) (*queue, error) {
	if q := e.queues[name]; q != nil {
		return q, nil
	}
	return nil, fmt.Errorf("%w: %q", engine.ErrNoQueue, name)
}

// Idle implements engine.Engine. After a restart the last transaction that was logged
// counts as the last use.
func (e *Engine) Idle(_ context.Context, name string) (engine.Idle, error) {
	e.mu.Lock()
	q, err := e.find(name)
	e.mu.Unlock()
	if err != nil {
		return engine.Idle{}, err
	}
	for _, p := range q.parts {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	used := q.used.Load()
	return engine.Idle{
		For: time.Duration(max(e.now()-used, 0)) * time.Microsecond, Empty: q.counts() == workqueue.Counts{}, Mark: markOf(used),
	}, nil
}

// markOf is that of a use.
func markOf(used int64) string { return strconv.FormatInt(used, 10) }

// Keep implements engine.Engine.
func (e *Engine) Keep(_ context.Context, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	q, err := e.find(name)
	if err == nil {
		q.used.Store(e.now())
	}
	return err
}

// Expire implements engine.Engine. The log's file is gone when it returns.
func (e *Engine) Expire(_ context.Context, name string, seen engine.Idle) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	q, err := e.find(name)
	if err != nil {
		return err
	}
	_, err = q.remove(func(c workqueue.Counts) error {
		if c != (workqueue.Counts{}) || markOf(q.used.Load()) != seen.Mark {
			return fmt.Errorf("%w: %q", engine.ErrInUse, name)
		}
		return nil
	})
	if err == nil {
		delete(e.queues, name)
	}
	return err
}
