package system

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	batchv1 "k8s.io/api/batch/v1"
)

// collector is an OTLP endpoint that keeps every span, by the service that sent it.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string][]*tracev1.Span
}

func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			c.spans[service] = append(c.spans[service], scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// traces are the ids of the traces a service's spans of that name belong to or are linked to.
func (c *collector) traces(service, name string) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := map[string]bool{}
	for _, s := range c.spans[service] {
		if s.GetName() == name {
			ids[string(s.GetTraceId())] = true
			for _, l := range s.GetLinks() {
				ids[string(l.GetTraceId())] = true
			}
		}
	}
	return ids
}

func (c *collector) names() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[string]int{}
	for service, spans := range c.spans {
		for _, s := range spans {
			names[service+": "+s.GetName()]++
		}
	}
	return names
}

// The trace rides in the record's headers, then in the queue's item: an Add carries items of many
// traces, so it is in none.
func TestOneTraceLeadsFromTheDeltaThroughTheQueueToTheReconcile(t *testing.T) {
	t.Parallel()
	var listen net.ListenConfig
	lis, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{spans: map[string][]*tracev1.Span{}}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)

	u := newUp(t, "")
	u.start(t, "up", append(u.upArgs(), "--otlp-endpoint", "http://"+lis.Addr().String())...)
	u.awaitStart(t, "controllers")
	x := u.target()
	job := createJob(t, x, jobOf("traced", nil, nil))
	waitCondition(t, x, job.Name, batchv1.JobComplete, "", time.Minute)
	eventually(t, time.Minute, "a reconcile in the trace of a publish", func(context.Context) error {
		published := c.traces("deltaplane-reflector", "reflector.publish")
		for id := range c.traces("deltaplane-controllers", "reconcile") {
			if published[id] {
				return nil
			}
		}
		return fmt.Errorf("spans seen: %v", c.names())
	})
}
