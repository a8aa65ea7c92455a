package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func connect(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestAClientThatReadsByStreamSeesWhatOneThatCallsDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	ctx := t.Context()
	conn := connect(t, r.addr)
	q := client.NewQuery(conn, client.QueryConfig{MaxCalls: 8})
	defer q.Close()
	byStream, byCall := client.NewIndex(q), client.NewIndex(conn)
	for name, read := range map[string]func(*client.Index) (any, error){
		"Get": func(x *client.Index) (any, error) {
			o, _, err := x.Get(ctx, "pods", "a/one", client.ReadOptions{})
			return o, err
		},
		"Get of what is not there": func(x *client.Index) (any, error) {
			o, _, err := x.Get(ctx, "pods", "a/none", client.ReadOptions{})
			return o, err
		},
		"Get of a malformed key": func(x *client.Index) (any, error) {
			o, _, err := x.Get(ctx, "pods", "a/b/c", client.ReadOptions{})
			return o, err
		},
		"Get of what is not yet there": func(x *client.Index) (any, error) {
			o, _, err := x.Get(ctx, "pods", "a/one", client.ReadOptions{AtLeast: client.Revision{RV: "999"}, Timeout: 30 * time.Millisecond})
			return o, err
		},
		"List": func(x *client.Index) (any, error) {
			o, _, err := x.List(ctx, "pods", client.ListOptions{PageSize: 1, Labels: "app"})
			return o, err
		},
		"ByIndex": func(x *client.Index) (any, error) {
			o, _, err := x.ByIndex(ctx, "pods", "node", []string{"n1", "n2"}, client.ReadOptions{View: client.ViewKeys})
			return o, err
		},
		"IndexKeys in no index": func(x *client.Index) (any, error) {
			o, _, err := x.IndexKeys(ctx, "pods", "no", "n1", client.ReadOptions{})
			return o, err
		},
		"Count": func(x *client.Index) (any, error) {
			n, _, err := x.Count(ctx, "pods", client.ListOptions{Labels: "app"})
			return n, err
		},
		"Collections": func(x *client.Index) (any, error) { c, err := x.Collections(ctx); return len(c), err },
	} {
		got, gotErr := read(byStream)
		want, wantErr := read(byCall)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-call +stream): %s", name, diff)
		}
		if (gotErr == nil) != (wantErr == nil) {
			t.Errorf("%s: %v by stream, %v by call", name, gotErr, wantErr)
			continue
		}
		a, _ := errors.AsType[*client.Error](gotErr)
		b, _ := errors.AsType[*client.Error](wantErr)
		if a != nil && (a.Code != b.Code || a.Reason != b.Reason || !cmp.Equal(a.Fields, b.Fields) || a.Error() != b.Error()) {
			t.Errorf("%s: %v by stream, %v by call", name, a, b)
		}
	}
}

func TestAClientPassesOnEverySelector(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	x := client.NewIndex(connect(t, r.addr))
	for name, row := range map[string]struct {
		o    client.ListOptions
		want []string
	}{
		"none":            {client.ListOptions{}, []string{"a/one", "a/two", "b/one", "b/two"}},
		"fields":          {client.ListOptions{FieldSelector: "status.phase=Pending"}, []string{"a/two", "b/two"}},
		"namespaces":      {client.ListOptions{Namespaces: []string{"b", "c"}}, []string{"b/one", "b/two"}},
		"all of them":     {client.ListOptions{Namespaces: []string{"b", "a"}, Labels: "app", FieldSelector: "spec.nodeName=n1"}, []string{"a/one", "b/one"}},
		"what none meets": {client.ListOptions{Namespaces: []string{"a"}, Labels: "app=db"}, nil},
	} {
		objs, _, err := x.List(t.Context(), "pods", row.o)
		var got []string
		for _, o := range objs {
			got = append(got, o.Key)
		}
		if diff := cmp.Diff(row.want, got); diff != "" || err != nil {
			t.Errorf("List by %s: %v (-want +got): %s", name, err, diff)
		}
		if n, _, err := x.Count(t.Context(), "pods", row.o); n != int64(len(row.want)) || err != nil {
			t.Errorf("Count by %s = %d, %v, want %d", name, n, err, len(row.want))
		}
	}
}

