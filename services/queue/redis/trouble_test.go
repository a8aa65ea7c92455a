package redis_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func add(keys ...string) workqueue.Transaction {
	t := workqueue.Transaction{}
	for _, k := range keys {
		t.Ops = append(t.Ops, workqueue.Op{Kind: workqueue.OpAdd, Key: k, Level: workqueue.Level(0)})
	}
	return t
}

func take(n int) workqueue.Transaction {
	return workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: n}}}
}

func apply(t *testing.T, q engine.Queue, in workqueue.Transaction) *workqueue.Result {
	t.Helper()
	r, err := q.Partitions()[0].Apply(t.Context(), &in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// at is a queue seen from one of its partitions: transaction is done there.
func at(q engine.Queue, part int) engine.Queue { return onePartition{q, part} }

type onePartition struct {
	engine.Queue
	part int
}

func (q onePartition) Partitions() []engine.Partition { return q.Queue.Partitions()[q.part:] }

func raw(t *testing.T, srv *embedded.Redis) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: srv.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newEngine(t *testing.T, cfg redis.Config) *redis.Engine {
	t.Helper()
	e, err := redis.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func configure(t *testing.T, e *redis.Engine, cfg workqueue.Config) engine.Queue {
	t.Helper()
	q, _, err := e.Configure(t.Context(), "dev/job", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestTheScriptIsLoadedAgainWhenRedisForgotIt(t *testing.T) {
	t.Parallel()
	srv := start(t)
	e := newEngine(t, redis.Config{URL: srv.URL()})
	q := configure(t, e, workqueue.Config{}) // the script was never loaded: Check was not called
	apply(t, q, add("a"))
	if err := raw(t, srv).ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if r := apply(t, q, take(5)); len(r.Leases) != 1 {
		t.Errorf("leases %v, want one", r.Leases)
	}
}

func TestATransactionThatComesLateIsNotDone(t *testing.T) {
	t.Parallel()
	srv := start(t)
	p := newProxy(t, srv.Addr())
	e := newEngine(t, redis.Config{URL: "redis://" + p.addr()})
	q := configure(t, e, workqueue.Config{})
	late := add("a")
	late.Ops[0].Limited = true
	apply(t, q, late)
	sent := *p.lastTransaction.Load()

	answer := func() string {
		c, err := net.Dial("tcp", srv.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	if got := answer(); !strings.HasPrefix(got, "$") {
		t.Errorf("the last transaction once more is answered %q, want what it was answered", got)
	}
	apply(t, q, add("b"))
	if got := answer(); !strings.HasPrefix(got, "-DPLATE") {
		t.Errorf("an overtaken transaction is answered %q, want DPLATE", got)
	}
	r := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpRequeues, Key: "a"}}})
	if got := r.Replies[0].Requeues; got != 1 {
		t.Errorf("the limiter was charged %d times, want once", got)
	}
}

func TestATransactionWhoseReplyIsLostHappensOnce(t *testing.T) {
	t.Parallel()
	srv := start(t)
	p := newProxy(t, srv.Addr())
	e := newEngine(t, redis.Config{URL: "redis://" + p.addr()})
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("a", "b", "c"))

	p.dropReply.Store(true) // the next answer is cut off after Redis has done the transaction
	r := apply(t, q, take(2))
	if len(r.Leases) != 2 || r.Leases[0].Key != "a" || r.Leases[1].Key != "b" {
		t.Fatalf("leases %v, want a and b", r.Leases)
	}
	if p.dropped.Load() == 0 {
		t.Fatal("no reply was dropped")
	}
	if r := apply(t, q, take(5)); len(r.Leases) != 1 || r.Leases[0].Key != "c" || r.Counts.Processing != 3 {
		t.Errorf("then leases %v, counts %+v: the lost transaction was done twice", r.Leases, r.Counts)
	}
	// A settlement too: done once, answered as settled.
	p.dropReply.Store(true)
	l := r.Leases[0]
	got := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Done}}})
	if got.Replies[0].Status != workqueue.Settled {
		t.Errorf("status %d, want Settled", got.Replies[0].Status)
	}
}

