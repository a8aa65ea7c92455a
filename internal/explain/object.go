package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
// the index's that it may not or cannot say anything of such an object. While the index does not
// answer, queues are asked for the object's own key alone.
func (p *Parts) Object(ctx context.Context, name, key string) (*Object, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	o := &Object{Collection: name, Key: key, Queues: []*why.Answer{}}
	a := &asked{p: p}
	var s said
	var refused error
	others := make(chan string, mostOwners+1)
	i := &inspection{p: p, free: make(chan struct{}, atOnce), silent: map[string]error{}}
	a.mirror(ctx, &s)
	a.ask(ctx, why.PartIndex, p.Index, func(ctx context.Context, c grpc.ClientConnInterface) error {
		defer close(others)
		got, err := indexv1.NewIndexServiceClient(c).Get(ctx, &indexv1.GetRequest{Collection: name, Key: key})
		switch reason := rpc.Reason(err); {
		case reason == "KEY_NOT_FOUND":
			o.Absent = true
		case err == nil:
			o.RV = got.GetObject().GetResourceVersion()
			for _, other := range related(key, got.GetObject().GetPayload()) {
				others <- other
			}
		case reason != "":
			refused = fmt.Errorf("get %s %s: %w", name, key, err)
			cancel()
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
		if err != nil {
			return err
		}
		for _, q := range answer.GetQueues() {
			i.queues = append(i.queues, q.GetConfig().GetName())
		}
		o.Unasked = max(len(i.queues)-MostQueues, 0)
		i.queues = i.queues[:len(i.queues)-o.Unasked]
		i.ask(ctx, key)
		for other := range others {
			i.ask(ctx, other)
		}
		i.wg.Wait()
		return nil
	})
	a.wg.Wait()
	if refused != nil {
		return nil, refused
	}
	for _, f := range i.known {
		if s.into(f); woken(f) {
			o.Queues = append(o.Queues, why.Explain(f))
		}
	}
	slices.SortFunc(o.Queues, func(x, y *why.Answer) int { return cmp.Or(cmp.Compare(x.Queue, y.Queue), cmp.Compare(x.Key, y.Key)) })
	for _, silent := range a.out { // the index was asked twice
		if !slices.ContainsFunc(o.Silent, func(s why.Silence) bool { return s.Part == silent.Part }) {
			o.Silent = append(o.Silent, silent)
		}
	}
	if len(i.silent) > 0 {
		o.Silent = append(o.Silent, i.silence())
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

// inspection is what queues are asked about keys, a few at a time.
type inspection struct {
	p      *Parts
	queues []string
	wg     sync.WaitGroup
	free   chan struct{}
	mu     sync.Mutex
	known  []*why.Facts     // guarded by mu
	silent map[string]error // by queue, guarded by mu
}

// ask asks every queue about a key in the background.
func (i *inspection) ask(ctx context.Context, key string) {
	admin := queuev1.NewQueueAdminServiceClient(i.p.Queue.Conn)
	for _, queue := range i.queues {
		i.wg.Go(func() {
			i.free <- struct{}{}
			defer func() { <-i.free }()
			answer, err := admin.Inspect(ctx, &queuev1.InspectRequest{Queue: queue, Key: key, Surroundings: true})
			i.mu.Lock()
			defer i.mu.Unlock()
			if err != nil {
				i.silent[queue] = err
				return
			}
			f := &why.Facts{Queue: queue, Key: key}
			fromQueue(f, answer)
			f.Now = time.Now()
			i.known = append(i.known, f)
		})
	}
}

// silence names the first queue that did not answer, and says how many others did not.
func (i *inspection) silence() why.Silence {
	first := slices.Min(slices.Collect(maps.Keys(i.silent)))
	text := fmt.Sprintf("%s: %s", first, i.p.reason(i.silent[first]))
	if others := len(i.silent) - 1; others > 0 {
		text += fmt.Sprintf("; nor did %d others of %d queues", others, len(i.queues))
	}
	return why.Silence{Part: why.PartQueue, Why: text}
}

// woken says that a queue knows something of a key.
func woken(f *why.Facts) bool {
	return f.Item.State != workqueue.Idle || len(f.History) > 0 || len(f.Item.Barrier) > 0 || f.Item.Requeues > 0
}
