package view

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// podsByNode counts the pods of each node; nil where pods are not mirrored.
func (h *Hub) podsByNode(ctx context.Context, cluster string) (map[string]int64, error) {
	values, _, err := h.index.IndexValues(ctx, cluster+"/pods.v1", "node", "", client.ReadOptions{})
	switch {
	case rpc.Reason(err) == "COLLECTION_NOT_FOUND":
		return nil, nil
	case err != nil:
		return nil, err
	}
	out := map[string]int64{}
	for _, v := range values {
		out[v.Value] = v.Keys
	}
	return out, nil
}

// boundFor is how long a pod is believed to be on its node: another of its name may be elsewhere.
const boundFor = 10 * time.Second

// evictions are those that the taint eviction controller of a cluster has planned, by node: its
// queue has each pod's key until then. Cut says which are left out; empty for none.
func (h *Hub) evictions(ctx context.Context, c *clusterNodes) (out map[string][]*consolev1.Eviction, cut string, err error) {
	queue := c.name + "/tainteviction"
	answer, err := h.queues.ListItems(ctx, &queuev1.ListItemsRequest{Queue: queue, State: queuev1.State_STATE_DELAYED, PageSize: pageOf, Partial: true})
	switch {
	case rpc.Reason(err) == "QUEUE_NOT_FOUND": // no such controller runs
		return nil, "", nil
	case err != nil:
		return nil, "", err
	}
	if now := time.Now(); now.Sub(c.asked) > boundFor {
		c.bound, c.asked = map[string]string{}, now
	}
	due := map[string]*queuev1.Item{}
	var ask []string
	for _, i := range answer.GetItems() {
		if !strings.Contains(i.GetKey(), "/") {
			continue // a key of the controller itself
		}
		due[i.GetKey()] = i
		if _, known := c.bound[i.GetKey()]; !known {
			ask = append(ask, i.GetKey())
		}
	}
	maps.DeleteFunc(c.bound, func(key, _ string) bool { return due[key] == nil })
	if len(ask) > 0 {
		got, err := h.index.BatchGet(ctx, c.name+"/pods.v1", ask, client.ReadOptions{Fields: []string{"spec.nodeName"}})
		if err != nil {
			return nil, "", err
		}
		for _, o := range got.Objects {
			if node := gjson.GetBytes(o.Payload, "spec.nodeName").Str; node != "" {
				c.bound[o.Key] = node
			}
		}
	}
	out = map[string][]*consolev1.Eviction{}
	items := answer.GetItems()
	slices.SortFunc(items, func(x, y *queuev1.Item) int {
		return x.GetDelayedUntil().AsTime().Compare(y.GetDelayedUntil().AsTime())
	})
	full := map[string]int{} // by node, how many are left out
	for _, i := range items {
		node := c.bound[i.GetKey()]
		switch {
		case node == "":
		case len(out[node]) < mostOfNode:
			out[node] = append(out[node], &consolev1.Eviction{Pod: i.GetKey(), Due: i.GetDelayedUntil(), Queue: queue})
		default:
			full[node]++
		}
	}
	return out, leftOut(full, answer.GetNextPageToken() != ""), nil
}

// leftOut says which evictions are not shown.
func leftOut(full map[string]int, more bool) string {
	var parts []string
	if more {
		parts = append(parts, fmt.Sprintf("more than %d are planned, and only so many are read", pageOf))
	}
	for _, node := range slices.Sorted(maps.Keys(full)) {
		if len(parts) > 3 {
			parts = append(parts, "and so of other nodes")
			break
		}
		parts = append(parts, fmt.Sprintf("%s has %d more than the %d that are shown", node, full[node], mostOfNode))
	}
	return strings.Join(parts, "; ")
}
