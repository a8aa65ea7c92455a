package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// Reader reads what queues of the store hold, without a dispatcher.
type Reader struct{ Queues *transaction.Queues }

// status counts a queue, all partitions together, without a dispatcher. What
// cannot be reached is missing, unless nothing can.
func (s Reader) status(ctx context.Context, name string) (cfg workqueue.Config, st engine.Status, missing []int32, err error) {
	q, err := s.Queues.Open(ctx, name)
	if err != nil {
		return workqueue.Config{}, engine.Status{}, nil, err
	}
	parts := q.Partitions()
	all, failed := make([]engine.Status, len(parts)), make([]error, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() {
			short := ctx
			if len(parts) > 1 {
				var cancel context.CancelFunc
				short, cancel = context.WithTimeout(ctx, transaction.LookTimeout)
				defer cancel()
			}
			all[i], failed[i] = p.Status(short)
		})
	}
	wg.Wait()
	for i, o := range all {
		if err := failed[i]; err != nil {
			if !transaction.IsUnreached(err) || ctx.Err() != nil {
				return workqueue.Config{}, engine.Status{}, nil, err
			}
			missing = append(missing, int32(i)) //nolint:gosec // at most 64
			continue
		}
		transaction.AddCounts(&st.Counts, o.Counts)
		st.Closed, st.Paused = st.Closed || o.Closed, st.Paused || o.Paused
		if st.OldestReady == 0 || o.OldestReady != 0 && o.OldestReady < st.OldestReady {
			st.OldestReady = o.OldestReady
		}
		st.HeldUntil, st.Now = max(st.HeldUntil, o.HeldUntil), max(st.Now, o.Now)
	}
	if len(missing) == len(parts) {
		return workqueue.Config{}, engine.Status{}, nil, failed[0]
	}
	return q.Config(), st, missing, nil
}

// complete is nil when no partition is missing, else an error that names them.
func complete(queue string, missing []int32) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: partitions %v of queue %q cannot be reached; ask for partial to leave them out", engine.ErrUnavailable, missing, queue)
}

// items is a page of a queue's keys: of one partition after the other. The
// cursor is a partition and the cursor inside it. Partitions that cannot be
// reached are missing from it.
func (s Reader) items(ctx context.Context, name string, state workqueue.State, cursor string, limit int) (out []workqueue.Item, next string, missing []int32, err error) {
	q, err := s.Queues.Open(ctx, name)
	if err != nil {
		return nil, "", nil, err
	}
	parts := q.Partitions()
	p := 0
	if cursor != "" {
		head, tail, ok := strings.Cut(cursor, ":")
		if p, err = strconv.Atoi(head); err != nil || !ok || p < 0 || p >= len(parts) {
			return nil, "", nil, engine.ErrCursor
		}
		cursor = tail
	}
	for ; p < len(parts) && len(out) < limit; p++ {
		for len(out) < limit {
			page, next, err := parts[p].Items(ctx, state, cursor, limit-len(out))
			if len(parts) > 1 && transaction.IsUnreached(err) && ctx.Err() == nil {
				missing, cursor = append(missing, int32(p)), "" //nolint:gosec // at most 64
				break
			}
			if err != nil {
				return nil, "", nil, err
			}
			out, cursor = append(out, page...), next
			if next == "" {
				break
			}
		}
		if cursor != "" {
			return out, strconv.Itoa(p) + ":" + cursor, missing, nil
		}
	}
	if p < len(parts) {
		return out, strconv.Itoa(p) + ":", missing, nil
	}
	return out, "", missing, nil
}

// Whole is what a queue holds, when every partition tells.
func (s Reader) Whole(ctx context.Context, name string) (workqueue.Counts, bool) {
	_, st, missing, err := s.status(ctx, name)
	return st.Counts, err == nil && len(missing) == 0
}
