package rpc

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/internal/tracing"
)

// metrics are the grpc_server_* metrics by the names and labels of go-grpc-middleware, so that its
// dashboards fit. The counters of a method are looked up once and not for every call: that took a
// tenth of what an empty call costs.
type metrics struct {
	started, handled, received, sent *prometheus.CounterVec
	seconds                          *prometheus.HistogramVec

	methods sync.Map // of *method, by full name
}

// method counts the calls of one.
type method struct {
	m      *metrics
	labels []string // type, service, method

	started, ok, received, sent prometheus.Counter
	seconds                     prometheus.Observer
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	labels := []string{"grpc_type", "grpc_service", "grpc_method"}
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append(labels[:3:3], more...))
	}
	m := &metrics{
		started:  counter("grpc_server_started_total", "Total number of RPCs started on the server."),
		handled:  counter("grpc_server_handled_total", "Total number of RPCs completed on the server, regardless of success or failure.", "grpc_code"),
		received: counter("grpc_server_msg_received_total", "Total number of RPC stream messages received on the server."),
		sent:     counter("grpc_server_msg_sent_total", "Total number of gRPC stream messages sent by the server."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "grpc_server_handling_seconds",
			Help:    "Histogram of response latency (seconds) of gRPC that had been application-level handled by the server.",
			Buckets: prometheus.DefBuckets,
		}, labels),
	}
	for _, c := range []prometheus.Collector{m.started, m.handled, m.received, m.sent, m.seconds} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// of returns the counters of a method, of which there are as many as are registered.
func (m *metrics) of(fullName, kind string) *method {
	if known, ok := m.methods.Load(fullName); ok {
		return known.(*method)
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(fullName, "/"), "/")
	l := []string{kind, service, name}
	known, _ := m.methods.LoadOrStore(fullName, &method{
		m: m, labels: l,
		started: m.started.WithLabelValues(l...), ok: m.handled.WithLabelValues(append(l[:3:3], codes.OK.String())...),
		received: m.received.WithLabelValues(l...), sent: m.sent.WithLabelValues(l...), seconds: m.seconds.WithLabelValues(l...),
	})
	return known.(*method)
}

// ended counts a call that began at a time, within a span or nil.
func (c *method) ended(began time.Time, err error, span trace.Span) {
	if err == nil {
		c.ok.Inc()
	} else {
		c.m.handled.WithLabelValues(append(c.labels[:3:3], status.Code(err).String())...).Inc()
	}
	var of trace.SpanContext
	if span != nil {
		of = span.SpanContext()
	}
	tracing.Observe(c.seconds, time.Since(began).Seconds(), of)
}

const unaryCall = "unary"

// streamKind names the kind of a streaming method.
func streamKind(info *grpc.StreamServerInfo) string {
	switch {
	case info.IsClientStream && info.IsServerStream:
		return "bidi_stream"
	case info.IsClientStream:
		return "client_stream"
	}
	return "server_stream"
}

// counted is a stream whose messages are counted.
type counted struct {
	grpc.ServerStream
	method *method
}

// SendMsg implements grpc.ServerStream.
func (s *counted) SendMsg(m any) error {
	err := s.ServerStream.SendMsg(m)
	if err == nil {
		s.method.sent.Inc()
	}
	return err
}

// RecvMsg implements grpc.ServerStream.
func (s *counted) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.method.received.Inc()
	}
	return err
}
