package embeddedtest

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/internal/embedded"
)

// Node is a Redis at one address that can end and start again. Its methods are
// safe for concurrent use; they fail the test when they fail.
type Node struct {
	t   testing.TB
	cfg embedded.RedisConfig

	mu  sync.Mutex
	run *embedded.Redis // nil while it is down; guarded by mu
}

// DurableRedis starts a Redis that has on disk what it acknowledged: an
// append-only file with fsync always.
func DurableRedis(t testing.TB, args ...string) *Node {
	t.Helper()
	return newNode(t, Ports(t, 1)[0], embedded.RedisConfig{Persist: true, Args: append([]string{"--appendfsync", "always"}, args...)})
}

func newNode(t testing.TB, addr string, cfg embedded.RedisConfig) *Node {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	cfg.Dir, cfg.Binary = t.TempDir(), Binary()
	n := &Node{t: t, cfg: cfg}
	n.Start()
	t.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.run != nil {
			n.run.Kill() // nothing is read from its data any more
		}
	})
	return n
}

// Addr is host:port, the same permanently.
func (n *Node) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.cfg.Port)) }

// URL is the address as redis:// URL.
func (n *Node) URL() string { return "redis://" + n.Addr() }

// Kill ends the server as kill -9 does. It does nothing to one that is down.
func (n *Node) Kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run != nil {
		n.run.Kill()
		n.run = nil
	}
}

// Start starts the server again, with the data that it has on disk, and waits
// until it answers. It does nothing to one that runs.
func (n *Node) Start() {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run != nil {
		return
	}
	run, err := embedded.StartRedisWith(n.t.Context(), n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.run = run
}

// Pause stops the server's process, as SIGSTOP does.
func (n *Node) Pause() { n.signal(syscall.SIGSTOP) }

// Continue lets a paused server go on.
func (n *Node) Continue() { n.signal(syscall.SIGCONT) }

func (n *Node) signal(s syscall.Signal) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run == nil {
		return
	}
	if err := syscall.Kill(n.run.Pid(), s); err != nil {
		n.t.Errorf("signal %v to redis: %v", s, err)
	}
}

// Do sends the server a command and returns its answer; it fails the test on
// an error.
func (n *Node) Do(args ...any) any {
	n.t.Helper()
	got, err := n.try(args...)
	if err != nil {
		n.t.Fatalf("redis %v: %v", args, err)
	}
	return got
}

func (n *Node) try(args ...any) (any, error) {
	got, err := n.all(args)
	if err != nil {
		return nil, err
	}
	return got[0], nil
}

// all sends commands on one connection.
func (n *Node) all(commands ...[]any) ([]any, error) {
	c := redis.NewClient(&redis.Options{Addr: n.Addr(), MaxRetries: -1, Protocol: 2, DisableIdentity: true})
	defer c.Close()
	cmds, err := c.Pipelined(n.t.Context(), func(p redis.Pipeliner) error {
		for _, args := range commands {
			p.Do(n.t.Context(), args...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Addr(), err)
	}
	var out []any
	for _, cmd := range cmds {
		got, _ := cmd.(*redis.Cmd).Result()
		out = append(out, got)
	}
	return out, nil
}
