package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Status implements engine.Partition.
func (q *queue) Status(ctx context.Context) (engine.Status, error) {
	var (
		st      engine.Status
		control *redis.StringCmd
		heads   [workqueue.Levels]*redis.StringCmd
		now     *redis.TimeCmd
	)
	err := q.e.again(ctx, func() error {
		_, err := q.e.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			control = p.HGet(ctx, q.keys[keyState], "")
			for l := range heads {
				heads[l] = p.LIndex(ctx, q.keys[keyReady+l], 0)
			}
			now = p.Time(ctx)
			return nil
		})
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	if err != nil {
		return st, err
	}
	if control.Val() == "" {
		return st, fmt.Errorf("%w: %q", engine.ErrNoQueue, q.name)
	}
	st.Now = now.Val().Add(q.e.cfg.Skew()).UnixMicro()
	if err := readControl(control.Val(), &st); err != nil {
		return st, err
	}
	var seen []string
	for _, h := range heads {
		if h.Val() != "" {
			seen = append(seen, h.Val())
		}
	}
	if len(seen) == 0 {
		return st, nil
	}
	recs, err := q.e.client.HMGet(ctx, q.keys[keyState], seen...).Result()
	if err != nil {
		return st, classify(err)
	}
	for _, v := range recs {
		s, _ := v.(string)
		var r reader
		if rec := r.record(s); r.err == nil && rec.state == workqueue.Ready && (st.OldestReady == 0 || rec.ready < st.OldestReady) {
			st.OldestReady = rec.ready
		}
	}
	return st, nil
}

// readControl reads a partition's control record; lua/control.lua has its form.
func readControl(s string, st *engine.Status) error {
	const width = 8
	if len(s) < 8*width {
		return errReply
	}
	at := func(i int) int64 {
		return whole(math.Float64frombits(binary.BigEndian.Uint64([]byte(s[i*width : (i+1)*width]))))
	}
	if hold := at(0); hold > st.Now {
		st.HeldUntil = hold
	}
	flags := at(2)
	st.Closed, st.Paused = flags&1 != 0, flags&2 != 0
	st.Counts = workqueue.Counts{Ready: int(at(3)), Dirty: int(at(4)), Processing: int(at(5)), Delayed: int(at(6)), Dead: int(at(7))}
	return nil
}

// Items implements engine.Partition. The cursor is the place in a scan of the
// state hash.
func (q *queue) Items(ctx context.Context, state workqueue.State, cursor string, limit int) ([]workqueue.Item, string, error) {
	at := uint64(0)
	if cursor != "" {
		var err error
		if at, err = strconv.ParseUint(cursor, 10, 64); err != nil || at == 0 {
			return nil, "", engine.ErrCursor
		}
	}
	var out []workqueue.Item
	for len(out) < limit {
		names, next, err := q.scan(ctx, state, at, limit)
		if err != nil {
			return nil, "", err
		}
		items, err := q.inspect(ctx, names)
		if err != nil {
			return nil, "", err
		}
		for _, it := range items {
			if state == workqueue.Idle || it.State == state {
				out = append(out, it)
			}
		}
		if at = next; at == 0 {
			return out, "", nil
		}
	}
	return out, strconv.FormatUint(at, 10), nil
}

// scan is a step of a scan of the state hash: the keys in a state.
func (q *queue) scan(ctx context.Context, state workqueue.State, at uint64, limit int) (names []string, next uint64, err error) {
	err = q.e.again(ctx, func() error {
		flat, n, err := q.e.client.HScan(ctx, q.keys[keyState], at, "", int64(max(limit, 100))).Result()
		names, next = names[:0], n
		for i := 0; i+1 < len(flat); i += 2 {
			if flat[i] == "" { // the control record
				continue
			}
			var r reader
			rec := r.record(flat[i+1])
			if it := rec.item("", "", 0, 0); state == workqueue.Idle || it.State == state {
				names = append(names, flat[i])
			}
		}
		return err
	})
	return names, next, err
}

// inspect looks at keys in turns of its own, beside the queue's.
func (q *queue) inspect(ctx context.Context, names []string) ([]workqueue.Item, error) {
	if len(names) == 0 {
		return nil, nil
	}
	t := &workqueue.Turn{}
	for _, n := range names {
		t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpInspect, Key: n})
	}
	blob, _, err := q.run(ctx, q.look, uint64(time.Now().UnixNano()), t, &sender{})
	if err != nil {
		return nil, err
	}
	res, err := decodeTurn(blob, t)
	if err != nil {
		return nil, err
	}
	out := make([]workqueue.Item, 0, len(names))
	for _, r := range res.Replies {
		out = append(out, *r.Item)
	}
	return out, nil
}
