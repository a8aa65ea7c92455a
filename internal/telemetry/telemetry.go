// Package telemetry gives a service its logger, its tracer and its metrics
// registry, and serves them on the admin HTTP port.
//
// Nothing here is global: every service of a process has its own [Telemetry],
// which it passes on.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

// Config says what a service tells about itself. Its zero value logs text at
// Info to standard error, and exports no traces.
type Config struct {
	// Service is the name in logs and traces: "reflector", "queue". Default "deltaplane".
	Service string
	// LogFormat is "text" or "json". Default text.
	LogFormat string
	// LogLevel is "debug", "info", "warn" or "error". Default info.
	LogLevel string
	// LogOutput receives the log. Default standard error.
	LogOutput io.Writer
	// OTLPEndpoint is the host:port, or URL, of an OTLP gRPC collector for traces.
	OTLPEndpoint string
	// OTLPFromEnvironment takes the collector from the standard OTEL_EXPORTER_OTLP_* variables.
	OTLPFromEnvironment bool
	// OTLPInsecure sends to OTLPEndpoint without TLS; an http:// URL implies it.
	OTLPInsecure bool
	// Recent keeps traces in memory where there is no collector. Without either no span is
	// made, but trace context still passes through.
	Recent *recent.Store
	// Writes ties events to the writes of the same process that caused them; nil for no tie.
	Writes *tracing.Writes
	// TraceRatio is the share of API events whose traces the reflector samples, 0 for none.
	// Others record what their caller does, and errors.
	TraceRatio float64
	// Instance tells replicas apart in traces. Default: the host name.
	Instance string
	// Version is the version of the binary, if known.
	Version string
	// Certificates are PEM files by their use, whose expiry is a metric.
	Certificates map[string]string
}

// Telemetry holds what a service reports with. All fields are set.
type Telemetry struct {
	// Log carries the service's name and, inside a span, trace ids.
	Log *slog.Logger
	// Tracer makes spans whose parent is recorded, and those of [tracing.Root]. It makes none
	// where nobody takes them.
	Tracer trace.TracerProvider
	// Events is the share of API events that begin a trace; none where nobody takes spans.
	Events tracing.Ratio
	// Writes are the sampled writes of this process; nil where none are known.
	Writes *tracing.Writes
	// Registry holds the Go runtime and process metrics, and what the service adds.
	Registry *prometheus.Registry

	shutdown func(context.Context) error
}

// Validate reports every fault of c together.
func (c Config) Validate() error {
	var faults []error
	if _, err := c.level(); err != nil {
		faults = append(faults, err)
	}
	switch c.LogFormat {
	case "", "text", "json":
	default:
		faults = append(faults, fmt.Errorf("telemetry: log format %q is not text or json", c.LogFormat))
	}
	if !(c.TraceRatio >= 0 && c.TraceRatio <= 1) { // NaN is neither
		faults = append(faults, fmt.Errorf("telemetry: trace ratio %v is not within 0 and 1", c.TraceRatio))
	}
	return errors.Join(faults...)
}

func (c Config) level() (slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cmp.Or(c.LogLevel, "info"))); err != nil {
		return 0, fmt.Errorf("telemetry: log level %q is not debug, info, warn or error", c.LogLevel)
	}
	return level, nil
}

// Setup builds the telemetry of one service. A collector that cannot be reached
// is not an error: spans are dropped until it can. Call Shutdown at the end, to
// send the spans not yet sent.
func Setup(ctx context.Context, c Config) (*Telemetry, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Service = cmp.Or(c.Service, "deltaplane")
	t := &Telemetry{
		Log: newLogger(c), Registry: prometheus.NewRegistry(),
		Tracer: noop.NewTracerProvider(), shutdown: func(context.Context) error { return nil },
	}
	t.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if len(c.Certificates) > 0 {
		t.Registry.MustRegister(certs.NewCollector(c.Certificates))
	}
	spans, err := c.spans(ctx)
	if err != nil || spans == nil {
		return t, err
	}
	provider, err := c.provider(ctx, spans)
	if err != nil {
		return nil, err
	}
	t.Tracer, t.shutdown = provider, provider.Shutdown
	t.Events, t.Writes = tracing.RatioOf(c.TraceRatio), c.Writes
	return t, nil
}

// spans says who takes them; nil for nobody.
func (c Config) spans(ctx context.Context) (sdktrace.SpanProcessor, error) {
	if c.OTLPEndpoint == "" && !c.OTLPFromEnvironment {
		if c.Recent == nil {
			return nil, nil //nolint:nilnil // nobody is not an error
		}
		return c.Recent, nil
	}
	var options []otlptracegrpc.Option // what is missing is the environment's
	switch {
	case strings.Contains(c.OTLPEndpoint, "://"):
		options = append(options, otlptracegrpc.WithEndpointURL(c.OTLPEndpoint))
	case c.OTLPEndpoint != "":
		options = append(options, otlptracegrpc.WithEndpoint(c.OTLPEndpoint))
	}
	if c.OTLPInsecure {
		options = append(options, otlptracegrpc.WithInsecure())
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("telemetry: otlp exporter: %w", err)
	}
	return sdktrace.NewBatchSpanProcessor(exporter), nil
}

func (c Config) provider(ctx context.Context, spans sdktrace.SpanProcessor) (*sdktrace.TracerProvider, error) {
	host, _ := os.Hostname()
	attrs := []attribute.KeyValue{
		attribute.String("service.namespace", "deltaplane"),
		attribute.String("service.name", "deltaplane-"+strings.TrimPrefix(c.Service, "deltaplane-")),
		attribute.String("service.instance.id", cmp.Or(c.Instance, host)),
	}
	if c.Version != "" {
		attrs = append(attrs, attribute.String("service.version", c.Version))
	}
	about, err := resource.New(ctx, resource.WithAttributes(attrs...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("telemetry: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithSpanProcessor(spans), sdktrace.WithResource(about),
		sdktrace.WithSampler(tracing.NewSampler()), sdktrace.WithIDGenerator(tracing.NewIDs()),
	}
	if c.Writes != nil {
		options = append(options, sdktrace.WithSpanProcessor(c.Writes))
	}
	return sdktrace.NewTracerProvider(options...), nil
}

// Shutdown sends what is left to send and closes the exporter, until ctx ends.
func (t *Telemetry) Shutdown(ctx context.Context) error { return t.shutdown(ctx) }
