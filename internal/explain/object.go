package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Bounds of what is asked about one object.
const (
	// MostQueues are asked, the first by name.
	MostQueues = 200
	mostOwners = 8
	atOnce     = 16
)

// Object is what is known of an object and of the keys it woke.
type Object struct {
	Collection string        `json:"collection"`
	Key        string        `json:"key"`
	RV         string        `json:"resource_version,omitempty"`
	Absent     bool          `json:"absent,omitempty"`
	Queues     []*why.Answer `json:"queues"`
	Silent     []why.Silence `json:"silent,omitempty"`
	// Unasked is how many queues there are beside the [MostQueues] that were asked.
	Unasked int `json:"queues_not_asked,omitempty"`
}

// Object asks the index for an object, and every queue of its cluster for what it woke. An error is
// the index's that it may not or cannot say anything of such an object.
func (p *Parts) Object(ctx context.Context, name, key string) (*Object, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	o := &Object{Collection: name, Key: key, Queues: []*why.Answer{}}
	a := &asked{p: p}
	var s said
	var queues []string
	var refused error
	keys := []string{key}
	a.mirror(ctx, &s)
	a.ask(ctx, why.PartIndex, p.Index, func(ctx context.Context, c grpc.ClientConnInterface) error {
		got, err := indexv1.NewIndexServiceClient(c).Get(ctx, &indexv1.GetRequest{Collection: name, Key: key})
		switch reason := rpc.Reason(err); {
		case reason == "KEY_NOT_FOUND":
			o.Absent = true
		case err == nil:
			o.RV, keys = got.GetObject().GetResourceVersion(), append(keys, related(key, got.GetObject().GetPayload())...)
		case reason != "":
			refused = fmt.Errorf("get %s %s: %w", name, key, err)
		default:
			return err
		}
		return nil
	})
	a.ask(ctx, why.PartQueue, p.Queue, func(ctx context.Context, c grpc.ClientConnInterface) error {
		cluster, _, full := strings.Cut(name, "/")
		if full {
			cluster += "/"
		} else {
			cluster = ""
		}
		answer, err := queuev1.NewQueueAdminServiceClient(c).ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: cluster, Partial: true})
		for _, q := range answer.GetQueues() {
			queues = append(queues, q.GetConfig().GetName())
		}
		return err
	})
	a.wg.Wait()
	if refused != nil {
		return nil, refused
	}
	asked := queues[:min(len(queues), MostQueues)]
	o.Unasked = len(queues) - len(asked)
	a.inspect(ctx, o, &s, asked, keys)
	for _, silent := range a.out { // the index was asked twice
		if !slices.ContainsFunc(o.Silent, func(s why.Silence) bool { return s.Part == silent.Part }) {
			o.Silent = append(o.Silent, silent)
		}
	}
	return o, nil
}

// related are the keys under which controllers may have queued an object, besides its own.
func related(key string, payload []byte) (out []string) {
	namespace := delta.Key(key).Namespace()
	for _, owner := range gjson.GetBytes(payload, "metadata.ownerReferences").Array() {
		if name := owner.Get("name").Str; name != "" && len(out) < mostOwners {
			out = append(out, string(delta.NewKey(namespace, name)))
		}
	}
	if node := gjson.GetBytes(payload, "spec.nodeName").Str; node != "" {
		out = append(out, node)
	}
	return slices.DeleteFunc(out, func(other string) bool { return other == key })
}

// inspect asks queues for keys, a few at a time, and explains those that are known.
func (a *asked) inspect(ctx context.Context, o *Object, s *said, queues, keys []string) {
	if len(queues) == 0 {
		return
	}
	admin := queuev1.NewQueueAdminServiceClient(a.p.Queue.Conn)
	var wg sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for _, queue := range queues {
		for _, key := range keys {
			wg.Go(func() {
				free <- struct{}{}
				defer func() { <-free }()
				f := &why.Facts{Queue: queue, Key: key}
				answer, err := admin.Inspect(ctx, &queuev1.InspectRequest{Queue: queue, Key: key, Surroundings: true})
				a.mu.Lock()
				defer a.mu.Unlock()
				if err != nil {
					a.out = append(a.out, why.Silence{Part: why.PartQueue, Why: fmt.Sprintf("%s: %s", queue, a.p.reason(err))})
					return
				}
				fromQueue(f, answer)
				f.Now = time.Now()
				s.into(f)
				if woken(f) {
					o.Queues = append(o.Queues, why.Explain(f))
				}
			})
		}
	}
	wg.Wait()
	slices.SortFunc(o.Queues, func(x, y *why.Answer) int { return cmp.Or(cmp.Compare(x.Queue, y.Queue), cmp.Compare(x.Key, y.Key)) })
}

// woken says that a queue knows something of a key.
func woken(f *why.Facts) bool {
	return f.Item.State != workqueue.Idle || len(f.History) > 0 || len(f.Item.Barrier) > 0 || f.Item.Requeues > 0
}