func TestAfterARestartNoLeaseIsHandedOutForOneLeaseTime(t *testing.T) {
	t.Parallel()
	srv := embeddedtest.DurableRedis(t)
	p := newProxy(t, srv.Addr())
	var skew atomic.Int64
	e := newEngine(t, redis.Config{URL: "redis://" + p.addr(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
	q := configure(t, e, workqueue.Config{LeaseFor: 5 * time.Second})
	was := e.Generation()
	apply(t, q, add("a", "b"))
	held := apply(t, q, take(1)).Leases[0]

	srv.Kill()
	srv.Start()
	p.cut()

	r := apply(t, q, take(5))
	if len(r.Leases) != 0 || r.Counts.Ready != 1 {
		t.Fatalf("right after the restart: leases %v, counts %+v", r.Leases, r.Counts)
	}
	if got := r.NextDue - r.Now; got <= 0 || got > 5e6 {
		t.Errorf("next due in %d us, want within the lease time", got)
	}
	if e.Generation() == was || e.Generation() == "" {
		t.Errorf("generation %q did not change", e.Generation())
	}
	// The holder from before can still settle: its lease was not lost.
	got := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: held.Key, Token: held.Token, Outcome: workqueue.Done}}})
	if got.Replies[0].Status != workqueue.Settled {
		t.Errorf("settle across the restart: status %d", got.Replies[0].Status)
	}
	skew.Add(int64(5100 * time.Millisecond))
	if r := apply(t, q, take(5)); len(r.Leases) != 1 || r.Leases[0].Key != "b" || r.Leases[0].Token <= held.Token {
		t.Errorf("after one lease time: %v", r.Leases)
	}
}

func TestATransactionInTheNameOfAnEndedRunLeasesNothing(t *testing.T) {
	t.Parallel()
	srv := start(t)
	e := newEngine(t, redis.Config{URL: srv.URL()})
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("a"))
	// While the transaction is under way another connection meets a Redis that was restarted.
	r := redis.TransactionDuringRestart(t.Context(), t, e, q, take(5))
	if len(r.Leases) != 0 || r.Counts.Ready != 1 || r.Counts.Processing != 0 {
		t.Errorf("leases %v, counts %+v: want nothing leased", r.Leases, r.Counts)
	}
	if r.NextDue-r.Now < 29e6 {
		t.Errorf("next due in %d us, want a pause of one lease time", r.NextDue-r.Now)
	}
	if r := apply(t, q, take(5)); len(r.Leases) != 0 {
		t.Errorf("leases %v in the pause", r.Leases)
	}
}

func TestLostDataIsNoticed(t *testing.T) {
	t.Parallel()
	srv := start(t)
	e := newEngine(t, redis.Config{URL: srv.URL()})
	q := configure(t, e, workqueue.Config{})
	was := e.Generation()
	apply(t, q, add("a"))
	if err := raw(t, srv).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	in := add("b")
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrNoQueue) {
		t.Fatalf("Apply = %v, want ErrNoQueue", err)
	}
	q = configure(t, e, workqueue.Config{})
	if e.Generation() == was {
		t.Error("the generation did not change")
	}
	apply(t, q, add("c"))
	if r := apply(t, q, take(1)); len(r.Leases) != 0 || r.NextDue <= r.Now {
		t.Errorf("leases %v: keys of a queue made again wait one lease time, for its old leases may still be worked on", r.Leases)
	}
}

func TestExpectationsOfAKeyNeverTouchedAgainAreFreed(t *testing.T) {
	t.Parallel()
	srv := start(t)
	var skew atomic.Int64
	e := newEngine(t, redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
	q := configure(t, e, workqueue.Config{})
	for _, key := range []string{"a", "b"} {
		apply(t, q, add(key))
		l := apply(t, q, take(1)).Leases[0]
		apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{
			{Kind: workqueue.OpExpect, Key: key, Token: l.Token, More: &workqueue.More{Owner: "u", Creates: []string{"p"}}},
			{Kind: workqueue.OpSettle, Key: key, Token: l.Token, Outcome: workqueue.Done},
		}})
		skew.Add(int64(3 * time.Minute))
	}
	apply(t, q, workqueue.Transaction{}) // six minutes after a's, three after b's
	kept, err := raw(t, srv).HKeys(t.Context(), "dp:{dev/job/0}:st").Result()
	if err != nil || len(kept) != 2 || !slices.Contains(kept, "b") {
		t.Errorf("kept expectations of %v, %v: want b's only", kept, err)
	}
}

func TestAFullStoreRefusesAddsAndLetsSettlementsThrough(t *testing.T) {
	t.Parallel()
	srv := start(t)
	e := newEngine(t, redis.Config{URL: srv.URL()})
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("a", "b"))
	l := apply(t, q, take(1)).Leases[0]
	if err := raw(t, srv).ConfigSet(t.Context(), "maxmemory", "1mb").Err(); err != nil {
		t.Fatal(err)
	}
	in := add("c")
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrFull) {
		t.Fatalf("Apply = %v, want ErrFull", err)
	}
	if r := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpExtend, Key: l.Key, Token: l.Token, For: 60e6}}}); r.Replies[0].Status != workqueue.Settled {
		t.Errorf("extend in a full store: status %d", r.Replies[0].Status)
	}
	r := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Done}}, Takes: take(1).Takes})
	if r.Replies[0].Status != workqueue.Settled || len(r.Leases) != 1 || r.Counts.Ready != 0 {
		t.Errorf("replies %v, leases %v, counts %+v", r.Replies, r.Leases, r.Counts)
	}
}

