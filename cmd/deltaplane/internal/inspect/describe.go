package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/show"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/controllers"
)

// NodeQuestion is what "describe node" is asked.
type NodeQuestion struct {
	cli.DialFlags
	Cluster string
	rules   nodelifecycle.Rules
}

// NewDescribeNode is the command "describe node".
func NewDescribeNode() *cobra.Command {
	var q NodeQuestion
	var output string
	cmd := &cobra.Command{
		Use:     "node NAME",
		Aliases: []string{"nodes", "no"},
		Short:   "Tell how long a node has been silent, the state of its zone, its taints and the next evictions",
		Long: `Tell how long a node has been silent and how long it may be, the state of its zone and how
fast nodes of it are tainted, its conditions and taints, and when its pods are to be
evicted, the next one first.

The silence is what the node lifecycle controller measures, on the clock of the log; the
last heartbeat beside it is by the node's own clock, which may be wrong. Without that
controller no silence is shown, without the taint eviction controller no eviction.`,
		Example: `  deltaplane describe node node-1
  deltaplane describe node node-1 -o json`,
		Args: cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			ctx, cancel := cli.ContextWithTimeout(cmd, q.Timeout)
			defer cancel()
			n, err := q.Ask(ctx, a[0])
			if err != nil {
				return err
			}
			if output == "json" {
				return show.PrintJSON(cmd.OutOrStdout(), n)
			}
			return n.Print(cmd.OutOrStdout())
		},
	}
	q.Register(cmd.Flags())
	show.RegisterOutput(cmd, &output)
	cmd.Flags().StringVar(&q.Cluster, "cluster", "dev", "`name` of the cluster, the first part of its collections' names")
	cmd.Flags().Float64Var(&q.rules.Threshold, "unhealthy-zone-threshold", nodelifecycle.Rules{}.WithDefaults().Threshold,
		"the controllers' setting: share of a zone's nodes that are not ready from which it is partially disrupted")
	return cmd
}

// NodeAnswer is all that is known of a node, as programs read it.
type NodeAnswer struct {
	Name    string         `json:"name"`
	Created time.Time      `json:"created"`
	Silence *SilenceAnswer `json:"silence,omitempty"`
	// Trouble is why the silence is not measured, when the controller said so.
	Trouble    string                    `json:"trouble,omitempty"`
	Heartbeat  heartbeatAnswer           `json:"last_heartbeat"`
	Zone       ZoneAnswer                `json:"zone"`
	Conditions []nodelifecycle.Condition `json:"conditions"`
	Taints     []taint.Taint             `json:"taints"`
	Waits      bool                      `json:"waits_for_taint"`
	Pods       int                       `json:"pods"`
	Evictions  []EvictionAnswer          `json:"evictions"`
	KnownAt    time.Time                 `json:"known_at"`
}

// SilenceAnswer is how long a node has been silent, by the clock of its collections.
type SilenceAnswer struct {
	Since   time.Time `json:"since"`
	Seconds float64   `json:"seconds"`
	Grace   float64   `json:"grace_seconds"`
	Over    bool      `json:"over"`
}

// heartbeatAnswer is what the node says of itself, by its own clock.
type heartbeatAnswer struct {
	Lease  string `json:"lease,omitempty"`
	Status string `json:"status,omitempty"`
}

// ZoneAnswer is how the zone of a node stands.
type ZoneAnswer struct {
	Region   string              `json:"region"`
	Name     string              `json:"name"`
	State    nodelifecycle.State `json:"state"`
	Ready    int                 `json:"ready"`
	NotReady int                 `json:"not_ready"`
	// Rate is how many of its nodes a second are tainted, as its queue has it; nil
	// when nobody rules it.
	Rate    *float64 `json:"taints_per_second"`
	Waiting int64    `json:"waiting"`
	// Stopped says that every zone is down.
	Stopped bool `json:"all_zones_down"`
}

