package client_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
)

// slowNet stands between a client and a server: what either sends comes late.
type slowNet struct {
	listener net.Listener
	up, down atomic.Int64 // the delays, of what goes to the server and to the client
	over     chan struct{}

	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

func newSlowNet(t *testing.T, target string) *slowNet {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &slowNet{listener: listener, over: make(chan struct{})}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			down, err := listener.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", target)
			if err != nil {
				_ = down.Close()
				continue
			}
			n.mu.Lock()
			n.conns = append(n.conns, down, up)
			n.mu.Unlock()
			group.Go(func() { n.carry(up, down, &n.up) })
			group.Go(func() { n.carry(down, up, &n.down) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		close(n.over)
		n.mu.Lock()
		for _, c := range n.conns {
			_ = c.Close()
		}
		n.mu.Unlock()
		group.Wait()
	})
	return n
}

// carry copies in order, each piece the delay after it came.
func (n *slowNet) carry(to, from net.Conn, delay *atomic.Int64) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 10_000)
	var group sync.WaitGroup
	group.Go(func() {
		defer to.Close()
		for p := range pieces {
			select {
			case <-time.After(time.Until(p.due)):
			case <-n.over:
			}
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()
			}
		}
	})
	buffer := make([]byte, 32<<10)
	for {
		got, err := from.Read(buffer)
		if got > 0 {
			pieces <- piece{time.Now().Add(time.Duration(delay.Load())), append([]byte(nil), buffer[:got]...)}
		}
		if err != nil {
			close(pieces)
			group.Wait()
			return
		}
	}
}

func TestTwoWorkersNeverHoldAKeyTogetherHoweverLateMessagesCome(t *testing.T) {
	t.Parallel()
	const leased = time.Second
	addr := realQueue(t)
	slow := newSlowNet(t, addr)
	q := client.NewQueue(dial(t, addr, client.DialConfig{}), "dev/slow", "")
	if _, err := q.Configure(t.Context(), client.QueueConfig{Lease: leased}); err != nil {
		t.Fatal(err)
	}
	type held struct {
		by       string
		from, to time.Time
	}
	runs := make(chan held, 100)
	worker := func(name, addr string, hold func(context.Context)) *client.Worker {
		rec := client.ReconcilerFunc(func(ctx context.Context, it client.Item) (client.Result, error) {
			from := time.Now()
			hold(ctx)
			to := time.Now()
			if end := it.Deadline(); end.Before(to) { // its context ended then, and it may wait for a processor
				to = end
			}
			runs <- held{name, from, to}
			return client.Result{Outcome: client.OutcomeAbandon}, nil
		})
		w, err := client.NewWorker(dial(t, addr, client.DialConfig{}), rec, client.WorkerConfig{Queue: "dev/slow", Session: name, Margin: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	far := worker("far", slow.listener.Addr().String(), func(ctx context.Context) { <-ctx.Done() })
	background(t, far)
	for !far.Connected() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // its credit has come
	slow.down.Store(int64(leased * 6 / 10))
	slow.up.Store(int64(time.Hour)) // no extension comes in time
	if _, err := q.Add(t.Context(), client.Keys("k")...); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // and so it has the key
	background(t, worker("near", addr, func(context.Context) { time.Sleep(leased / 5) }))

	byName := map[string][]held{}
	for len(byName["far"]) == 0 || len(byName["near"]) == 0 {
		select {
		case h := <-runs:
			byName[h.by] = append(byName[h.by], h)
		case <-time.After(20 * leased):
			t.Fatalf("runs: %v", byName)
		}
	}
	for _, f := range byName["far"] {
		for _, n := range byName["near"] {
			if f.from.Before(n.to) && n.from.Before(f.to) {
				t.Errorf("both held the key: far %v to %v, near %v to %v", f.from, f.to, n.from, n.to)
			}
		}
	}
}