func TestAnUnsuitableRedisIsRefusedByName(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		url  func(*embedded.Redis) string
		want error
	}{
		"evicting": {[]string{"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"}, (*embedded.Redis).URL, engine.ErrEviction},
		"password": {nil, func(r *embedded.Redis) string { return "redis://:wrong@" + r.Addr() }, engine.ErrDenied},
		"nobody":   {nil, func(*embedded.Redis) string { return "redis://127.0.0.1:1" }, engine.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := start(t, tc.args...)
			if name == "password" {
				if err := raw(t, srv).ConfigSet(t.Context(), "requirepass", "right").Err(); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			e := newEngine(t, redis.Config{URL: tc.url(srv), GiveUp: 300 * time.Millisecond})
			if err := e.Check(ctx); !errors.Is(err, tc.want) {
				t.Errorf("Check = %v, want %v", err, tc.want)
			}
		})
	}
	if _, err := redis.New(redis.Config{URL: "http://x"}); err == nil {
		t.Error("an URL of another scheme was accepted")
	}
}

func TestScriptsForbiddenByACL(t *testing.T) {
	t.Parallel()
	srv := start(t)
	if err := raw(t, srv).Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-eval", "-evalsha", "-script").Err(); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, redis.Config{URL: "redis://limited:pw@" + srv.Addr()})
	if err := e.Check(t.Context()); !errors.Is(err, engine.ErrDenied) {
		t.Errorf("Check = %v, want ErrDenied", err)
	}
}

func TestAReadOnlyReplicaIsUnavailable(t *testing.T) {
	t.Parallel()
	srv := start(t)
	e := newEngine(t, redis.Config{URL: srv.URL(), GiveUp: 3 * time.Second})
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("a"))
	host, port, _ := net.SplitHostPort(start(t).Addr())
	if err := raw(t, srv).Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	in := add("b")
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrUnavailable) && !errors.Is(err, engine.ErrNoQueue) {
		t.Errorf("Apply = %v, want ErrUnavailable (or no queue, once it was emptied)", err)
	}
}

func TestAnotherReplicaIsWoken(t *testing.T) {
	t.Parallel()
	srv := start(t)
	a, b := newEngine(t, redis.Config{URL: srv.URL()}), newEngine(t, redis.Config{URL: srv.URL()})
	qa := configure(t, a, workqueue.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan string, 10)
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.Wakes(ctx, func(q string) { woken <- q }) })
	wg.Go(func() { _ = a.Wakes(ctx, func(q string) { woken <- "own " + q }) })
	defer wg.Wait()
	defer cancel()
	for range 2 { // both subscriptions stand
		<-woken
	}
	apply(t, qa, add("a"))
	select {
	case got := <-woken:
		if got != "dev/job" {
			t.Errorf("woken for %q", got)
		}
	case <-time.After(30 * time.Second):
		t.Error("not woken")
	}
}

// proxy passes bytes to Redis, and can lose an answer.
type proxy struct {
	lis             net.Listener
	target          atomic.Pointer[string]
	rewrite         atomic.Pointer[func([]byte) []byte] // of what Redis answers
	lastTransaction atomic.Pointer[[]byte]              // as it was sent
	dropReply       atomic.Bool
	onDrop          atomic.Pointer[func()]
	dropped         atomic.Int64
	conns           sync.Map
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{lis: lis}
	p.target.Store(&target)
	go p.serve()
	t.Cleanup(func() { _ = lis.Close(); p.cut() })
	return p
}

func (p *proxy) addr() string { return p.lis.Addr().String() }

func (p *proxy) cut() {
	p.conns.Range(func(k, _ any) bool { _ = k.(net.Conn).Close(); return true })
}

func (p *proxy) serve() {
	for {
		c, err := p.lis.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", *p.target.Load())
		if err != nil {
			_ = c.Close()
			continue
		}
		p.conns.Store(c, true)
		var tx atomic.Bool // the request under way is a transaction
		go func() {
			defer up.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if strings.Contains(strings.ToLower(string(buf[:n])), "evalsha") {
					tx.Store(true)
					p.lastTransaction.Store(new(slices.Clone(buf[:n])))
				}
				if _, err := up.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
		go func() {
			defer c.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := up.Read(buf)
				if err != nil {
					return
				}
				if tx.Swap(false) && p.dropReply.Swap(false) {
					p.dropped.Add(1)
					if f := p.onDrop.Load(); f != nil {
						(*f)()
					}
					return
				}
				out := buf[:n]
				if f := p.rewrite.Load(); f != nil {
					out = (*f)(out)
				}
				if _, err := io.Writer(c).Write(out); err != nil {
					return
				}
			}
		}()
	}
}
