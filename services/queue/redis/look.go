package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Status implements engine.Partition.
func (q *queue) Status(ctx context.Context) (engine.Status, error) {
	var (
		meta              *redis.SliceCmd
		delayed, leased   *redis.IntCmd
		dead              *redis.IntCmd
		heads             [workqueue.Levels]*redis.StringCmd
		now               *redis.TimeCmd
		st, noQueue, seen = engine.Status{}, engine.ErrNoQueue, []string(nil)
	)
	err := q.e.again(ctx, func() error {
		_, err := q.e.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			meta = p.HMGet(ctx, q.keys[0], "ver", "closed", "ready", "dirty")
			delayed, leased, dead = p.ZCard(ctx, q.keys[2]), p.ZCard(ctx, q.keys[4]), p.HLen(ctx, q.keys[11])
			for l := range heads {
				heads[l] = p.LIndex(ctx, q.keys[15+l], 0)
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
	m := meta.Val()
	if len(m) != 4 || m[0] == nil {
		return st, fmt.Errorf("%w: %q", noQueue, q.name)
	}
	num := func(v any) int { s, _ := v.(string); n, _ := strconv.Atoi(s); return n }
	st.Closed = m[1] == "1"
	st.Counts = workqueue.Counts{
		Ready: num(m[2]), Dirty: num(m[3]), Delayed: int(delayed.Val()), Processing: int(leased.Val()), Dead: int(dead.Val()),
	}
	st.Now = now.Val().Add(q.e.cfg.Skew()).UnixMicro()
	for _, h := range heads {
		if h.Val() != "" {
			seen = append(seen, h.Val())
		}
	}
	if len(seen) == 0 {
		return st, nil
	}
	recs, err := q.e.client.HMGet(ctx, q.keys[1], seen...).Result()
	if err != nil {
		return st, classify(err)
	}
	for _, r := range recs {
		// '>BBHdd': kind, level, attempt, added, ready.
		if s, _ := r.(string); len(s) == 20 && s[0] == 1 {
			at := int64(math.Float64frombits(binary.BigEndian.Uint64([]byte(s[12:20]))))
			if st.OldestReady == 0 || at < st.OldestReady {
				st.OldestReady = at
			}
		}
	}
	return st, nil
}

// Items implements engine.Partition. The cursor is the place in one of three
// scans: of keys that wait or are held, of delayed keys, of dead keys.
func (q *queue) Items(ctx context.Context, state workqueue.State, cursor string, limit int) ([]workqueue.Item, string, error) {
	scan, at := byte('s'), uint64(0)
	if cursor != "" {
		n, err := strconv.ParseUint(cursor[1:], 10, 64)
		if err != nil || !strings.ContainsRune("sdx", rune(cursor[0])) {
			return nil, "", engine.ErrCursor
		}
		scan, at = cursor[0], n
	}
	var out []workqueue.Item
	for len(out) < limit {
		names, next, err := q.scan(ctx, scan, at, limit)
		if err != nil {
			return nil, "", err
		}
		items, err := q.inspect(ctx, names)
		if err != nil {
			return nil, "", err
		}
		for _, it := range items {
			here := map[byte]bool{
				's': it.State == workqueue.Ready || it.State == workqueue.Processing || it.State == workqueue.Dirty,
				'd': it.State == workqueue.Waiting,
				'x': it.State == workqueue.Buried,
			}[scan] // a key is reported by one scan only
			if here && (state == workqueue.Idle || it.State == state) {
				out = append(out, it)
			}
		}
		if at = next; at != 0 {
			continue
		}
		switch scan {
		case 's':
			scan = 'd'
		case 'd':
			scan = 'x'
		default:
			return out, "", nil
		}
	}
	return out, string(scan) + strconv.FormatUint(at, 10), nil
}

func (q *queue) scan(ctx context.Context, scan byte, at uint64, limit int) (names []string, next uint64, err error) {
	err = q.e.again(ctx, func() error {
		var flat []string
		var err error
		switch scan {
		case 's':
			flat, next, err = q.e.client.HScan(ctx, q.keys[1], at, "", int64(limit)).Result()
		case 'd':
			flat, next, err = q.e.client.ZScan(ctx, q.keys[2], at, "", int64(limit)).Result()
		default:
			flat, next, err = q.e.client.HScan(ctx, q.keys[11], at, "", int64(limit)).Result()
		}
		names = names[:0]
		for i := 0; i+1 < len(flat); i += 2 {
			names = append(names, flat[i])
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
	blob, _, err := q.run(ctx, q.look, q.e.server+"i", uint64(time.Now().UnixNano()), t, nil)
	if err != nil {
		return nil, err
	}
	res, err := decodeTurn(blob, t.Ops)
	if err != nil {
		return nil, err
	}
	out := make([]workqueue.Item, 0, len(names))
	for _, r := range res.Replies {
		out = append(out, *r.Item)
	}
	return out, nil
}
