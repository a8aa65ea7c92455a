package controllers

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/services/controllers/nodelifecycle"
)

func TestNodesAreJudgedByTheOlderOfTheirCollectionsAndOnlyWhileBothAreFollowed(t *testing.T) {
	t.Parallel()
	const nodes, leases = "c1/core/v1/nodes", "c1/coordination.k8s.io/v1/leases"
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	status := func(name string, live time.Duration, change func(*client.CollectionStatus)) client.CollectionStatus {
		c := client.CollectionStatus{
			Collection: name, Synced: true, LiveAt: start.Add(live), Bounds: client.Bounds{Revision: client.Revision{Epoch: 7, RV: "rv of " + name}},
		}
		if change != nil {
			change(&c)
		}
		return c
	}
	pods := status("c1/core/v1/pods", time.Hour, func(c *client.CollectionStatus) { c.Stale = true })
	for _, c := range []struct {
		name         string
		nodes, lease time.Duration
	}{
		{"leases stall while node objects flow", time.Minute, time.Second},
		{"node objects stall while leases flow", time.Second, time.Minute},
	} {
		for _, served := range [][]client.CollectionStatus{
			{pods, status(nodes, c.nodes, nil), status(leases, c.lease, nil)},
			{status(leases, c.lease, nil), status(nodes, c.nodes, nil), pods},
		} {
			f, at, err := freshOf(served, nodes, leases)
			if err != nil || !f.Known.Equal(start.Add(time.Second)) || !f.Heard.Equal(start.Add(time.Minute)) {
				t.Errorf("%s: known until %v, heard of until %v, %v; want 1s and 1m", c.name, f.Known.Sub(start), f.Heard.Sub(start), err)
			}
			want := map[string]delta.Revision{nodes: {Epoch: 7, RV: "rv of " + nodes}, leases: {Epoch: 7, RV: "rv of " + leases}}
			if !maps.Equal(at, want) {
				t.Errorf("%s: at %v, want %v", c.name, at, want)
			}
		}
	}
	good := map[string]client.CollectionStatus{nodes: status(nodes, time.Second, nil), leases: status(leases, time.Second, nil)}
	for name, change := range map[string]func(*client.CollectionStatus){
		"stale":              func(c *client.CollectionStatus) { c.Stale = true },
		"not synced":         func(c *client.CollectionStatus) { c.Synced = false },
		"never live":         func(c *client.CollectionStatus) { c.LiveAt = time.Time{} },
		"another collection": func(c *client.CollectionStatus) { c.Collection += "s" },
	} {
		for of := range good {
			var served []client.CollectionStatus
			for key, c := range good {
				if key == of {
					change(&c)
				}
				served = append(served, c)
			}
			if f, _, err := freshOf(served, nodes, leases); !errors.Is(err, nodelifecycle.ErrStale) {
				t.Errorf("%s is %s: %+v, %v; want ErrStale", of, name, f, err)
			}
		}
	}
}
