package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// withUnread is an index of three pods, the first of which could not be read.
type withUnread struct {
	indexv1.UnimplementedIndexServiceServer
}

func podOf(name string) *indexv1.Object {
	return &indexv1.Object{Key: "default/" + name, Payload: []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `","namespace":"default"}}`)}
}

func (withUnread) Get(context.Context, *indexv1.GetRequest) (*indexv1.GetResponse, error) {
	st, err := status.New(codes.DataLoss, `newest version of the key cannot be read: "default/a" in dev/pods.v1: not JSON`).WithDetails(&errdetails.ErrorInfo{
		Reason: "KEY_QUARANTINED", Domain: rpc.Domain,
	})
	if err != nil {
		return nil, err
	}
	return nil, st.Err()
}

func (withUnread) List(_ context.Context, r *indexv1.ListRequest) (*indexv1.ListResponse, error) {
	resp := &indexv1.ListResponse{QuarantinedKeys: []string{"default/a"}, Objects: []*indexv1.Object{{Key: "default/a"}, podOf("b"), podOf("c")}}
	if slices.Contains(r.GetNamespaces(), "broken") {
		resp.Objects = resp.GetObjects()[:1]
	}
	return resp, nil
}

func (withUnread) Watch(_ *indexv1.WatchRequest, stream grpc.ServerStreamingServer[indexv1.WatchResponse]) error {
	events := []*indexv1.Event{
		{Type: deltav1.DeltaType_DELTA_TYPE_ADDED, Object: &indexv1.Object{Key: "default/a"}, Quarantined: true},
		{Type: deltav1.DeltaType_DELTA_TYPE_ADDED, Object: podOf("b")},
	}
	if err := stream.Send(&indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Events{Events: &indexv1.Events{Events: events}}}); err != nil {
		return err
	}
	return status.Error(codes.Internal, "the end")
}

func TestWhatCannotBeReadIsNamedAndTheOthersAreShown(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed by the server
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	indexv1.RegisterIndexServiceServer(srv, withUnread{})
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	const said = "1 of 3 objects could not be read: default/a"
	others := func(out string) bool {
		return strings.Contains(out, "b") && strings.Contains(out, "c") && !strings.Contains(out, "default/a") && !strings.Contains(out, "null")
	}
	for _, c := range []struct {
		args string
		code int
		out  func(string) bool
		errs string
	}{
		{"get pods default/a -o json", cli.ExitFailure, func(out string) bool { return out == "" }, `"default/a" in dev/pods.v1: not JSON (KEY_QUARANTINED)`},
		{"get pods default/a -o yaml", cli.ExitFailure, func(out string) bool { return out == "" }, `"default/a" in dev/pods.v1: not JSON (KEY_QUARANTINED)`},
		{"get pods -o json", cli.ExitFailure, others, said},
		{"get pods -o yaml", cli.ExitFailure, others, said},
		{"get pods", cli.ExitFailure, func(out string) bool { return strings.HasPrefix(out, "NAMESPACE") && others(out) }, said},
		{"get pods -n broken", cli.ExitFailure, func(out string) bool { return out == "" }, "1 of 1 objects could not be read: default/a"},
		{"get pods -n broken -o json", cli.ExitFailure, func(out string) bool { return strings.Contains(out, `"items": []`) }, "1 of 1 objects could not be read: default/a"},
		{"get pods -o keys", cli.ExitOK, func(out string) bool { return out == "default/a\ndefault/b\ndefault/c\n" }, ""}, // nothing is missing
		{"watch pods -o json", cli.ExitFailure, func(out string) bool {
			return strings.HasPrefix(out, `{"type":"ADDED","key":"default/a","quarantined":true,"object":{"key":"default/a"}}`+"\n"+`{"type":"ADDED","key":"default/b","object":{"api`)
		}, "the end"},
		{"watch pods", cli.ExitFailure, func(out string) bool {
			first, rest, _ := strings.Cut(out, "\n")
			return strings.Contains(first, "cannot be read") && strings.Contains(rest, "NAMESPACE") && strings.Contains(rest, "b")
		}, "the end"},
	} {
		out, errs, code := command(t.Context(), "", append(strings.Fields(c.args), "--index-url", lis.Addr().String())...)
		if code != c.code || !c.out(out) || !strings.Contains(errs, c.errs) || c.errs == "" && errs != "" {
			t.Errorf("%s: exit %d, want %d, printed\n%sand said\n%s", c.args, code, c.code, out, errs)
		}
	}
}