func TestAQueryClientGivesUpCallsAndIsClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	q := client.NewQuery(connect(t, r.addr), client.QueryConfig{})
	x := client.NewIndex(q)
	future := client.ReadOptions{AtLeast: client.Revision{RV: "999"}, Timeout: 30 * time.Second}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, _, err := x.Get(ctx, "pods", "a/one", future)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != codes.Canceled {
		t.Errorf("a call that was given up: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 12*time.Second) // of which the server keeps a second back, for a busy machine
	defer cancel()
	if _, _, err = x.Get(ctx, "pods", "a/one", future); !errors.Is(err, client.ErrRevisionNotReached) {
		t.Errorf("a call whose time is over: %v, want to learn how far the index is", err)
	}
	if _, _, err := x.Get(t.Context(), "pods", "a/one", client.ReadOptions{}); err != nil {
		t.Errorf("after those: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, q.Close)
	_, _, err = x.Get(t.Context(), "pods", "a/one", future)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != codes.Canceled {
		t.Errorf("a call on a client that is closed: %v", err)
	}
}

// TestAQueryClientOutlivesItsReplicas lets many callers read while replicas
// come and go at one name: every answer must be of the key asked for.
func TestAQueryClientOutlivesItsReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	one, two := w.index(t, nil), w.index(t, nil)
	w.caughtUp(t, one)
	w.caughtUp(t, two)
	conn := connect(t, one.addr)
	moved := connect(t, two.addr)
	var now atomic.Pointer[grpc.ClientConn]
	now.Store(conn)
	q := client.NewQuery(switching{&now}, client.QueryConfig{})
	defer q.Close()
	x := client.NewIndex(q)
	keys := []string{"a/one", "a/two", "b/one", "b/two"}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var reads atomic.Int64
	for range 16 {
		group.Go(func() {
			for ctx.Err() == nil {
				key := keys[rand.N(len(keys))]
				o, _, err := x.Get(t.Context(), "pods", key, client.ReadOptions{})
				if err != nil || o.Key != key {
					t.Errorf("Get(%s) = %s, %v", key, o.Key, err)
					return
				}
				reads.Add(1)
			}
		})
	}
	until := func(n int64) {
		for deadline := time.Now().Add(time.Minute); reads.Load() < n && time.Now().Before(deadline) && !t.Failed(); {
			time.Sleep(5 * time.Millisecond)
		}
	}
	until(500)
	now.Store(moved)
	one.stop()
	until(reads.Load() + 500)
	cancel()
	group.Wait()
	if n := reads.Load(); n < 1000 {
		t.Errorf("%d reads went on", n)
	}
}

// switching is a connection that is another one from some time on.
type switching struct {
	now *atomic.Pointer[grpc.ClientConn]
}

func (s switching) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return s.now.Load().Invoke(ctx, method, args, reply, opts...)
}

func (s switching) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return s.now.Load().NewStream(ctx, desc, method, opts...)
}

func TestManyCallersShareOneQueryStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	q := client.NewQuery(connect(t, r.addr), client.QueryConfig{MaxCalls: 32})
	defer q.Close()
	raw := indexv1.NewIndexServiceClient(q)
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			for n := range 40 {
				ns := fmt.Sprintf("%c", 'a'+(i+n)%2)
				var err error
				var got []string
				if n%3 == 0 {
					var resp *indexv1.ListResponse
					resp, err = raw.List(t.Context(), &indexv1.ListRequest{Collection: "pods", Namespace: ns, View: indexv1.View_VIEW_KEYS})
					got = keysOf(resp.GetObjects())
				} else {
					var resp *indexv1.ByIndexResponse
					resp, err = raw.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: "pods", Index: "namespace", Values: []string{ns}})
					got = keysOf(resp.GetObjects())
				}
				if want := []string{ns + "/one", ns + "/two"}; err != nil || !cmp.Equal(got, want) {
					t.Errorf("%d: %q, %v, want %q", n, got, err, want)
					return
				}
			}
		})
	}
	group.Wait()
}