// EvictionAnswer is a pod that is to be evicted, and when.
type EvictionAnswer struct {
	Pod string    `json:"pod"`
	Due time.Time `json:"due"`
	// Taint is the key of the taint that ends the pod's stay.
	Taint string `json:"taint"`
	// State is where the pod's key stands in the queue, Planned when it comes.
	State   string     `json:"queue_state"`
	Planned *time.Time `json:"queue_due,omitempty"`
	Retries int64      `json:"retries"`
}

// Ask reads a node and what surrounds it.
func (q *NodeQuestion) Ask(ctx context.Context, name string) (*NodeAnswer, error) {
	indexConn, err := cli.Dial(q.Index, q.Config)
	if err != nil {
		return nil, err
	}
	defer indexConn.Close()
	queueConn, err := cli.Dial(q.Queue, q.Config)
	if err != nil {
		return nil, err
	}
	defer queueConn.Close()
	index, queues := client.NewIndex(indexConn), queuev1.NewQueueAdminServiceClient(queueConn)
	collection := func(group, resource string) string {
		return delta.Collection{Cluster: q.Cluster, Group: group, Version: "v1", Resource: resource}.String()
	}
	obj, _, err := index.Get(ctx, collection("", "nodes"), name, client.ReadOptions{})
	if err != nil {
		return nil, cli.Plain(err)
	}
	var n nodelifecycle.Node
	if err := json.Unmarshal(obj.Payload, &n); err != nil {
		return nil, fmt.Errorf("node %s: %w", name, err)
	}
	a := &NodeAnswer{
		Name: name, Created: n.Metadata.CreationTimestamp, Conditions: show.OrEmpty(n.Status.Conditions), Taints: show.OrEmpty(n.Spec.Taints), Evictions: []EvictionAnswer{},
		Heartbeat: heartbeatAnswer{Status: n.Condition(nodelifecycle.Ready).LastHeartbeatTime},
	}
	lease, _, err := index.Find(ctx, collection("coordination.k8s.io", "leases"), "kube-node-lease/"+name, client.ReadOptions{})
	switch {
	case err == nil && lease != nil:
		a.Heartbeat.Lease = gjson.GetBytes(lease.Payload, "spec.renewTime").String()
	case err != nil && !errors.Is(err, client.ErrCollectionNotFound): // leases need not be mirrored
		return nil, err
	}
	if err := q.silence(ctx, index, queues, a); err != nil {
		return nil, err
	}
	if err := q.zone(ctx, index, queues, a, collection("", "nodes"), nodelifecycle.ZoneOf(n.Metadata.Labels)); err != nil {
		return nil, err
	}
	pods, _, err := index.ByIndex(ctx, collection("", "pods"), "node", []string{name}, client.ReadOptions{})
	if err != nil {
		return nil, cli.Plain(err)
	}
	a.Pods = len(pods)
	return a, q.evictions(ctx, queues, a, pods)
}

// inspect is a key of a queue; nil when there is no such queue.
func inspect(ctx context.Context, queues queuev1.QueueAdminServiceClient, queue, key string) (*queuev1.Item, error) {
	answer, err := queues.Inspect(ctx, &queuev1.InspectRequest{Queue: queue, Key: key})
	if isReason(err, "QUEUE_NOT_FOUND") {
		return nil, nil
	}
	return answer.GetItem(), err
}

// silence takes from the queue since when the controller has heard nothing, and
// from the index until when anything would be known.
func (q *NodeQuestion) silence(ctx context.Context, index *client.Index, queues queuev1.QueueAdminServiceClient, a *NodeAnswer) error {
	served, err := index.Collections(ctx)
	if err != nil {
		return err
	}
	for _, c := range served {
		live := c.LiveAt
		if live.IsZero() {
			continue
		}
		watched := c.Resource == "nodes" && c.Group == "" || c.Resource == "leases" && c.Group == "coordination.k8s.io"
		if c.Cluster == q.Cluster && watched && (a.KnownAt.IsZero() || live.Before(a.KnownAt)) {
			a.KnownAt = live
		}
	}
	item, err := inspect(ctx, queues, q.Cluster+"/nodelifecycle", a.Name)
	if err != nil {
		return err
	}
	if s, ok := nodelifecycle.ParseSilence(item.GetLastReason(), a.KnownAt); ok {
		a.Silence = &SilenceAnswer{Since: s.Since, Seconds: s.For.Seconds(), Grace: (s.For + s.Left).Seconds(), Over: s.Over()}
	} else {
		a.Trouble = item.GetLastReason()
	}
	return nil
}

