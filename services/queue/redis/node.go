package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// node is one address that takes writes: the Redis, what the sentinels call
// the master, or one master of a cluster.
type node struct {
	addr   string
	client *redis.Client
	facts  atomic.Pointer[facts]
	down   atomic.Bool // it was not reached when it was last met
}

// facts are what a Redis told of itself when a connection to it was made.
type facts struct {
	run      string // run id
	version  string // with the name of the product
	mode     string // standalone, sentinel or cluster
	replica  bool
	replicas int  // connected then
	waitAOF  bool // it has WAITAOF
	aof      bool
	fsync    string      // its appendfsync, empty when it must not be asked
	loaded   atomic.Bool // it has the transaction's script
	probed   atomic.Bool // and lets it do what it does
}

// run is the run id of the node as last met, empty before the first contact.
func (n *node) run() string {
	if f := n.facts.Load(); f != nil {
		return f.run
	}
	return ""
}

// met takes in what a Redis told, and returns what it told before.
func (n *node) met(f *facts) *facts {
	if was := n.facts.Load(); was != nil && was.run == f.run {
		f.loaded.Store(was.loaded.Load())
		f.probed.Store(was.probed.Load())
	}
	return n.facts.Swap(f)
}

// errRun ends a call whose connection met a Redis with another run id: its
// arguments named the old one, and nothing was sent.
var errRun = errors.New("queue: redis was restarted or failed over")

// unwrapped is an error found while a connection was made. The client library takes
// one layer off what a connection ends with.
type unwrapped struct{ err error }

func (u unwrapped) Error() string { return u.err.Error() }
func (u unwrapped) Unwrap() error { return u.err }

// pipeliner is a connection or a client.
type pipeliner interface {
	Pipelined(ctx context.Context, fn func(redis.Pipeliner) error) ([]redis.Cmder, error)
}

// onConnect learns who is behind every new connection, and refuses what the
// engine cannot work with.
func (e *Engine) onConnect(n *node) func(context.Context, *redis.Conn) error {
	return func(ctx context.Context, cn *redis.Conn) error {
		f, err := learn(ctx, cn)
		if e.target.of == sentinel && !toMaster(cn) && e.cfg.SentinelPassword != nil && (refusesStrangers(err) || err == nil && f.mode == "sentinel") {
			f, err = e.introduce(ctx, cn)
		}
		if err != nil {
			return unwrapped{err}
		}
		if e.target.of == sentinel && f.mode == "sentinel" {
			return nil // the client library asks the way
		}
		if err := f.fit(n.addr, e.target.of); err != nil {
			return unwrapped{err}
		}
		if was := n.met(f); was != nil && was.run != f.run {
			e.regenerate()
			return unwrapped{errRun}
		}
		e.regenerate()
		return nil
	}
}

// toMaster reports whether a connection is one to the master that sentinels name. Theirs are made
// with the same options, and only the address that the client library shows tells them apart.
func toMaster(cn *redis.Conn) bool { return strings.HasPrefix(cn.String(), "Redis<FailoverClient ") }

// introduce tells a sentinel who asks. The client library would do so with the password of its
// start. Redis itself gets its own before, and never this one.
func (e *Engine) introduce(ctx context.Context, cn *redis.Conn) (*facts, error) {
	password, err := e.cfg.SentinelPassword()
	if err != nil {
		return nil, err
	}
	if err := cn.AuthACL(ctx, cmp.Or(e.cfg.SentinelUsername, "default"), password).Err(); err != nil {
		return nil, err
	}
	return learn(ctx, cn)
}

// refusesStrangers reports that a server wants a password before it says anything.
func refusesStrangers(err error) bool { return redis.HasErrorPrefix(err, "NOAUTH") }

