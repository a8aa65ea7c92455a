package wrote

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

const tracerName = "github.com/deltaplane/deltaplane/internal/wrote"

// Call is a write on its way. A nil one is a request that writes nothing or of which nobody wants
// to know.
type Call struct {
	notes *Notes
	span  trace.Span // nil where the run is not traced
	write Write
}

// Begin takes note of a request that is about to be sent. The context is that of the call's span,
// where the caller's is recorded. A path may begin with that of a proxy.
func Begin(ctx context.Context, cluster, method, path string) (context.Context, *Call) {
	notes, sampled := In(ctx), trace.SpanContextFromContext(ctx).IsSampled()
	if notes == nil && !sampled {
		return ctx, nil
	}
	w, ok := parse(method, path)
	if !ok {
		return ctx, nil
	}
	c := &Call{notes: notes, write: w}
	if c.write.Cluster = cluster; notes != nil {
		c.write.Cluster = cmp.Or(cluster, notes.Cluster)
	}
	c.write.Began = time.Now()
	if sampled {
		ctx, c.span = c.write.start(ctx, trace.SpanFromContext(ctx).TracerProvider())
	}
	return ctx, c
}

func (w *Write) start(ctx context.Context, provider trace.TracerProvider) (context.Context, trace.Span) {
	return provider.Tracer(tracerName).Start(ctx, w.Verb+" "+w.Resource, //nolint:spancheck // end ends it
		trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(w.Began),
		trace.WithAttributes(tracing.KeyVerb.String(w.Verb), tracing.KeyCollection.String(w.Collection()), tracing.KeyKey.String(w.Key)))
}

// CarriedOut ends a call that was carried out, by its answer in JSON.
func (c *Call) CarriedOut(answer []byte) {
	if c == nil {
		return
	}
	w := &c.write
	if meta := gjson.GetBytes(answer, "metadata"); gjson.GetBytes(answer, "kind").Str != "Status" {
		w.RV = meta.Get("resourceVersion").Str
		if name := meta.Get("name").Str; strings.HasSuffix(w.Key, "/") || w.Key == "" {
			w.Key = string(delta.NewKey(strings.TrimSuffix(w.Key, "/"), name))
		}
	}
	c.ended()
}

// Failed ends a call that was refused, or whose answer did not come.
func (c *Call) Failed(why string) {
	if c == nil {
		return
	}
	c.write.Refused = cmp.Or(why, "refused")
	c.ended()
}

func (c *Call) ended() {
	c.write.Ended = time.Now()
	if c.span != nil {
		c.write.end(c.span)
	}
	if c.notes != nil {
		c.notes.note(c.write)
	}
}

// end links the write to its event, whose identity follows from the version.
func (w *Write) end(span trace.Span) {
	span.SetAttributes(tracing.KeyKey.String(w.Key))
	if w.Refused != "" {
		span.SetStatus(codes.Error, w.Refused)
	}
	if w.RV != "" {
		span.SetAttributes(tracing.KeyRV.String(w.RV))
		span.AddLink(tracing.Link(tracing.EventOf(w.Collection(), w.RV).Context(false), tracing.CauseEvent))
	}
	span.End(trace.WithTimestamp(w.Ended))
}

// Spans makes spans below that of ctx of writes that had none.
func Spans(ctx context.Context, provider trace.TracerProvider, writes []Write) {
	for i := range writes {
		_, span := writes[i].start(ctx, provider)
		writes[i].end(span)
	}
}

// Inject has an API server that traces link its spans to the caller's.
func Inject(ctx context.Context, header http.Header) {
	if trace.SpanContextFromContext(ctx).IsSampled() {
		header.Set("Traceparent", tracing.Parent(ctx))
	}
}
