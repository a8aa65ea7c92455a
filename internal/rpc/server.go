package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"

	"github.com/deltaplane/deltaplane/internal/certs"
)

// Options are the parts a server is built with, all of them optional.
type Options struct {
	// Log receives causes hidden from callers, and panics. Default: discarded.
	Log *slog.Logger
	// Registry receives the grpc_server_* metrics. Default: none are kept.
	Registry prometheus.Registerer
	// Tracer makes spans for calls whose caller has a span that is recorded. Default: none, but
	// trace context still passes through.
	Tracer trace.TracerProvider
	// Rules map the handlers' errors to statuses.
	Rules []Rule
	// Authorizer replaces the one the configuration chooses.
	Authorizer Authorizer
	// Permit decides about each unary call once its message is read, and again when
	// what is authorized has changed before its answer is sent. An error is the
	// call's. Default: none is refused.
	Permit func(ctx context.Context, method string, req any) error
	// Extra are further options, such as a codec.
	Extra []grpc.ServerOption
	// MessageBytes bounds the received messages of single methods, by full name, below
	// MaxMessageBytes; a longer one is refused before it is read.
	MessageBytes map[string]int
	// Unmarshal reads messages of methods in MessageBytes, as the server's codec does.
	// Default: that of protobuf. It must not keep the buffers.
	Unmarshal func(mem.BufferSlice, any) error
}

// Server is a gRPC server with health, reflection, metrics, traces, recovery,
// deadlines, authorization and error mapping in place. Register services on it
// as on a *grpc.Server.
type Server struct {
	cfg    ServerConfig
	log    *slog.Logger
	grpc   *grpc.Server
	guard  *guard
	o      Options
	gate   *gate
	health *health.Server

	listening chan struct{} // closed when addr is set
	addr      net.Addr
	draining  atomic.Bool
	stopping  chan struct{} // closed when streams are to end

	mu      sync.Mutex // guards serving
	serving map[string]bool
}

// NewServer builds a server. It reads the TLS and token files, and opens nothing else.
func NewServer(cfg ServerConfig, o Options) (*Server, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Authorizer == nil {
		var err error
		if o.Authorizer, err = newAuthorizer(cfg.Auth, o.Log); err != nil {
			return nil, err
		}
	}
	calls, err := newMetrics(o.Registry)
	if err != nil {
		return nil, fmt.Errorf("rpc: register metrics: %w", err)
	}
	panics := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "deltaplane_rpc_panics_total", Help: "Handlers that panicked; each was answered INTERNAL.",
	})
	if err := o.Registry.Register(panics); err != nil {
		return nil, fmt.Errorf("rpc: register metrics: %w", err)
	}
	if r, ok := o.Authorizer.(Revoker); ok {
		if err := o.Registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "deltaplane_rpc_authorizer_faulty",
			Help: "1 while what decides who may call cannot be used as it is, such as a token file that is malformed, empty or gone.",
		}, func() float64 {
			if r.Check(context.Background()) != nil { //nolint:forbidigo // it does not block
				return 1
			}
			return 0
		})); err != nil {
			return nil, fmt.Errorf("rpc: register metrics: %w", err)
		}
	}
	admission, err := newGate(cfg, o.Log, o.Registry)
	if err != nil {
		return nil, fmt.Errorf("rpc: register metrics: %w", err)
	}
	_, admission.seats.strangers.everybody = o.Authorizer.(AllowAll)
	g := &guard{
		log: o.Log, auth: o.Authorizer, gate: admission, rules: o.Rules, panics: panics, calls: calls, tracer: o.Tracer,
		revisable: newRevisable(), methods: map[string]*reception{}, unmarshal: o.Unmarshal, allow: o.Permit,
	}
	if g.unmarshal == nil {
		g.unmarshal = encoding.GetCodecV2("proto").Unmarshal
	}
	options := []grpc.ServerOption{
		grpc.StatsHandler(admission),
		grpc.InTapHandle(admission.pace),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(cfg.HandshakeTimeout),
		grpc.StreamInterceptor(g.stream),
		grpc.MaxRecvMsgSize(cfg.MaxMessageBytes),
		grpc.MaxConcurrentStreams(cfg.MaxConcurrentStreams),
		grpc.StaticStreamWindowSize(serverStreamWindow),
		grpc.StaticConnWindowSize(serverConnWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: cfg.KeepaliveMinTime, PermitWithoutStream: true}),
		grpc.KeepaliveParams(cfg.keepalive()),
		grpc.WaitForHandlers(true),
	}
	if cfg.StreamWorkers > 0 {
		options = append(options, grpc.NumStreamWorkers(uint32(cfg.StreamWorkers)))
	}
	if cfg.TLS.CertFile != "" {
		conf, err := certs.Server(cfg.TLS, cfg.Auth.Mode == AuthIdentities, "h2")
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(conf)))
	}
	s := &Server{
		cfg: cfg, log: o.Log, guard: g, o: o, gate: admission, serving: map[string]bool{},
		listening: make(chan struct{}), stopping: make(chan struct{}),
		grpc: grpc.NewServer(append(options, o.Extra...)...), health: health.NewServer(),
	}
	healthpb.RegisterHealthServer(registrar{s}, s.health)
	reflection.Register(registrar{s})
	s.publish()
	return s, nil
}

