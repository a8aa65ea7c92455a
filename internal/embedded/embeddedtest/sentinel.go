package embeddedtest

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded"
)

// MasterName is what sentinels call the master they watch.
const MasterName = "deltaplane"

// steady and quick are how long a master may be silent before the sentinels
// replace it: as a rule, and once it was killed.
const steady, quick = time.Minute, 500 * time.Millisecond

// SentinelSet is a master, its replicas, and three sentinels. They replace a
// master that Kill or Fail ended within a second or two, any other one only
// after a minute of silence: a slow machine is no failover.
type SentinelSet struct {
	t         testing.TB
	Nodes     []*Node // the first was the first master
	Sentinels []*Node
}

// Sentinel starts a master, replicas of it, and three sentinels, and waits
// until the replicas have caught up. Every server has an append-only file with
// fsync always; args are further arguments of master and replicas.
func Sentinel(t testing.TB, replicas int, args ...string) *SentinelSet {
	t.Helper()
	s := &SentinelSet{t: t}
	addrs := Ports(t, 1+replicas+3)
	args = append([]string{"--appendfsync", "always", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"}, args...)
	for i, addr := range addrs[:1+replicas] {
		own := args
		if i > 0 {
			own = append(slices.Clip(own), "--replicaof", strings.Replace(addrs[0], ":", " ", 1))
		}
		s.Nodes = append(s.Nodes, newNode(t, addr, embedded.RedisConfig{Persist: true, Args: own}))
	}
	watchers := addrs[1+replicas:]
	for i, addr := range watchers {
		var conf strings.Builder
		line := func(format string, a ...any) { fmt.Fprintf(&conf, "sentinel "+format+"\n", a...) }
		line("myid %040d", i+1)
		line("monitor %s %s 2", MasterName, strings.Replace(addrs[0], ":", " ", 1))
		line("down-after-milliseconds %s %d", MasterName, steady.Milliseconds())
		line("failover-timeout %s 3000", MasterName)
		// What they would tell one another in their first seconds.
		for _, replica := range addrs[1 : 1+replicas] {
			line("known-replica %s %s", MasterName, strings.Replace(replica, ":", " ", 1))
		}
		for j, other := range watchers {
			if j != i {
				line("known-sentinel %s %s %040d", MasterName, strings.Replace(other, ":", " ", 1), j+1)
			}
		}
		s.Sentinels = append(s.Sentinels, newNode(t, addr, embedded.RedisConfig{Config: conf.String(), Args: []string{"--sentinel"}}))
	}
	s.WaitReplicas(replicas)
	return s
}

// Addrs are the sentinels' addresses.
func (s *SentinelSet) Addrs() []string {
	var out []string
	for _, n := range s.Sentinels {
		out = append(out, n.Addr())
	}
	return out
}

// URL is the redis+sentinel:// URL of the set.
func (s *SentinelSet) URL() string {
	return "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + MasterName
}

// Master is the node that the sentinels call master now.
func (s *SentinelSet) Master() *Node {
	s.t.Helper()
	if n := s.master(); n != nil {
		return n
	}
	s.t.Fatal("no sentinel tells the master")
	return nil
}

func (s *SentinelSet) master() *Node {
	for _, w := range s.Sentinels {
		got, err := w.try("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
		if parts, ok := got.([]any); err == nil && ok && len(parts) == 2 {
			addr := net.JoinHostPort(fmt.Sprint(parts[0]), fmt.Sprint(parts[1]))
			for _, n := range s.Nodes {
				if n.Addr() == addr {
					return n
				}
			}
		}
	}
	return nil
}

// Kill ends the master as kill -9 does, and lets the sentinels replace it soon.
// It returns the old master, which Start brings back as a replica.
func (s *SentinelSet) Kill() (was *Node) {
	s.t.Helper()
	was = s.Master()
	s.replaceAfter(quick)
	was.Kill()
	return was
}

// Fail is Kill, and waits until the sentinels have made a replica the master
// and it takes writes. It returns the old master and the new one.
func (s *SentinelSet) Fail() (was, is *Node) {
	s.t.Helper()
	was = s.Kill()
	is = s.WaitMaster(was)
	s.replaceAfter(steady)
	return was, is
}

// replaceAfter sets how long a master may be silent before it is replaced.
func (s *SentinelSet) replaceAfter(silence time.Duration) {
	s.t.Helper()
	for _, w := range s.Sentinels {
		w.Do("SENTINEL", "SET", MasterName, "down-after-milliseconds", silence.Milliseconds())
	}
}

// WaitMaster waits until another node than was is the master and takes writes.
func (s *SentinelSet) WaitMaster(was *Node) (is *Node) {
	s.t.Helper()
	s.wait("a new master", time.Minute, func() bool {
		is = s.master()
		return is != nil && is != was && s.role(is) == "master"
	})
	return is
}

func (s *SentinelSet) role(n *Node) string {
	got, err := n.try("ROLE")
	if parts, ok := got.([]any); err == nil && ok && len(parts) > 0 {
		return fmt.Sprint(parts[0])
	}
	return ""
}

// WaitReplicas waits until n replicas have what the master has.
func (s *SentinelSet) WaitReplicas(n int) {
	s.t.Helper()
	s.wait(fmt.Sprintf("%d replicas in step", n), time.Minute, func() bool {
		m := s.master()
		if m == nil {
			return false
		}
		const key = "embeddedtest:step"
		got, err := m.all([]any{"SET", key, "1"}, []any{"WAIT", n, 100}, []any{"DEL", key})
		return err == nil && got[1] == int64(n)
	})
}

func (s *SentinelSet) wait(what string, limit time.Duration, done func() bool) {
	s.t.Helper()
	wait(s.t, what, limit, done)
}

func wait(t testing.TB, what string, limit time.Duration, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("waiting for %s: the test has ended", what)
		case <-deadline.C:
			t.Fatalf("waiting for %s: not in %v", what, limit)
		}
	}
}
