package tracing

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const (
	header    = "traceparent"
	parentLen = len("00-") + 32 + 1 + 16 + 1 + 2
)

// Sampled says whether a W3C traceparent says that its trace is recorded. It is cheap, and true of
// some texts that are no traceparent.
func Sampled(parent string) bool {
	if len(parent) < parentLen {
		return false
	}
	switch c := parent[parentLen-1]; {
	case c >= '0' && c <= '9':
		return c&1 == 1
	case c >= 'a' && c <= 'f':
		return c&1 == 0 // 'b', 'd' and 'f' have odd values
	}
	return false
}

// Parse is the span that a W3C traceparent names; invalid when it names none.
func Parse(parent string) trace.SpanContext {
	return trace.SpanContextFromContext(With(nothing, parent))
}

// With is ctx with the span that a W3C traceparent names as the parent; ctx when it names none.
func With(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{header: parent})
}

// Recorded is a W3C traceparent in the form that [Parent] gives it, if its trace is recorded; else
// empty. It keeps nothing of the text.
func Recorded(parent string) string {
	if !Sampled(parent) {
		return ""
	}
	c := Parse(parent)
	if !c.IsSampled() {
		return ""
	}
	return Parent(trace.ContextWithSpanContext(nothing, c))
}

// Parent is the W3C traceparent of the span in ctx; empty without one.
func Parent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[header]
}

// Split parts the traceparents of what caused something, the newest last: the newest that is
// sampled, which is invalid when none is, and the other valid ones.
func Split(parents []string) (parent trace.SpanContext, others []trace.SpanContext) {
	for _, p := range parents {
		switch c := Parse(p); {
		case !c.IsValid():
		case c.IsSampled():
			if parent.IsValid() {
				others = append(others, parent)
			}
			parent = c
		default:
			others = append(others, c)
		}
	}
	return parent, others
}

// nothing has no span.
var nothing = context.Background() //nolint:forbidigo // only a carrier for the parse
