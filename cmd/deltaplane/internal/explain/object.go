package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/why"
	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Bounds of what is asked about one object.
const (
	mostQueues = 200
	mostOwners = 8
	atOnce     = 16
)

func newWhyObject() *cobra.Command {
	var p parts
	var output string
	cmd := &cobra.Command{
		Use:   "why COLLECTION KEY",
		Short: "Tell why an object's keys wait in the queues that it woke, and what would help",
		Long: `Tell why an object's keys wait in every queue that it woke, and what would help. Asked are the
queues of the collection's cluster (all, where COLLECTION names none) for the object's own key and
for those of its owners and its node, at most 200 queues, and shown are those that know such a key.
"why queue" tells of one key.

Queues, index and reflector are asked at the same time; a part that does not answer within
--timeout is named, and the answer is made of the rest.`,
		Example: `  deltaplane why jobs default/hello
  deltaplane why dev/pods.v1 default/hello-0 -o json
  deltaplane why queue dev/job default/hello`,
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			answer, err := p.object(cmd.Context(), a[0], a[1])
			if err != nil {
				return err
			}
			if output == "json" {
				return show.PrintJSON(cmd.OutOrStdout(), answer)
			}
			return answer.print(cmd.OutOrStdout())
		},
	}
	p.register(cmd)
	show.RegisterOutput(cmd, &output)
	return cmd
}

// object is what is known of an object and of the keys it woke.
type object struct {
	Collection string        `json:"collection"`
	Key        string        `json:"key"`
	RV         string        `json:"resource_version,omitempty"`
	Absent     bool          `json:"absent,omitempty"`
	Queues     []*why.Answer `json:"queues"`
	Silent     []why.Silence `json:"silent,omitempty"`
	// Unasked is how many queues there are beside those that were asked.
	Unasked int `json:"queues_not_asked,omitempty"`
}

func (o *object) print(out io.Writer) error {
	state := "is at resource version " + o.RV
	switch {
	case o.Absent:
		state = "is not in the index"
	case o.RV == "":
		state = "is not known: the index did not say"
	}
	fmt.Fprintf(out, "%s %s %s\n", o.Collection, show.Printable(o.Key), state)
	for _, s := range o.Silent {
		fmt.Fprintf(out, "The %s did not answer: %s\n", s.Part, show.Printable(s.Why))
	}
	for _, a := range o.Queues {
		a.Silent = nil // it is said above
		fmt.Fprintf(out, "\n%s\n", a.Queue)
		if err := printAnswer(out, a); err != nil {
			return err
		}
	}
	switch {
	case o.Unasked > 0:
		_, err := fmt.Fprintf(out, "\nAsked were the first %d queues by name, and not %d more; \"deltaplane why queue QUEUE %s\" asks one.\n", mostQueues, o.Unasked, show.Printable(o.Key))
		return err
	case len(o.Queues) > 0:
		return nil
	}
	_, err := fmt.Fprintln(out, "No queue knows a key of it: nobody was woken, or all that it woke is done and forgotten.")
	return err
}

// Woken explains the keys of queues that an object woke, for those who tell more of the object. It
// names the parts that did not answer, and counts the queues that were not asked.
func Woken(ctx context.Context, d cli.DialFlags, collection, key string) (queues []*why.Answer, silent []why.Silence, unasked int, err error) {
	o, err := (&parts{d}).object(ctx, collection, key)
	if err != nil {
		return nil, nil, 0, err
	}
	return o.Queues, o.Silent, o.Unasked, nil
}

// object asks the index for an object, and every queue of its cluster for what it woke.
func (p *parts) object(ctx context.Context, name, key string) (*object, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	o := &object{Collection: name, Key: key, Queues: []*why.Answer{}}
	a := &asked{p: p}
	var s said
	var queues []string
	var refused error
	keys := []string{key}
	a.mirror(ctx, &s)
	a.ask(ctx, why.PartIndex, p.Index, func(ctx context.Context, c *grpc.ClientConn) error {
		obj, _, err := client.NewIndex(c).Get(ctx, name, key, client.ReadOptions{})
		switch fault, known := errors.AsType[*client.Error](err); {
		case errors.Is(err, client.ErrKeyNotFound):
			o.Absent = true
		case err == nil:
			o.RV, keys = obj.ResourceVersion, append(keys, related(key, obj.Payload)...)
		case known && fault.Reason != "":
			refused = err
		default:
			return err
		}
		return nil
	})
	a.ask(ctx, why.PartQueue, p.Queue, func(ctx context.Context, c *grpc.ClientConn) error {
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
	if err := cmp.Or(refused, first(a.errs)); err != nil {
		return nil, err
	}
	asked := queues[:min(len(queues), mostQueues)]
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
func (a *asked) inspect(ctx context.Context, o *object, s *said, queues, keys []string) {
	if len(queues) == 0 {
		return
	}
	c, err := cli.Connect(a.p.Queue, a.p.Config)
	if err != nil {
		return // it was connected to a moment ago
	}
	defer c.Close()
	admin := queuev1.NewQueueAdminServiceClient(c)
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
