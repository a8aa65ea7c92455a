package client

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
)

const (
	// crowd is how many reads may be under way before further ones go by stream: fewer cost a
	// server little, are spread over its replicas, and keep their traces.
	crowd = 8
	// crowdMost is how many may be under way on top of which further ones go by themselves again,
	// since a stream would make them wait.
	crowdMost = queryCalls
)

// crowded sends reads by a Query stream while many are under way at once.
type crowded struct {
	grpc.ClientConnInterface
	stream   *Query
	underWay atomic.Int64
}

func newCrowded(conn grpc.ClientConnInterface) *crowded {
	return &crowded{ClientConnInterface: conn, stream: NewQuery(conn, QueryConfig{})}
}

// Invoke implements grpc.ClientConnInterface.
func (c *crowded) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if _, ok := queryKinds[method]; !ok {
		return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	n := c.underWay.Add(1)
	defer c.underWay.Add(-1)
	if n <= crowd || n > crowdMost || trace.SpanContextFromContext(ctx).IsSampled() { // a stream carries no traces
		return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	return c.stream.Invoke(ctx, method, args, reply, opts...)
}
