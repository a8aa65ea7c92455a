package rpc

import (
	"context"

	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// makesSpans reports whether anything comes of the spans that a tracer starts.
func makesSpans(tracer trace.TracerProvider) bool {
	if tracer == nil {
		return false
	}
	_, none := tracer.(tracenoop.TracerProvider)
	return !none
}

// passTrace takes the caller's trace context into that of the call, where no span is made that
// would. Most calls have none, and otelgrpc would cost them as much as a read of the index does.
func passTrace(ctx context.Context) context.Context {
	if len(metadata.ValueFromIncomingContext(ctx, "traceparent")) == 0 {
		return ctx
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return Propagator().Extract(ctx, carrier(md))
}

// carrier reads trace context from the metadata of a call.
type carrier metadata.MD

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	if values := metadata.MD(c).Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for key := range c {
		keys = append(keys, key)
	}
	return keys
}

// within is a stream with another context.
type within struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *within) Context() context.Context { return s.ctx }
