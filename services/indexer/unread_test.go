package indexer_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// deafConn is a connection that gives nothing more once it is deaf.
type deafConn struct {
	net.Conn
	deaf, closed chan struct{}
	once         *sync.Once
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.deaf:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// deafClient is a client that can stop to read, and leave.
func deafClient(t *testing.T, r *replica) (client indexv1.IndexServiceClient, stopReading, leave func()) {
	t.Helper()
	c := &deafConn{deaf: make(chan struct{}), closed: make(chan struct{}), once: new(sync.Once)}
	conn, err := grpc.NewClient("passthrough:///"+r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			c.Conn = raw
			return c, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	leave = func() { _ = conn.Close() }
	t.Cleanup(leave)
	return indexv1.NewIndexServiceClient(conn), func() { close(c.deaf) }, leave
}

// Small answers are bounded too: a client that asks and asks, and does not read,
// makes the server keep no more of them than it may.
func TestSmallAnswersThatNobodyReadsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 1500, 0)...)
	const most = 2 << 20
	for name, ask := range map[string]func(ctx context.Context, t *testing.T, c indexv1.IndexServiceClient){
		"calls": func(ctx context.Context, _ *testing.T, c indexv1.IndexServiceClient) {
			for range 1500 {
				go func() {
					_, _ = c.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: "pods", Index: "namespace", Value: "n"})
				}()
			}
		},
		"streams": func(ctx context.Context, t *testing.T, c indexv1.IndexServiceClient) {
			t.Helper()
			for range 300 {
				q, err := c.Query(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				for tag := range uint64(10) {
					if err := q.Send(&indexv1.QueryRequest{Tag: tag, Call: &indexv1.QueryRequest_IndexKeys{
						IndexKeys: &indexv1.IndexKeysRequest{Collection: "pods", Index: "namespace", Value: "n"},
					}}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := w.index(t, func(c *indexer.Config) { c.MaxRequestBytes = most })
			w.caughtUp(t, r)
			deaf, stopReading, leave := deafClient(t, r)
			if _, err := deaf.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{}); err != nil {
				t.Fatal(err)
			}
			stopReading()
			ctx, end := context.WithCancel(t.Context())
			defer end()
			ask(ctx, t, deaf)
			refused := 0.0
			eventually(t, func() string {
				n := metric(t, r, "deltaplane_indexer_request_bytes")
				if n > most {
					t.Fatalf("%v bytes are held, at most %d may be", n, most)
				}
				if refused = counter(t, r, "deltaplane_indexer_limited_total", "max_client_request_bytes"); refused == 0 {
					return fmt.Sprintf("nothing was refused, with %v bytes held", n)
				}
				return ""
			})
			leave()
			eventually(t, func() string {
				runtime.GC() // what the transport has left lying
				if n := metric(t, r, "deltaplane_indexer_request_bytes"); n != 0 {
					return fmt.Sprintf("%v bytes are counted when the client has left", n)
				}
				return ""
			})
			if _, err := r.IndexKeys(t.Context(), &indexv1.IndexKeysRequest{Collection: "pods", Index: "namespace", Value: "n"}); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// counter reads one metric by the value of its label.
func counter(t *testing.T, r *replica, name, label string) float64 {
	t.Helper()
	families, err := r.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}
