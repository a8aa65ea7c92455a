package rpc

import (
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/internal/tracing"
)

const (
	tracerName  = "github.com/deltaplane/deltaplane/internal/rpc"
	traceparent = "traceparent"
)

// Propagator is the trace context format of every part: W3C.
func Propagator() propagation.TextMapPropagator { return propagation.TraceContext{} }

// passTrace takes the caller's trace context into that of the call.
func passTrace(ctx context.Context) context.Context {
	parents := metadata.ValueFromIncomingContext(ctx, traceparent)
	if len(parents) == 0 {
		return ctx
	}
	carrier := propagation.MapCarrier{traceparent: parents[0]}
	if states := metadata.ValueFromIncomingContext(ctx, "tracestate"); len(states) > 0 {
		carrier["tracestate"] = strings.Join(states, ",")
	}
	return Propagator().Extract(ctx, carrier)
}

// beginSpan begins a span where the caller's is recorded; nil for most calls: what handlers of
// statistics cost would be as much as a read of the index takes.
func beginSpan(ctx context.Context, tracer trace.TracerProvider, method string) (context.Context, trace.Span) {
	if tracer == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, nil
	}
	return tracer.Tracer(tracerName).Start(ctx, strings.TrimPrefix(method, "/"), trace.WithSpanKind(trace.SpanKindServer), attributesOf(method)) //nolint:spancheck // the caller ends it
}

func attributesOf(method string) trace.SpanStartEventOption {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return trace.WithAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", name))
}

// faults are the codes of a call that went wrong. Others answer it, such as that there is no such
// object.
var faults = []codes.Code{codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss}

// endSpan ends a call's span, if it has one.
func endSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if code := status.Code(err); code != codes.OK {
		span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)))
		if slices.Contains(faults, code) {
			span.SetStatus(otelcodes.Error, code.String()+": "+status.Convert(err).Message())
		}
	}
	span.End()
}

// sendTrace is the client's side: calls within a recorded span have one of their own, and each call
// within any span carries it.
func sendTrace(tracer trace.TracerProvider) []grpc.DialOption {
	begin := func(ctx context.Context, method string) (context.Context, trace.Span) {
		within := trace.SpanContextFromContext(ctx)
		if !within.IsValid() {
			return ctx, nil
		}
		var span trace.Span
		if tracer != nil && within.IsSampled() {
			ctx, span = tracer.Tracer(tracerName).Start(ctx, strings.TrimPrefix(method, "/"), trace.WithSpanKind(trace.SpanKindClient), attributesOf(method))
		}
		return metadata.AppendToOutgoingContext(ctx, traceparent, tracing.Parent(ctx)), span
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
			ctx, span := begin(ctx, method)
			err := invoke(ctx, method, req, reply, conn, o...)
			endSpan(span, err)
			return err
		}),
		// A stream may outlive what opened it, and is no step of a trace: it only carries the context.
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			if parent := tracing.Parent(ctx); parent != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, traceparent, parent)
			}
			return open(ctx, desc, conn, method, o...)
		}),
	}
}

// within is a stream with another context.
type within struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *within) Context() context.Context { return s.ctx }
