package tracing

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// The attributes of spans.
const (
	KeyCollection = attribute.Key("deltaplane.collection")
	KeyKey        = attribute.Key("deltaplane.key")
	KeyRV         = attribute.Key("deltaplane.resource_version")
	KeyVerb       = attribute.Key("deltaplane.verb")
	KeyQueue      = attribute.Key("deltaplane.queue")
	KeyAttempt    = attribute.Key("deltaplane.attempt")
	KeyOutcome    = attribute.Key("deltaplane.outcome")
	KeyRecords    = attribute.Key("deltaplane.records")
	KeyType       = attribute.Key("deltaplane.type")
	// KeyCause says on a link what it leads to: one of the causes.
	KeyCause = attribute.Key("deltaplane.cause")
)

// What a link leads to.
const (
	// CauseWrite is the write whose event the span is.
	CauseWrite = "write"
	// CauseEvent is the event of what the span wrote.
	CauseEvent = "event"
	// CauseMerged is another cause of a run.
	CauseMerged = "merged"
	// CauseBarrier is an event that a run waited for; its trace need not be recorded.
	CauseBarrier = "barrier"
)

// Link is a link to a span, and what that is.
func Link(to trace.SpanContext, cause string, more ...attribute.KeyValue) trace.Link {
	return trace.Link{SpanContext: to, Attributes: append(more, KeyCause.String(cause))}
}
