package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

var deleteScript = redis.NewScript(deleteLua)

// goneFor is how long it is known of a queue that it was deleted: a server that
// hears nothing of it for longer takes its data for lost, and makes it again.
const goneFor = 24 * time.Hour

// deleted is what deleting a partition did.
type deleted struct {
	done, existed bool
	leased, keys  int64
}

// Delete implements engine.Engine. The first partition goes first: without it
// there is no queue, and what is left of it is deleted when this is called again
// or before the queue is made again. Its note says which data that is, so that no
// deletion that comes late takes what was made since.
func (e *Engine) Delete(ctx context.Context, name string, force bool) error {
	if err := e.identify(ctx); err != nil {
		return err
	}
	first, err := e.stored(ctx, name, 1)
	if err != nil {
		return err
	}
	if first[0].gone != "" {
		some, err := e.deleteRest(ctx, name, first[0].gone)
		if err == nil && !some {
			err = fmt.Errorf("%w: %q", engine.ErrDeleted, name)
		}
		return err
	}
	if first[0].version == "" {
		return fmt.Errorf("%w: %q", engine.ErrNoQueue, name)
	}
	var cfg workqueue.Config
	if err := json.Unmarshal([]byte(first[0].blob), &cfg); err != nil {
		return fmt.Errorf("configuration of queue %q: %w", name, err)
	}
	parts := cfg.WithDefaults().Partitions
	keys, leased := int64(0), int64(0)
	if parts > 1 {
		q, err := e.Open(ctx, name)
		if err != nil {
			return err
		}
		for _, p := range q.Partitions() { // also to know that each can be reached
			st, err := p.Status(ctx)
			if err != nil {
				return err
			}
			leased += int64(st.Counts.Processing)
			keys += int64(st.Counts.Ready + st.Counts.Processing + st.Counts.Delayed + st.Counts.Dead)
		}
	}
	leasedError := func(n int64) error { return fmt.Errorf("%w: %d of queue %q", engine.ErrLeased, n, name) }
	if leased > 0 && !force {
		return leasedError(leased)
	}
	all, err := e.stored(ctx, name, parts)
	if err != nil {
		return err
	}
	all[0].born = first[0].born
	note := goneNote(all)
	d, err := e.deletePart(ctx, name, 0, note, force)
	switch {
	case err != nil:
		return err
	case d.leased > 0 && !d.done:
		return leasedError(d.leased)
	case !d.done:
		return fmt.Errorf("%w by another meanwhile: %q", engine.ErrDeleted, name)
	}
	if _, err := e.deleteRest(ctx, name, note); err != nil {
		return err
	}
	counted := d.existed                       // else the first reply was lost
	if counted && max(leased, d.leased) == 0 { // else what is made again waits until leases have ended
		e.forget(name)
	}
	if !counted || keys+d.keys > 0 {
		return e.lost(ctx)
	}
	return nil
}

// goneNote names the data of each partition by the version with which it began.
func goneNote(all []stored) string {
	born := make([]string, len(all))
	for part, s := range all {
		born[part] = cmp.Or(s.born, "-")
	}
	return strings.Join(born, " ")
}

// deleteRest deletes what a note names of all partitions but the first, and the
// queue's name. It reports whether any was there.
func (e *Engine) deleteRest(ctx context.Context, name, note string) (some bool, err error) {
	for part := 1; part < len(strings.Fields(note)); part++ {
		d, err := e.deletePart(ctx, name, part, note, true)
		if err != nil {
			return some, err
		}
		some = some || d.existed
	}
	return some, e.unlist(ctx, name)
}

func (e *Engine) deletePart(ctx context.Context, name string, part int, note string, force bool) (d deleted, err error) {
	names := append([]string{metaKey(e.cfg.Prefix, name, part)}, keys(e.cfg.Prefix, name, part, e.server)...)
	forced := 0
	if force {
		forced = 1
	}
	err = e.again(ctx, func() error {
		n, err := e.place.node(ctx, names[0])
		if err != nil {
			return err
		}
		res, err := deleteScript.Run(ctx, n.client, names, forced, goneFor.Milliseconds(), note, strings.Fields(note)[part]).Int64Slice()
		if err != nil {
			return err
		}
		if len(res) != 4 {
			return errReply
		}
		d = deleted{res[0] == 1, res[3] == 1, res[1], res[2]}
		return nil
	})
	return d, err
}

// unlist takes the name of a queue that is gone from the list, unless it was made
// again meanwhile, and tells the other servers.
func (e *Engine) unlist(ctx context.Context, name string) error {
	err := e.again(ctx, func() error { return e.client.SRem(ctx, e.cfg.Prefix+":queues", name).Err() })
	if err != nil {
		return err
	}
	if first, err := e.stored(ctx, name, 1); err != nil || first[0].version != "" {
		return errors.Join(err, e.list(ctx, name))
	}
	return e.again(ctx, func() error { return e.client.Publish(ctx, e.channel(), e.server+" "+name).Err() })
}

// forget has a queue that is made again begin without a pause.
func (e *Engine) forget(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.seen, name)
	delete(e.grants, name)
}
