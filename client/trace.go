package client

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

const (
	tracerName  = "github.com/deltaplane/deltaplane/client"
	traceparent = "traceparent"
)

// TraceOf is the W3C traceparent of the span in ctx; empty without one.
func TraceOf(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	rpc.Propagator().Inject(ctx, carrier)
	return carrier[traceparent]
}

// contextWithTrace returns ctx as a child of the span that parent names, if it
// names one.
func contextWithTrace(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return rpc.Propagator().Extract(ctx, propagation.MapCarrier{traceparent: parent})
}

func links(parents []string) []trace.Link {
	var out []trace.Link
	for _, p := range parents {
		//nolint:forbidigo // only a carrier for the parse
		if sc := trace.SpanContextFromContext(contextWithTrace(context.Background(), p)); sc.IsValid() {
			out = append(out, trace.Link{SpanContext: sc})
		}
	}
	return out
}