func learn(ctx context.Context, cn pipeliner) (*facts, error) {
	var server, replication, persistence *redis.StringCmd
	var fsync *redis.MapStringStringCmd
	_, err := cn.Pipelined(ctx, func(p redis.Pipeliner) error {
		server, replication, persistence = p.Info(ctx, "server"), p.Info(ctx, "replication"), p.Info(ctx, "persistence")
		fsync = p.ConfigGet(ctx, "appendfsync")
		return nil
	})
	if server.Err() != nil {
		return nil, server.Err()
	}
	if _, ok := errors.AsType[redis.Error](err); err != nil && !ok {
		return nil, err
	}
	info := fields(server.Val() + "\r\n" + replication.Val() + "\r\n" + persistence.Val())
	f := &facts{
		run: info["run_id"], mode: info["redis_mode"], replica: info["role"] == "slave", aof: info["aof_enabled"] == "1",
		version: "Redis " + info["redis_version"], fsync: fsync.Val()["appendfsync"],
	}
	f.replicas, _ = strconv.Atoi(info["connected_slaves"])
	if f.mode == "" {
		f.mode = info["server_mode"]
	}
	if v := info["valkey_version"]; v != "" {
		f.version = "Valkey " + v
	}
	f.waitAOF = atLeast(info["redis_version"], 7, 2)
	if !atLeast(info["redis_version"], 6, 2) {
		return nil, fmt.Errorf("%w: %s is too old, it must be Redis 6.2 or newer, or Valkey", engine.ErrUnsuitable, f.version)
	}
	return f, nil
}

// fit is what makes a Redis useless in a topology.
func (f *facts) fit(addr string, of topology) error {
	want := map[topology]string{standalone: "standalone", sentinel: "standalone", cluster: "cluster"}[of]
	switch {
	case f.mode == want && f.replica && of == sentinel:
		return fmt.Errorf("%w: %s is a replica: the sentinels have not told of the new master yet", engine.ErrUnavailable, addr)
	case f.mode == want && f.replica && of == standalone:
		return fmt.Errorf("%w: %s is a read-only replica: set its master's address, or redis+sentinel:// with those of its sentinels", engine.ErrUnavailable, addr)
	case f.mode == want:
		return nil
	case f.mode == "cluster":
		return fmt.Errorf("%w: %s is a node of a Redis Cluster: set redis+cluster://%s", engine.ErrUnsuitable, addr, addr)
	case f.mode == "sentinel":
		return fmt.Errorf("%w: %s is a sentinel: set redis+sentinel://%s/NAME with the name of the master it watches", engine.ErrUnsuitable, addr, addr)
	case of == cluster:
		return fmt.Errorf("%w: %s is not a node of a Redis Cluster: set redis://%s", engine.ErrUnsuitable, addr, addr)
	}
	return fmt.Errorf("%w: %s runs in mode %q", engine.ErrUnsuitable, addr, f.mode)
}

func fields(info string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[k] = v
		}
	}
	return out
}

func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return true // a development build that numbers itself otherwise
	}
	a, err := strconv.Atoi(parts[0])
	b, err2 := strconv.Atoi(parts[1])
	return err != nil || err2 != nil || a > major || a == major && b >= minor
}

// place tells which node serves a key.
type place interface {
	// node is the one that is thought to serve a key. The answer may be old:
	// [moved] then has it looked up again.
	node(ctx context.Context, key string) (*node, error)
	moved(ctx context.Context)
	// masters are all of them. Those that were not met are down, and partial says
	// why; an error is for when none was, or one is of no use.
	masters(ctx context.Context) (all []*node, partial, err error)
}

// one is the place of everything in a Redis that is not a cluster.
type one struct{ n *node }

func (o one) node(context.Context, string) (*node, error) { return o.n, nil }
func (o one) moved(context.Context)                       {}

func (o one) masters(ctx context.Context) (all []*node, partial, err error) {
	return []*node{o.n}, nil, meet(ctx, o.n)
}

// slots is the place of keys in a cluster.
type slots struct {
	client *redis.ClusterClient
	nodes  sync.Map // address -> *node
}

func (s *slots) node(ctx context.Context, key string) (*node, error) {
	c, err := s.client.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.of(c)
}

func (s *slots) of(c *redis.Client) (*node, error) {
	n, ok := s.nodes.Load(c.Options().Addr)
	if !ok {
		return nil, fmt.Errorf("%w: nothing is known of node %s", engine.ErrUnavailable, c.Options().Addr)
	}
	return n.(*node), nil
}