// zone counts the nodes of the index and reads the rate that is in force.
func (q *NodeQuestion) zone(ctx context.Context, index *client.Index, queues queuev1.QueueAdminServiceClient, a *NodeAnswer, nodes string, zone nodelifecycle.Zone) error {
	objs, _, err := index.List(ctx, nodes, client.ListOptions{ReadOptions: client.ReadOptions{
		Fields: []string{"metadata.name", "metadata.labels", "status.conditions"},
	}})
	if err != nil {
		return err
	}
	all := make([]*nodelifecycle.Node, len(objs))
	for i, o := range objs {
		all[i] = new(nodelifecycle.Node)
		if err := json.Unmarshal(o.Payload, all[i]); err != nil {
			return fmt.Errorf("node %s: %w", o.Key, err)
		}
	}
	view := q.rules.View(all)
	c := view.Counts[zone]
	a.Zone = ZoneAnswer{Region: zone.Region, Name: zone.Name, State: view.States[zone], Ready: c.Ready, NotReady: c.NotReady, Stopped: view.Stopped}
	queue := controllers.ZoneQueue(q.Cluster, zone)
	list, err := queues.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: queue})
	if err != nil {
		return err
	}
	for _, s := range list.GetQueues() {
		if s.GetConfig().GetName() != queue {
			continue
		}
		a.Zone.Waiting, a.Zone.Rate = s.GetCounts().GetReady()+s.GetCounts().GetDelayed()+s.GetCounts().GetProcessing(), new(0.0)
		if !s.GetPaused() {
			*a.Zone.Rate = s.GetConfig().GetDispatchLimiter().GetQps()
		}
		item, err := inspect(ctx, queues, queue, a.Name)
		if err != nil {
			return err
		}
		a.Waits = item.GetState() != queuev1.State_STATE_UNSPECIFIED && item.GetState() != queuev1.State_STATE_IDLE
	}
	return nil
}

// evictions are the pods whose stay ends, by their tolerations, and what the queue
// has planned for each.
func (q *NodeQuestion) evictions(ctx context.Context, queues queuev1.QueueAdminServiceClient, a *NodeAnswer, pods []client.Object) error {
	if len(taint.Evicting(a.Taints)) == 0 {
		return nil
	}
	for _, o := range pods {
		if gjson.GetBytes(o.Payload, "metadata.deletionTimestamp").Exists() {
			continue
		}
		var p taint.Pod
		if err := json.Unmarshal([]byte(cmp.Or(gjson.GetBytes(o.Payload, "spec.tolerations").Raw, "null")), &p.Tolerations); err != nil {
			return fmt.Errorf("pod %s: tolerations: %w", o.Key, err)
		}
		p.Bound = gjson.GetBytes(o.Payload, `status.conditions.#(type=="PodScheduled").lastTransitionTime`).Time()
		if p.Bound.IsZero() {
			p.Bound = gjson.GetBytes(o.Payload, "metadata.creationTimestamp").Time()
		}
		stay, _ := taint.Rules{}.Stay(time.Now(), a.Taints, p, nil)
		if stay.Forever() {
			continue
		}
		item, err := inspect(ctx, queues, q.Cluster+"/tainteviction", o.Key)
		if err != nil {
			return err
		}
		e := EvictionAnswer{Pod: o.Key, Due: stay.Ends, Taint: stay.Because.Key, State: "not planned", Retries: item.GetNumRequeues()}
		if item != nil {
			e.State = show.StateName(item.GetState())
		}
		if at := item.GetDelayedUntil(); at != nil {
			e.Planned = new(at.AsTime())
		}
		a.Evictions = append(a.Evictions, e)
	}
	slices.SortFunc(a.Evictions, func(x, y EvictionAnswer) int {
		return cmp.Or(x.Due.Compare(y.Due), cmp.Compare(x.Pod, y.Pod))
	})
	return nil
}
