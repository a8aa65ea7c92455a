package embeddedtest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded"
)

// ClusterSet is masters of a Redis Cluster that share its 16,384 slots evenly.
type ClusterSet struct {
	t     testing.TB
	Nodes []*Node
}

// Cluster starts masters of a Redis Cluster, without replicas, each with an
// append-only file with fsync always, and waits until every one serves. A node
// that answers slowly is not taken for dead: it may be silent for a minute. A
// test of dead nodes passes a shorter --cluster-node-timeout.
func Cluster(t testing.TB, masters int, args ...string) *ClusterSet {
	t.Helper()
	const slots = 16384
	c := &ClusterSet{t: t}
	addrs := Ports(t, 2*masters)
	bus := func(i int) string { return addrs[masters+i][strings.LastIndex(addrs[masters+i], ":")+1:] }
	for i, addr := range addrs[:masters] {
		own := append([]string{
			"--appendfsync", "always", "--cluster-enabled", "yes", "--cluster-node-timeout", "60000", "--cluster-port", bus(i),
		}, args...)
		c.Nodes = append(c.Nodes, newNode(t, addr, embedded.RedisConfig{Persist: true, Args: own}))
	}
	for i, n := range c.Nodes { // before any of them knows another
		n.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		n.Do("CLUSTER", "ADDSLOTSRANGE", i*slots/masters, (i+1)*slots/masters-1)
	}
	for i, n := range c.Nodes {
		for j, other := range c.Nodes {
			if j != i {
				host, port, err := net.SplitHostPort(other.Addr())
				if err != nil {
					t.Fatal(err)
				}
				n.Do("CLUSTER", "MEET", host, port, bus(j))
			}
		}
	}
	c.Wait()
	return c
}

// Addrs are the nodes' addresses.
func (c *ClusterSet) Addrs() []string {
	var out []string
	for _, n := range c.Nodes {
		out = append(out, n.Addr())
	}
	return out
}

// URL is the redis+cluster:// URL of the set.
func (c *ClusterSet) URL() string { return "redis+cluster://" + strings.Join(c.Addrs(), ",") }

// Wait waits until every node sees every other and all slots served.
func (c *ClusterSet) Wait() {
	c.t.Helper()
	wait(c.t, "the cluster", time.Minute, func() bool {
		for _, n := range c.Nodes {
			info, err := n.try("CLUSTER", "INFO")
			text := fmt.Sprint(info)
			if err != nil || !strings.Contains(text, "cluster_state:ok") || !strings.Contains(text, fmt.Sprintf("cluster_size:%d\r", len(c.Nodes))) {
				return false
			}
		}
		return true
	})
}

// Of is the node that serves a key.
func (c *ClusterSet) Of(key string) *Node {
	c.t.Helper()
	for _, n := range c.Nodes {
		if _, err := n.try("EXISTS", key); err == nil {
			return n
		}
	}
	c.t.Fatalf("no node serves %q", key)
	return nil
}

// Move gives a slot with its keys to another node, as resharding does.
func (c *ClusterSet) Move(slot int, from, to *Node) {
	c.t.Helper()
	c.BeginMove(slot, from, to, 0)()
}

// BeginMove begins to move a slot, moves so many of its keys, and returns what
// moves the others and ends it.
func (c *ClusterSet) BeginMove(slot int, from, to *Node, keys int) (finish func()) {
	c.t.Helper()
	fromID, toID := from.Do("CLUSTER", "MYID"), to.Do("CLUSTER", "MYID")
	host, port, err := net.SplitHostPort(to.Addr())
	if err != nil {
		c.t.Fatal(err)
	}
	move := func(n int) bool {
		found, _ := from.Do("CLUSTER", "GETKEYSINSLOT", slot, n).([]any)
		if len(found) > 0 {
			from.Do(append([]any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}, found...)...)
		}
		return len(found) > 0
	}
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	if keys > 0 {
		move(keys)
	}
	return func() {
		for move(100) {
		}
		to.Do("CLUSTER", "SETSLOT", slot, "NODE", toID)
		for _, n := range c.Nodes {
			if n != to {
				n.Do("CLUSTER", "SETSLOT", slot, "NODE", toID)
			}
		}
	}
}
