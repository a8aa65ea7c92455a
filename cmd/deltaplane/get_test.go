package main

import (
	"context"
	"net"
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

// pagesOf is an index of two pages, whose second is with another replica at first, and then
// nowhere.
type pagesOf struct {
	indexv1.UnimplementedIndexServiceServer
	elsewhere bool // it comes round
	asked     int
}

func (p *pagesOf) refused(token string) error {
	if token != "2" {
		return nil
	}
	p.asked++
	where := "expired"
	if p.elsewhere {
		if where = "elsewhere"; p.asked > 1 {
			return nil
		}
	}
	st, err := status.New(codes.FailedPrecondition, "gone").WithDetails(&errdetails.ErrorInfo{
		Reason: "SNAPSHOT_GONE", Domain: rpc.Domain, Metadata: map[string]string{"page_token": "2b", "snapshot": where},
	})
	if err != nil {
		return err
	}
	return st.Err()
}

func (p *pagesOf) List(_ context.Context, r *indexv1.ListRequest) (*indexv1.ListResponse, error) {
	if r.GetPageToken() == "" {
		return &indexv1.ListResponse{Objects: []*indexv1.Object{{Key: "a"}}, NextPageToken: "2"}, nil
	}
	key := map[string]string{"2": "b", "2b": "b-newer"}[r.GetPageToken()]
	return &indexv1.ListResponse{Objects: []*indexv1.Object{{Key: key}}}, p.refused(r.GetPageToken())
}

func (p *pagesOf) ListIndexFuncValues(_ context.Context, r *indexv1.ListIndexFuncValuesRequest) (*indexv1.ListIndexFuncValuesResponse, error) {
	rev := &deltav1.Revision{Epoch: 1, ResourceVersion: "5"}
	if r.GetPageToken() == "" {
		return &indexv1.ListIndexFuncValuesResponse{Values: []*indexv1.IndexValue{{Value: "a", Keys: 1}}, NextPageToken: "2", Revision: rev}, nil
	}
	return &indexv1.ListIndexFuncValuesResponse{Values: []*indexv1.IndexValue{{Value: "b", Keys: 1}}, Revision: rev}, p.refused(r.GetPageToken())
}

func TestPagesWhoseSnapshotIsNotHereAreReadAllTheSame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		args      []string
		elsewhere bool
		want      string
	}{
		{"get, elsewhere", []string{"get", "pods", "-o", "keys"}, true, "a\nb\n"},
		{"get, expired", []string{"get", "pods", "-o", "keys"}, false, "a\nb-newer\n"},
		{"values, elsewhere", []string{"index", "values", "pods", "i"}, true, "I   KEYS\na   1\nb   1\n"},
	} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer()
		indexv1.RegisterIndexServiceServer(srv, &pagesOf{elsewhere: c.elsewhere})
		go func() { _ = srv.Serve(lis) }()
		t.Cleanup(srv.Stop)
		out, errs, code := command(t.Context(), "", append(c.args, "--index-url", lis.Addr().String())...)
		if out != c.want || code != cli.ExitOK {
			t.Errorf("%s: exit %d, printed %q %s, want %q", c.name, code, out, errs, c.want)
		}
	}
}
