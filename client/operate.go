package client

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Pause hands out no more keys until Resume; adds and settlements go on.
func (q *Queue) Pause(ctx context.Context) error {
	_, err := q.admin.PauseQueue(ctx, &queuev1.PauseQueueRequest{Queue: q.name})
	return wrap(err, "pause queue %s", q.name)
}

// Resume undoes Pause.
func (q *Queue) Resume(ctx context.Context) error {
	_, err := q.admin.ResumeQueue(ctx, &queuev1.ResumeQueueRequest{Queue: q.name})
	return wrap(err, "resume queue %s", q.name)
}

// Close makes every add fail with [ErrQueueClosed]; what the queue holds is
// still worked off.
func (q *Queue) Close(ctx context.Context) error {
	_, err := q.admin.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: q.name})
	return wrap(err, "close queue %s", q.name)
}

// Open undoes Close.
func (q *Queue) Open(ctx context.Context) error {
	_, err := q.admin.OpenQueue(ctx, &queuev1.OpenQueueRequest{Queue: q.name})
	return wrap(err, "open queue %s", q.name)
}

// DeleteQueue removes the queue with everything in it, on all servers: its streams end
// and its adds fail with NOT_FOUND. While keys are leased it is refused with
// FAILED_PRECONDITION (reason QUEUE_LEASED), unless forced.
func (q *Queue) DeleteQueue(ctx context.Context, force bool) error {
	_, err := q.admin.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: q.name, Force: force})
	return wrap(err, "delete queue %s", q.name)
}

// ItemStatus is what an operator's call did to a key.
type ItemStatus = queuev1.ItemStatus

// RetryNow makes delayed and dead keys wait now; a dead key's retries begin anew.
// It returns one status per key, in order.
func (q *Queue) RetryNow(ctx context.Context, keys ...string) ([]ItemStatus, error) {
	return q.operate("retry", keys, func(keys []string) (itemsAnswer, error) {
		return q.admin.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: q.name, Keys: keys})
	})
}

// Release takes keys away from their holders, whose leases are lost; they wait
// again, uncounted. It returns one status per key, in order.
func (q *Queue) Release(ctx context.Context, keys ...string) ([]ItemStatus, error) {
	return q.operate("release", keys, func(keys []string) (itemsAnswer, error) {
		return q.admin.ReleaseItems(ctx, &queuev1.ReleaseItemsRequest{Queue: q.name, Keys: keys})
	})
}

// Delete drops keys that are not held, and everything kept with them. It returns
// one status per key, in order.
func (q *Queue) Delete(ctx context.Context, keys ...string) ([]ItemStatus, error) {
	return q.operate("delete", keys, func(keys []string) (itemsAnswer, error) {
		return q.admin.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: q.name, Keys: keys})
	})
}

type itemsAnswer interface{ GetResults() []*queuev1.ItemResult }

func (q *Queue) operate(what string, keys []string, call func([]string) (itemsAnswer, error)) ([]ItemStatus, error) {
	all := make([]ItemStatus, 0, len(keys))
	for len(keys) > 0 {
		n := min(len(keys), maxItems)
		resp, err := call(keys[:n])
		if err != nil {
			return all, wrap(err, "%s keys of queue %s", what, q.name)
		}
		for _, r := range resp.GetResults() {
			all = append(all, r.GetStatus())
		}
		keys = keys[n:]
	}
	return all, nil
}

// DrainOptions say what [Queue.Drain] waits for.
type DrainOptions struct {
	// Close closes the queue first, so that nothing is added meanwhile.
	Close bool
	// DueWithin leaves out delayed keys that are due later; nil waits for all.
	DueWithin *time.Duration
	// Progress is called about once a second, and at the end. It may be nil.
	Progress func(left *Counts, awaited int64)
}

// Drain waits until no key is ready, held or delayed, at most until ctx ends. It
// reports whether that was reached.
func (q *Queue) Drain(ctx context.Context, o DrainOptions) (drained bool, err error) {
	req := &queuev1.DrainQueueRequest{Queue: q.name, Close: o.Close}
	if o.DueWithin != nil {
		req.DueWithin = durationpb.New(*o.DueWithin)
	}
	stream, err := q.admin.DrainQueue(ctx, req)
	for err == nil {
		var resp *queuev1.DrainQueueResponse
		if resp, err = stream.Recv(); err != nil {
			break
		}
		if o.Progress != nil {
			o.Progress(resp.GetCounts(), resp.GetAwaited())
		}
		drained = resp.GetDrained()
	}
	if errors.Is(err, io.EOF) {
		return drained, nil
	}
	return drained, wrap(err, "drain queue %s", q.name)
}

// History is what happened to a key last, newest first, as the answering server
// has seen it.
func (q *Queue) History(ctx context.Context, key string) ([]*queuev1.HistoryEvent, error) {
	resp, err := q.admin.Inspect(ctx, &queuev1.InspectRequest{Queue: q.name, Key: key})
	if err != nil {
		return nil, wrap(err, "inspect %s in queue %s", key, q.name)
	}
	return resp.GetHistory(), nil
}
