package view

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

// mostOfNode is how many evictions of a node are shown.
const mostOfNode = 100

// Nodes shows the nodes of a cluster, or of all.
func (h *Hub) Nodes(_ context.Context, v *consolev1.NodesView, changed func()) (Reader, error) {
	s, release, err := h.share("nodes\x00"+v.GetCluster(), func() source {
		return &nodes{h: h, cluster: v.GetCluster(), again: newAgain(), clusters: map[string]*clusterNodes{}}
	})
	if err != nil {
		return nil, err
	}
	return s.(*nodes).read(changed, release), nil //nolint:forcetypeassert // as in polled
}

// nodes follows nodes and their leases by watches, and asks every second for what is about them.
type nodes struct {
	latest
	again
	h        *Hub
	cluster  string
	clusters map[string]*clusterNodes // for run alone
}

// clusterNodes is what is followed of one cluster.
type clusterNodes struct {
	name    string
	nodes   *kept[*nodelifecycle.Node]
	renewed *kept[time.Time]  // nil where leases are not mirrored
	bound   map[string]string // the nodes of pods that are to be evicted
	asked   time.Time         // when bound was begun
	cancel  context.CancelFunc
}

func (n *nodes) run(ctx context.Context) { n.looks(ctx, n.look) }

func (n *nodes) look(ctx context.Context) time.Duration {
	n.show(ctx)
	for _, c := range n.clusters {
		if _, synced, err := c.nodes.state(); !synced && err == nil {
			return every / 10
		}
	}
	return every
}

func (n *nodes) show(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := n.find(ctx, within); err != nil {
		n.fail(err)
		return
	}
	out := &consolev1.Nodes{}
	for _, name := range slices.Sorted(maps.Keys(n.clusters)) {
		n.h.nodesOf(within, n.clusters[name], out)
	}
	if ctx.Err() == nil {
		n.set(&consolev1.OpenResponse{Content: &consolev1.OpenResponse_Nodes{Nodes: out}})
	}
}

// find has the nodes of each cluster followed, for as long as life lasts.
func (n *nodes) find(life, ctx context.Context) error {
	answer, err := n.h.listCollections(ctx)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	leases := map[string]bool{}
	for _, c := range answer.GetCollections() {
		if n.cluster != "" && c.GetCluster() != n.cluster {
			continue
		}
		switch c.GetCollection() {
		case c.GetCluster() + "/nodes.v1":
			there[c.GetCluster()] = true
		case c.GetCluster() + "/leases.v1.coordination.k8s.io":
			leases[c.GetCluster()] = true
		}
	}
	for name, c := range n.clusters {
		if !there[name] || leases[name] != (c.renewed != nil) {
			c.cancel()
			delete(n.clusters, name)
		}
	}
	for name := range there {
		if n.clusters[name] == nil {
			n.clusters[name] = n.h.follow(life, name, leases[name])
		}
	}
	return nil
}

// follow follows the nodes of a cluster until ctx ends.
func (h *Hub) follow(ctx context.Context, cluster string, leases bool) *clusterNodes {
	c := &clusterNodes{name: cluster, bound: map[string]string{}}
	ctx, c.cancel = context.WithCancel(ctx)
	c.nodes = &kept[*nodelifecycle.Node]{
		collection: cluster + "/nodes.v1", all: map[string]*nodelifecycle.Node{}, read: nodeOf,
		options: client.WatchOptions{Log: h.log, Fields: []string{
			"metadata.name", "metadata.labels", "metadata.creationTimestamp", "spec.taints", "spec.unschedulable", "status.conditions",
		}},
	}
	h.wg.Go(func() { c.nodes.run(ctx, h.index) })
	if leases {
		c.renewed = &kept[time.Time]{
			collection: cluster + "/leases.v1.coordination.k8s.io", all: map[string]time.Time{},
			read:    func(payload []byte) time.Time { return gjson.GetBytes(payload, "spec.renewTime").Time() },
			options: client.WatchOptions{Log: h.log, Namespace: leaseNamespace, Fields: []string{"spec.renewTime"}},
		}
		h.wg.Go(func() { c.renewed.run(ctx, h.index) })
	}
	return c
}

// leaseNamespace has the leases of nodes.
const leaseNamespace = "kube-node-lease"

func nodeOf(payload []byte) *nodelifecycle.Node {
	n := new(nodelifecycle.Node)
	_ = json.Unmarshal(payload, n) // what cannot be read is shown as not known
	return n
}

// nodesOf adds the nodes of a cluster.
func (h *Hub) nodesOf(ctx context.Context, c *clusterNodes, out *consolev1.Nodes) {
	missing := func(what string, err error) {
		s := silent(what, err)
		out.Silent = append(out.Silent, s)
	}
	all, _, err := c.nodes.state()
	if err != nil {
		missing(c.name+" nodes", err)
	}
	var renewed map[string]time.Time
	if c.renewed == nil {
		out.Silent = append(out.Silent, &consolev1.Silent{Part: c.name + " leases", Why: "they are not mirrored: silence is that of nodes' own status"})
	} else if renewed, _, err = c.renewed.state(); err != nil {
		missing(c.name+" leases", err)
	}
	pods, err := h.podsByNode(ctx, c.name)
	if err != nil {
		missing(c.name+" pods", err)
	}
	evictions, cut, err := h.evictions(ctx, c)
	if err != nil {
		missing(c.name+" evictions", err)
	} else if cut != "" {
		out.Silent = append(out.Silent, &consolev1.Silent{Part: c.name + " evictions", Why: cut})
	}
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		n := shownNode(all[name], renewed[leaseNamespace+"/"+name], now)
		n.Collection, n.Name, n.Evictions = c.name+"/nodes.v1", name, evictions[name]
		n.Pods, n.PodsKnown = uint32(pods[name]), pods != nil //nolint:gosec // they fit into memory
		out.Nodes = append(out.Nodes, n)
	}
}

// shownNode is a node as it is shown. Renewed is zero where its lease is not known.
func shownNode(in *nodelifecycle.Node, renewed, now time.Time) *consolev1.Node {
	ready := in.Condition(nodelifecycle.Ready)
	n := &consolev1.Node{
		Ready: cmp.Or(ready.Status, "Unknown"), Health: consolev1.Health_HEALTH_WELL, Unschedulable: in.Spec.Unschedulable,
		CreatedAt: timestamppb.New(in.Metadata.CreationTimestamp),
	}
	zone := nodelifecycle.ZoneOf(in.Metadata.Labels)
	n.Zone = strings.Trim(zone.Region+"/"+zone.Name, "/")
	if renewed.IsZero() {
		renewed, _ = time.Parse(time.RFC3339, ready.LastHeartbeatTime) // zero where it does not say
	}
	if !renewed.IsZero() {
		n.Silence = durationpb.New(max(now.Sub(renewed), 0).Truncate(time.Second))
	}
	for _, t := range in.Spec.Taints {
		n.Taints = append(n.Taints, taintText(t))
	}
	switch {
	case n.GetReady() != nodelifecycle.True:
		n.Health = consolev1.Health_HEALTH_FAILING
	case len(n.GetTaints()) > 0, n.GetUnschedulable():
		n.Health = consolev1.Health_HEALTH_WARNING
	}
	return n
}

func taintText(t taint.Taint) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + t.Effect
}
