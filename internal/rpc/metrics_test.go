package rpc_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// counts are the metrics of the methods of test.Echo, by name, type, method and code.
func counts(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["grpc_service"] != "test.Echo" {
				continue
			}
			name := f.GetName() + " " + labels["grpc_type"] + " " + labels["grpc_method"]
			if code := labels["grpc_code"]; code != "" {
				name += " " + code
			}
			if n := m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()); n > 0 {
				got[name] = n
			}
		}
	}
	return got
}

func TestCallsAndMessagesAreCountedByMethodAndCode(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := start(t, rpc.ServerConfig{}, rpc.Options{Registry: reg}, &echo{
		call: func(_ context.Context, text string) error {
			if text == "fail" {
				return status.Error(codes.NotFound, "none")
			}
			return nil
		},
		stream: func(ss grpc.ServerStream) error {
			for range 2 {
				if err := ss.SendMsg(&emptypb.Empty{}); err != nil {
					return err
				}
			}
			return status.Error(codes.Aborted, "enough")
		},
	}, rpc.DialConfig{})
	for _, text := range []string{"a", "fail", "b"} {
		if err := b.call(t.Context(), text); (err != nil) != (text == "fail") {
			t.Fatal(err)
		}
	}
	s, err := b.conn.NewStream(t.Context(), &echoDesc.Streams[0], "/test.Echo/Stream")
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = s.RecvMsg(&emptypb.Empty{})
	}
	if errors.Is(err, io.EOF) || status.Code(err) != codes.Aborted {
		t.Fatal(err)
	}
	if err := b.stop(); err != nil { // what was answered has been counted
		t.Fatal(err)
	}
	want := map[string]float64{
		"grpc_server_started_total unary Call": 3, "grpc_server_msg_received_total unary Call": 3, "grpc_server_msg_sent_total unary Call": 2,
		"grpc_server_handled_total unary Call OK": 2, "grpc_server_handled_total unary Call NotFound": 1, "grpc_server_handling_seconds unary Call": 3,
		"grpc_server_started_total bidi_stream Stream": 1, "grpc_server_msg_sent_total bidi_stream Stream": 2,
		"grpc_server_handled_total bidi_stream Stream Aborted": 1, "grpc_server_handling_seconds bidi_stream Stream": 1,
	}
	if got := counts(t, reg); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// Without a tracer no span is made, and the handler's work still joins the caller's trace.
func TestTraceContextPassesAServerWithoutTracer(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	seen := make(chan trace.SpanContext, 1)
	b := start(t, rpc.ServerConfig{}, rpc.Options{}, &echo{
		call:   func(ctx context.Context, _ string) error { seen <- trace.SpanContextFromContext(ctx); return nil },
		stream: func(ss grpc.ServerStream) error { seen <- trace.SpanContextFromContext(ss.Context()); return nil },
	}, rpc.DialConfig{})
	for _, traced := range []bool{false, true} {
		ctx := t.Context()
		if traced {
			ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", parent)
		}
		check := func(what string) {
			t.Helper()
			got := <-seen
			if got.IsValid() != traced || traced && (got.TraceID().String() != parent[3:35] || got.SpanID().String() != parent[36:52] || !got.IsSampled()) {
				t.Errorf("%s, traced %v: the handler sees %v %v", what, traced, got.TraceID(), got.SpanID())
			}
		}
		if err := b.call(ctx, "x"); err != nil {
			t.Fatal(err)
		}
		check("unary")
		s, err := b.conn.NewStream(ctx, &echoDesc.Streams[0], "/test.Echo/Stream")
		if err != nil {
			t.Fatal(err)
		}
		check("stream")
		if err := s.RecvMsg(&emptypb.Empty{}); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}
