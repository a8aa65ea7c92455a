package telemetry

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"

	"go.opentelemetry.io/otel/trace"
)

// The attribute keys of our logs. Use these and no others, so that a log can be
// searched by them: messages are constant, values live here.
const (
	KeyService    = "service"    // which service speaks
	KeyController = "controller" // which controller of the controllers service
	KeyCluster    = "cluster"    // a cluster by its configured name
	KeyCollection = "collection" // "dev/pods.v1"
	KeyKey        = "key"        // "namespace/name"
	KeyNode       = "node"       // a node's name
	KeyUID        = "uid"        // of the object
	KeyQueue      = "queue"      // a queue's name
	KeyToken      = "token"      // a lease's fencing number
	KeySession    = "session"    // a worker's or producer's session id
	KeyAttempt    = "attempt"    // which try this is
	KeyEpoch      = "epoch"
	KeyTerm       = "term"
	KeyRV         = "rv"       // a resource version
	KeySequence   = "sequence" // a position in the log
	KeyMethod     = "method"   // a gRPC method
	KeyCode       = "code"     // a gRPC or HTTP code
	KeyReason     = "reason"   // why, from a closed set
	KeyOutcome    = "outcome"  // of a reconcile
	KeyCount      = "count"
	KeyBytes      = "bytes"
	KeyAfter      = "after"    // a wait ahead
	KeyDuration   = "duration" // time taken
	KeyAddr       = "addr"     // host:port
	KeyTarget     = "target"   // what is dialled, without credentials
	KeyPath       = "path"     // of a file
	KeyCheck      = "check"    // a readiness check's name
	KeyError      = "error"
	KeyPanic      = "panic"
	KeyStack      = "stack"
)

// Err is the attribute of an error.
func Err(err error) slog.Attr { return slog.Any(KeyError, err) }

func newLogger(c Config) *slog.Logger {
	level, _ := c.level() // checked by Validate
	var out io.Writer = os.Stderr
	if c.LogOutput != nil {
		out = c.LogOutput
	}
	options := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(out, options)
	if c.LogFormat == "json" {
		h = slog.NewJSONHandler(out, options)
	}
	return slog.New(traced{h}).With(slog.String(KeyService, cmp.Or(c.Service, "deltaplane")))
}

// traced adds the ids of the span in the context to each line.
type traced struct{ slog.Handler }

func (h traced) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{h.Handler.WithAttrs(attrs)} }

func (h traced) WithGroup(name string) slog.Handler { return traced{h.Handler.WithGroup(name)} }