func (s *slots) moved(ctx context.Context) { s.client.ReloadState(ctx) }

// meetFor bounds how long one master of several is waited for.
const meetFor = 2 * time.Second

func (s *slots) masters(ctx context.Context) (all []*node, partial, err error) {
	var mu sync.Mutex
	met := 0
	err = s.client.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		n, err := s.of(c)
		if err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, meetFor)
		defer cancel()
		err = meet(short, n)
		n.down.Store(err != nil)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, n)
		if f, _ := judge(err); f == refused || ctx.Err() != nil {
			return err
		}
		if err == nil {
			met++
		} else {
			partial = fmt.Errorf("%w: %s: %w", engine.ErrPartial, n.addr, err)
		}
		return nil
	})
	if err == nil && met == 0 {
		return all, nil, cmp.Or(partial, fmt.Errorf("%w: the cluster has no master", engine.ErrUnavailable))
	}
	return all, partial, err
}

// meet makes sure that a node has been connected to.
func meet(ctx context.Context, n *node) error {
	err := n.client.Ping(ctx).Err()
	for tries := 0; tries < 3 && err != nil && ctx.Err() == nil; tries++ {
		if f, _ := judge(err); f == refused {
			break
		}
		err = n.client.Ping(ctx).Err() // a connection may have died with the server that it was to
	}
	return err
}

// dialTimeout bounds making a connection.
const dialTimeout = 2 * time.Second

// connect makes the clients of a target. Nothing is connected to yet.
func (e *Engine) connect() {
	opt := e.target.opt
	opt.MaxRetries = -1 // a script must not run twice behind our back
	opt.ContextTimeoutEnabled = true
	opt.DialTimeout = dialTimeout
	if e.target.tls != nil {
		opt.Dialer = e.target.dial
	}
	opt.DialerRetries = 1
	opt.ReadTimeout = 3 * time.Second
	opt.WriteTimeout = 3 * time.Second
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = noNotices
	switch e.target.of {
	case standalone:
		n := &node{addr: opt.Addr}
		opt.OnConnect = e.onConnect(n)
		n.client = redis.NewClient(&opt)
		e.client, e.place = n.client, one{n}
	case sentinel:
		n := &node{addr: "the master " + e.target.master}
		n.client = redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: e.target.master, SentinelAddrs: e.target.addrs,
			Username: opt.Username, Password: opt.Password, CredentialsProviderContext: opt.CredentialsProviderContext, DB: opt.DB, Dialer: opt.Dialer,
			OnConnect: e.onConnect(n), MaxRetries: opt.MaxRetries, ContextTimeoutEnabled: true,
			DialTimeout: opt.DialTimeout, DialerRetries: opt.DialerRetries, ReadTimeout: opt.ReadTimeout, WriteTimeout: opt.WriteTimeout,
			PoolSize: opt.PoolSize, MinIdleConns: opt.MinIdleConns, DisableIdentity: true,
		})
		e.client, e.place = n.client, one{n}
	case cluster:
		s := &slots{}
		s.client = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: e.target.addrs, MaxRetries: opt.MaxRetries, ContextTimeoutEnabled: true,
			DialTimeout: opt.DialTimeout, ReadTimeout: opt.ReadTimeout, WriteTimeout: opt.WriteTimeout,
			ClusterStateReloadInterval: 3 * time.Second, DisableIdentity: true, MaintNotificationsConfig: noNotices,
			NewClient: func(got *redis.Options) *redis.Client {
				o := opt
				o.Addr = got.Addr
				if o.Dialer == nil {
					o.Dialer = got.Dialer
				}
				n := &node{addr: got.Addr}
				if was, ok := s.nodes.Load(got.Addr); ok {
					n.facts.Store(was.(*node).facts.Load())
				}
				o.OnConnect = e.onConnect(n)
				n.client = redis.NewClient(&o)
				s.nodes.Store(got.Addr, n)
				return n.client
			},
		})
		e.client, e.place = s.client, s
	}
}
