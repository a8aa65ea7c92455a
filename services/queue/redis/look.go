package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// reading reads from the node that serves the partition.
func (p *partition) reading(ctx context.Context, f func(*node) error) error {
	return p.e.again(ctx, func() error {
		n, err := p.e.place.node(ctx, p.keys[0])
		if err != nil {
			return err
		}
		return f(n)
	})
}

// Status implements engine.Partition.
func (p *partition) Status(ctx context.Context) (engine.Status, error) {
	var (
		st      engine.Status
		control *redis.StringCmd
		heads   [workqueue.Levels]*redis.StringCmd
		now     *redis.TimeCmd
	)
	run := ""
	err := p.reading(ctx, func(n *node) error {
		_, err := n.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			control = pipe.HGet(ctx, p.keys[keyState], "")
			for l := range heads {
				heads[l] = pipe.LIndex(ctx, p.keys[keyReady+l], 0)
			}
			now = pipe.Time(ctx)
			return nil
		})
		run = n.run()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	if err != nil {
		return st, err
	}
	if control.Val() == "" {
		return st, fmt.Errorf("%w: %q", engine.ErrNoQueue, p.q.name)
	}
	st.Now = now.Val().Add(p.e.skew()).UnixMicro()
	last, _, err := readControl(control.Val(), &st)
	if err != nil {
		return st, err
	}
	last, offset, _ := strings.Cut(last, " ")
	if off, err := strconv.ParseInt(offset, 10, 64); err == nil {
		st.Now += off
	}
	if last != "" && last != run { // the next transaction begins the pause
		st.HeldUntil = st.Now + p.grants.pause(p.e.clock(), &p.conf.Load().cfg).Microseconds()
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
	var recs []any
	err = p.reading(ctx, func(n *node) (err error) {
		recs, err = n.client.HMGet(ctx, p.keys[keyState], seen...).Result()
		return err
	})
	if err != nil {
		return st, err
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

// readControl reads a partition's control record, which has the form that
// lua/control.lua tells, and returns the run of Redis in which its last transaction was
// and when it was used.
func readControl(s string, st *engine.Status) (run string, used int64, err error) {
	const width, numbers = 8, 16
	if len(s) < numbers*width {
		return "", 0, errReply
	}
	if texts := strings.SplitN(s[numbers*width:], "\x00", 3); len(texts) == 3 { // version, run, buckets
		run = texts[1]
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
	return run, at(15), nil
}

// Items implements engine.Partition. The cursor is the place in a scan of the
// state hash.
func (p *partition) Items(ctx context.Context, state workqueue.State, cursor string, limit int) ([]workqueue.Item, string, error) {
	at := uint64(0)
	if cursor != "" {
		var err error
		if at, err = strconv.ParseUint(cursor, 10, 64); err != nil || at == 0 {
			return nil, "", engine.ErrCursor
		}
	}
	var out []workqueue.Item
	for len(out) < limit {
		names, next, err := p.scan(ctx, state, at, limit)
		if err != nil {
			return nil, "", err
		}
		items, err := p.inspect(ctx, names)
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
func (p *partition) scan(ctx context.Context, state workqueue.State, at uint64, limit int) (names []string, next uint64, err error) {
	err = p.reading(ctx, func(on *node) error {
		flat, n, err := on.client.HScan(ctx, p.keys[keyState], at, "", int64(max(limit, 100))).Result()
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

// inspect looks at keys in transactions of its own, beside the queue's.
func (p *partition) inspect(ctx context.Context, names []string) ([]workqueue.Item, error) {
	if len(names) == 0 {
		return nil, nil
	}
	t := &workqueue.Transaction{}
	for _, n := range names {
		t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpInspect, Key: n})
	}
	d, err := p.run(ctx, 0, t, &sender{})
	if err != nil {
		return nil, err
	}
	res, err := decodeTransaction(d.blob, t)
	if err != nil {
		return nil, err
	}
	out := make([]workqueue.Item, 0, len(names))
	for _, r := range res.Replies {
		out = append(out, *r.Item)
	}
	return out, nil
}
