package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// twoClients is a file of tokens for an indexer, and contexts for their calls.
func twoClients(t *testing.T) (tokens string, one, two context.Context) {
	t.Helper()
	tokens = filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("0123456789abcdef one\nfedcba9876543210 two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	as := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
	return tokens, as("0123456789abcdef"), as("fedcba9876543210")
}

// metric reads one metric without labels.
func metric(t *testing.T, r *replica, name string) float64 {
	t.Helper()
	families, err := r.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// wantLimit checks that a refusal names the limit, and when to come again.
func wantLimit(t *testing.T, what string, err error, reason, limit string) {
	t.Helper()
	wantStatus(t, what, err, codes.ResourceExhausted, reason, "")
	if got := rpc.Info(err).GetMetadata(); got["limit_name"] != limit || got["limit"] == "" {
		t.Errorf("%s: metadata %v, want the limit %s and its value", what, got, limit)
	}
	if rpc.RetryDelay(err) <= 0 {
		t.Errorf("%s: no RetryInfo", what)
	}
}

func TestOneClientHasAShareOfTheWatches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	tokens, one, two := twoClients(t)
	r := w.index(t, func(c *indexer.Config) {
		c.MaxWatchers, c.MaxClientWatchers = 3, 2
		c.RPC.Auth.TokenFile = tokens
	})
	open := func(ctx context.Context) (end func(), err error) {
		ctx, end = context.WithCancel(ctx)
		t.Cleanup(end)
		var v indexv1.IndexService_WatchClient
		eventually(t, func() string {
			if v, err = r.Watch(ctx, &indexv1.WatchRequest{Collection: "pods"}); err != nil {
				return err.Error()
			}
			if _, err = v.Recv(); rpc.Code(err) == codes.Unavailable || rpc.Code(err) == codes.NotFound {
				return err.Error()
			}
			return ""
		})
		return end, err
	}
	end, err := open(one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(one); err != nil {
		t.Fatal(err)
	}
	_, err = open(one)
	wantLimit(t, "a third of one client", err, "TOO_MANY_WATCHERS", "max_client_watchers")
	if _, err := open(two); err != nil {
		t.Errorf("the first of another client: %v", err)
	}
	_, err = open(two)
	wantLimit(t, "a fourth of all", err, "TOO_MANY_WATCHERS", "max_watchers")
	end()
	eventually(t, func() string {
		if _, err := open(one); err != nil {
			return err.Error()
		}
		return ""
	})
}

// What readers say that they know waits in memory while they do not read.
func TestKnowledgeOfWaitingWatchesIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 300, 12000)...)
	tokens, one, two := twoClients(t)
	r := w.index(t, func(c *indexer.Config) {
		c.MaxRequestBytes = 1 << 20
		c.RPC.Auth.TokenFile = tokens
	})
	known := map[string]string{}
	for i := range 3500 { // about 330 KB
		known[fmt.Sprintf("n/unknown-%d", i)] = "1"
	}
	open := func(ctx context.Context) (end func(), err error) {
		ctx, end = context.WithCancel(ctx)
		t.Cleanup(end)
		eventually(t, func() string {
			var v indexv1.IndexService_WatchClient
			if v, err = r.Watch(ctx, &indexv1.WatchRequest{Collection: "pods", Known: known, KnownEpoch: 1}); err != nil {
				return err.Error()
			}
			if _, err = v.Recv(); rpc.Code(err) == codes.Unavailable || rpc.Code(err) == codes.NotFound { // nothing more is read
				return err.Error()
			}
			return ""
		})
		return end, err
	}
	end, err := open(one)
	if err != nil {
		t.Fatal(err)
	}
	_, err = open(one)
	wantLimit(t, "a second of one client", err, "REQUEST_MEMORY", "max_client_request_bytes")
	if _, err := open(two); err != nil {
		t.Errorf("another client: %v", err)
	}
	if n := metric(t, r, "deltaplane_indexer_request_bytes"); n < 500_000 {
		t.Errorf("%v bytes are counted for two that wait", n)
	}
	end()
	eventually(t, func() string { // one that reads gives it back
		stream, err := r.Watch(one, &indexv1.WatchRequest{Collection: "pods", Known: known, KnownEpoch: 1})
		if err != nil {
			return err.Error()
		}
		v := &viewer{stream: stream}
		for len(v.said) == 0 || v.said[len(v.said)-1] != "end" {
			if err := v.recv(); err != nil {
				return err.Error()
			}
		}
		if n := metric(t, r, "deltaplane_indexer_request_bytes"); n > 500_000 {
			return fmt.Sprintf("%v bytes are counted", n)
		}
		return ""
	})
}

func TestCallsThatWaitOnAQueryStreamAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, func(c *indexer.Config) { c.MaxRequestBytes = 100 << 10 })
	w.caughtUp(t, r)
	q, err := r.Query(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(tag uint64) {
		t.Helper()
		if err := q.Send(&indexv1.QueryRequest{Tag: tag, Call: &indexv1.QueryRequest_WaitForRevision{WaitForRevision: &indexv1.WaitForRevisionRequest{
			Timeout: durationpb.New(25e9), Revisions: []*deltav1.CollectionRevision{{Collection: "pods", Revision: &deltav1.Revision{ResourceVersion: "999999"}}},
		}}}); err != nil {
			t.Fatal(err)
		}
	}
	const calls = 30
	for tag := range uint64(calls) {
		ask(tag + 1)
	}
	resp, err := q.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if e := resp.GetError(); codes.Code(e.GetCode()) != codes.ResourceExhausted || e.GetReason() != "REQUEST_MEMORY" || e.GetMetadata()["limit_name"] != "max_client_request_bytes" || e.GetRetryDelay() == nil {
		t.Fatalf("a call too many is answered %v", resp)
	}
	for tag := range uint64(calls) { // the stream goes on, and what was given up makes room
		if err := q.Send(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_Cancel{Cancel: tag + 1}}); err != nil {
			t.Fatal(err)
		}
	}
	cancelled := 0
	for range calls - 1 {
		if resp, err = q.Recv(); err != nil {
			t.Fatal(err)
		}
		if codes.Code(resp.GetError().GetCode()) == codes.Canceled {
			cancelled++
		}
	}
	if cancelled == 0 {
		t.Error("none of them was admitted")
	}
	if err := q.Send(&indexv1.QueryRequest{Tag: 99, Call: &indexv1.QueryRequest_WaitForRevision{WaitForRevision: &indexv1.WaitForRevisionRequest{
		Revisions: []*deltav1.CollectionRevision{{Collection: "pods", Revision: &deltav1.Revision{ResourceVersion: "1"}}},
	}}}); err != nil {
		t.Fatal(err)
	}
	if resp, err = q.Recv(); err != nil || resp.GetTag() != 99 || resp.GetWaitForRevision() == nil {
		t.Errorf("afterwards: %v, %v", resp, err)
	}
	if err := q.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
	if n := metric(t, r, "deltaplane_indexer_request_bytes"); n != 0 {
		t.Errorf("%v bytes are counted when nothing waits", n)
	}
}

// A large answer that is decoded for its caller is counted until it was sent.
func TestLargeAnswersAreGivenBackWhenTheyWereSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, many(0, 400, 1500)...)
	for _, tls := range []rpc.TLSConfig{{}, certificate(t)} {
		r := w.index(t, func(c *indexer.Config) { c.RPC.TLS = tls })
		w.caughtUp(t, r)
		for range 20 {
			got, err := r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", View: indexv1.View_VIEW_METADATA})
			if err != nil || len(got.GetObjects()) != 400 {
				t.Fatalf("%d objects, %v", len(got.GetObjects()), err)
			}
			keys, err := r.IndexKeys(t.Context(), &indexv1.IndexKeysRequest{Collection: "pods", Index: "namespace", Value: "n"})
			if err != nil || len(keys.GetKeys()) != 400 {
				t.Fatalf("%d keys, %v", len(keys.GetKeys()), err)
			}
		}
		eventually(t, func() string {
			if n := metric(t, r, "deltaplane_indexer_request_bytes"); n != 0 {
				return fmt.Sprintf("%v bytes are counted when all was sent", n)
			}
			return ""
		})
	}
}
