package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestAWrongAddressSaysWhatWasExpectedAndWhatIsThere(t *testing.T) {
	t.Parallel()
	healthy := func(name string, more func(*grpc.Server)) string {
		return servedAt(t, func(s *grpc.Server) {
			h := health.NewServer()
			h.SetServingStatus(name, grpc_health_v1.HealthCheckResponse_SERVING)
			grpc_health_v1.RegisterHealthServer(s, h)
			more(s)
		})
	}
	queue := healthy(queuev1.QueueService_ServiceDesc.ServiceName, func(s *grpc.Server) {
		queuev1.RegisterQueueServiceServer(s, queuev1.UnimplementedQueueServiceServer{})
	})
	index := healthy(indexv1.IndexService_ServiceDesc.ServiceName, func(s *grpc.Server) { indexv1.RegisterIndexServiceServer(s, &catalog{}) })
	other := servedAt(t, func(*grpc.Server) {})
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	const nobody = "127.0.0.1:1" // a free port would be given to a server of another test
	for _, x := range []struct{ line, address, says string }{
		{"get pods --index-url", queue, "the queue service answers there"},
		{"watch pods --index-url", queue, "the queue service answers there"},
		{"index ls pods --index-url", queue, "the queue service answers there"},
		{"queue ls --queue-url", index, "the index service answers there"},
		{"queue drain a --queue-url", index, "the index service answers there"},
		{"reflection ls --reflector-url", index, "the index service answers there"},
		{"get pods --tls --index-url", index, "the index service answers there in plain text: leave out --tls"},
		{"get pods --index-url", other, "another gRPC server answers there"},
		{"get pods --index-url", strings.TrimPrefix(web.URL, "http://"), "an HTTP server answers there"},
		{"queue ls --queue-url", nobody, "nothing answers there"},
		{"watch pods --index-url", nobody, "nothing answers there"},
		{"logs x --index-url", nobody, "nothing answers there"},
	} {
		flag := x.line[strings.LastIndex(x.line, "--"):]
		_, errs, code := command(t.Context(), "", append(strings.Fields(x.line), x.address)...)
		if code != cli.ExitUnavailable || !strings.Contains(errs, x.says) || !strings.Contains(errs, "service at "+x.address+" ("+flag+")") {
			t.Errorf("%s: exit %d, said %s; want %q", x.line, code, errs, x.says)
		}
	}
}