func (c ServerConfig) keepalive() keepalive.ServerParameters {
	p := keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}
	if c.MaxConnectionAge > 0 {
		p.MaxConnectionAge, p.MaxConnectionAgeGrace = c.MaxConnectionAge, c.MaxConnectionGrace
	}
	return p
}

// Aside registers services that have no health of their own: the server serves
// without them.
func (s *Server) Aside() grpc.ServiceRegistrar { return registrar{s} }

// RegisterService implements grpc.ServiceRegistrar. The service is NOT_SERVING
// until [Server.SetServing] says otherwise. It must come before Serve.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.register(desc, impl)
	s.mu.Lock()
	if _, known := s.serving[desc.ServiceName]; !known {
		s.serving[desc.ServiceName] = false
	}
	s.mu.Unlock()
	s.publish()
}

func (s *Server) register(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(s.guard.wrap(desc, &s.o, s.cfg.MaxMessageBytes), impl)
}

// CheckAuthorizer says what is wrong with what the authorizer decides by, such as
// a token file that cannot be read; nil when nothing is.
func (s *Server) CheckAuthorizer(ctx context.Context) error {
	if r, ok := s.guard.auth.(Revoker); ok {
		return r.Check(ctx)
	}
	return nil
}

// SetServing sets the health of one service, by its full name. The server as a
// whole (the empty name) is SERVING when all its services are. Safe for
// concurrent use; it changes nothing once the server stops.
func (s *Server) SetServing(service string, serving bool) {
	s.mu.Lock()
	s.serving[service] = serving
	s.mu.Unlock()
	s.publish()
}

// SetPart sets the health of a part of a service, by any name. It does not
// count for the server as a whole, so one part that cannot serve does not take
// the others out of rotation.
func (s *Server) SetPart(name string, serving bool) {
	s.health.SetServingStatus(name, servingStatus(serving))
}

func (s *Server) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := len(s.serving) > 0
	for name, ok := range s.serving {
		s.health.SetServingStatus(name, servingStatus(ok))
		all = all && ok
	}
	s.health.SetServingStatus("", servingStatus(all))
}

func servingStatus(ok bool) healthpb.HealthCheckResponse_ServingStatus {
	if ok {
		return healthpb.HealthCheckResponse_SERVING
	}
	return healthpb.HealthCheckResponse_NOT_SERVING
}

// Listen opens the configured address.
func Listen(cfg ServerConfig) (net.Listener, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(context.Background(), "tcp", cfg.Listen) //nolint:forbidigo // opening a TCP listener does not block
	if err != nil {
		return nil, fmt.Errorf("rpc: listen: %w", err)
	}
	return lis, nil
}
