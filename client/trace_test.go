package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/tracing"
	"github.com/deltaplane/deltaplane/internal/wrote"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// recording is a provider that records what ours do.
func recording() (trace.TracerProvider, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return sdktrace.NewTracerProvider(sdktrace.WithSampler(tracing.NewSampler()), sdktrace.WithIDGenerator(tracing.NewIDs()), sdktrace.WithSpanProcessor(spans)), spans
}

func traceparent(rv string, sampled bool) string {
	return tracing.Parent(trace.ContextWithSpanContext(context.Background(), tracing.EventOf("dev/jobs.v1.batch", rv).Context(sampled)))
}

// drive has a worker run some keys, each once.
func drive(t *testing.T, cfg client.WorkerConfig, rec client.ReconcilerFunc, leases ...*queuev1.Lease) {
	t.Helper()
	b := work(t, cfg, rec)
	sc := b.open()
	sc.assign(leases...)
	for settled := 0; settled < len(leases); {
		batch := sc.settle()
		settled += len(batch.GetSettlements())
		sc.answer(batch)
	}
	go sc.answerAll()
	if err := b.stop(); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestARunOfARecordedCauseIsInItsTraceWithItsWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		provider, spans := recording()
		var seen, after trace.SpanContext
		cfg := client.WorkerConfig{
			Tracer: provider, OnStarted: func(item client.Item) { seen = item.Span() },
			OnFinished: func(item client.Item, _ client.Outcome, _ error, _ time.Duration) { after = item.Span() },
		}
		l := lease("ns/a", 1)
		l.Traceparents = []string{traceparent("1", false), traceparent("2", true)}
		drive(t, cfg, func(ctx context.Context, _ client.Item) (client.Result, error) {
			_, call := wrote.Begin(ctx, "", http.MethodPut, "/api/v1/namespaces/ns/pods/a")
			call.CarriedOut([]byte(`{"metadata":{"resourceVersion":"7"}}`))
			return client.Result{}, nil
		}, l)
		var names []string
		for _, s := range spans.Ended() {
			names = append(names, s.Name())
			if s.SpanContext().TraceID() != tracing.EventOf("dev/jobs.v1.batch", "2").Context(true).TraceID() {
				t.Errorf("%s is in the trace %s", s.Name(), s.SpanContext().TraceID())
			}
		}
		if got := strings.Join(names, ", "); got != "queue, update pods.v1, reconcile" {
			t.Errorf("spans: %s", got)
		}
		if !seen.IsSampled() || after.SpanID() != spans.Ended()[2].SpanContext().SpanID() {
			t.Errorf("hooks see %v and %v", seen.SpanID(), after.SpanID())
		}
	})
}

func TestAnUnrecordedRunHasNoSpanUnlessItFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		provider, spans := recording()
		bad := lease("ns/bad", 2)
		bad.Traceparents = []string{traceparent("3", false)}
		bad.Barrier = []*deltav1.CollectionRevision{{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "41"}}}
		drive(t, client.WorkerConfig{Tracer: provider}, func(ctx context.Context, item client.Item) (client.Result, error) {
			switch item.Key {
			case "ns/bad":
				_, call := wrote.Begin(ctx, "", http.MethodPut, "/api/v1/namespaces/ns/pods/a")
				call.Failed("409 Conflict")
				return client.Result{}, errors.New("no luck")
			case "ns/behind":
				return client.Result{}, client.ErrRevisionNotReached
			}
			return client.Result{}, nil
		}, lease("ns/good", 1), bad, lease("ns/behind", 3))
		by := map[string]sdktrace.ReadOnlySpan{}
		for _, s := range spans.Ended() {
			by[s.Name()] = s
		}
		run, write := by["reconcile"], by["update pods.v1"]
		if len(by) != 3 || len(spans.Ended()) != 3 || run == nil || write == nil {
			t.Fatalf("spans: %v", by)
		}
		if run.Status().Code != codes.Error || write.Parent().SpanID() != run.SpanContext().SpanID() || write.Status().Description != "409 Conflict" {
			t.Errorf("the run ended with %v, its write with %v", run.Status(), write.Status())
		}
		links := map[trace.TraceID]bool{}
		for _, l := range run.Links() {
			links[l.SpanContext.TraceID()] = true
		}
		for _, want := range []tracing.Identity{tracing.EventOf("dev/pods.v1", "41"), tracing.EventOf("dev/jobs.v1.batch", "3")} {
			if !links[want.Context(true).TraceID()] {
				t.Errorf("no link to %v: %v", want.Context(true).TraceID(), run.Links())
			}
		}
	})
}

func TestAStormOfErrorsIsNotAStormOfTraces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		provider, spans := recording()
		var leases []*queuev1.Lease
		for i := range 500 {
			leases = append(leases, lease(fmt.Sprint("ns/", i), uint64(i+1)))
		}
		drive(t, client.WorkerConfig{Tracer: provider, Concurrency: 10, Prefetch: 490}, func(context.Context, client.Item) (client.Result, error) {
			return client.Result{}, errors.New("no luck")
		}, leases...)
		if n := len(spans.Ended()); n != 20 {
			t.Errorf("500 errors at once made %d spans, want those of 10 runs", n)
		}
	})
}

func TestATriggersKeysCarryItsSpanInTheTraceOfTheRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		provider, spans := recording()
		b, stop := newTrigger(t, func(c *client.TriggerConfig) { c.Tracer = provider })
		defer stop()
		plain := traceparent("9", false)
		if err := b.t.Handle(t.Context(), client.Batch{Collection: jobs, Records: []delta.Record{
			record(jobs, "ns/a", "8", func(r *delta.Record) { r.Trace = traceparent("8", true) }),
			record(jobs, "ns/b", "9", func(r *delta.Record) { r.Trace = plain }),
			record(jobs, "ns/c", "10", nil),
		}}); err != nil {
			t.Fatal(err)
		}
		ended := spans.Ended()
		if len(ended) != 1 || ended[0].Parent().TraceID() != tracing.EventOf("dev/jobs.v1.batch", "8").Context(true).TraceID() {
			t.Fatalf("spans: %v", ended)
		}
		want := map[string]string{"ns/a": ended[0].SpanContext().SpanID().String(), "ns/b": plain, "ns/c": ""}
		for _, item := range b.ledger.added {
			if w := want[item.GetKey()]; !strings.Contains(item.GetTraceparent(), w) || w == "" && item.GetTraceparent() != "" {
				t.Errorf("%s carries %q, want %q", item.GetKey(), item.GetTraceparent(), w)
			}
		}
	})
}
