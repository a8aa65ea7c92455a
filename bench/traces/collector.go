package traces

import (
	"context"
	"net"
	"sync/atomic"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// collector takes spans by OTLP and counts them.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	spans  atomic.Int64
	url    string
	server *grpc.Server
}

func newCollector() (*collector, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &collector{url: "http://" + listener.Addr().String(), server: grpc.NewServer()}
	collectorv1.RegisterTraceServiceServer(c.server, c)
	go func() { _ = c.server.Serve(listener) }() // ends with Stop
	return c, nil
}

// Export implements [collectorv1.TraceServiceServer].
func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans.Add(int64(len(scope.GetSpans())))
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}
