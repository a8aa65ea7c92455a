package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/gateway/forward"
	"github.com/deltaplane/deltaplane/services/gateway/mirror"
)

// Deps is what a gateway talks to.
type Deps struct {
	// Index answers for the cluster.
	Index *client.Index
	// Kube is the cluster, with the gateway's own credentials: it may list and watch what is
	// mirrored, and review tokens and access.
	Kube *kube.Client
	// Upstream is the cluster, for requests with credentials of others.
	Upstream *kube.Upstream
	// Vouching is the cluster, for requests of callers with client certificates: with the gateway's
	// own credentials, or those of a front proxy. Nil where none are taken.
	Vouching *kube.Upstream
}

// Service is a gateway.
type Service struct {
	cfg       Config
	deps      Deps
	log       *slog.Logger
	tls       *tls.Config // nil for plain text
	admin     *telemetry.Admin
	authority *authority.Authority // nil where everybody may read everything
	metrics   *metrics
	monitor   *monitor
	lately    lately
	flow      flow
	sights    sights
	tables    tables
	declared  declared

	certificates *certificates // nil where none are taken

	listening chan struct{} // closed when what follows is set
	addr      net.Addr
	set       *mirror.Set
	forward   *forward.Forwarder
	draining  chan struct{}
}

// New makes a gateway. It reads its certificates, and calls nobody.
func New(cfg Config, deps Deps, tel *telemetry.Telemetry) (*Service, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, deps: deps, log: tel.Log, listening: make(chan struct{}), draining: make(chan struct{}),
		tables: tables{kube: deps.Kube, log: tel.Log},
	}
	s.declared.find = s.findDeclared
	var err error
	if cfg.TLS.CertFile != "" {
		if s.tls, err = certs.Server(cfg.TLS, true, "h2", "http/1.1"); err != nil {
			return nil, fmt.Errorf("gateway: %w", err)
		}
	}
	if cfg.ClientCertificates != "" {
		if deps.Vouching == nil {
			return nil, errors.New("gateway: client certificates are taken, and there are no credentials to pass their owners on with")
		}
		if s.certificates, err = newCertificates(cfg, tel.Log); err != nil {
			return nil, err
		}
		s.certificates.ask(s.tls)
	}
	if s.admin, err = telemetry.NewAdmin(cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	if s.metrics, err = newMetrics(tel.Registry); err != nil {
		return nil, err
	}
	if s.monitor, err = newMonitor(tel.Registry); err != nil {
		return nil, err
	}
	if !cfg.AllowAll {
		// What is denied goes to the API server, which audits it.
		who := authority.Config{Clusters: []authority.Cluster{{Name: cfg.Cluster, Kube: deps.Kube}}, APIServerTokens: true}
		if s.authority, err = authority.New(who, rpc.AuthConfig{Mode: rpc.AuthIdentities}, tel.Log, tel.Registry); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Addr is the address of the endpoint, once it listens.
func (s *Service) Addr(ctx context.Context) (string, error) {
	select {
	case <-s.listening:
		return s.addr.String(), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// maxHeaders bounds the headers of a request: everybody can send some.
const maxHeaders = 128 << 10

// stopGrace is how long requests may take to end once the gateway is to stop. Watches end at once.
const stopGrace = 10 * time.Second

// Run serves until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	// Requests that are answered still when ctx ends need the mirrors.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	s.set = mirror.NewSet(life, mirror.Config{Cluster: s.cfg.Cluster, MaxAge: s.cfg.MaxAge, WithoutManagedFields: s.cfg.WithoutManagedFields}, s.deps.Index, s.deps.Kube, s.log)
	var vouch *forward.Voucher
	if s.certificates != nil {
		vouch = &forward.Voucher{Up: s.deps.Vouching, FrontProxy: s.cfg.ClientCertificates == FrontProxy}
		parts.Go(func() { s.certificates.follow(life, s.deps.Kube) })
	}
	s.forward = forward.New(s.deps.Upstream, vouch, s.written, s.unreachable, s.log)
	s.admin.Ready("index", telemetry.Degrades(func(context.Context) error { return s.set.Check() }))
	parts.Go(func() { s.set.Run(life) })
	parts.Go(func() { s.lately.expire(life) })
	if s.authority != nil {
		parts.Go(func() { s.authority.Watch(life, func() {}) })
	}
	ended := make(chan error, 2)
	parts.Go(func() { ended <- s.admin.Run(life) })
	s.addr = lis.Addr()
	close(s.listening)
	server := &http.Server{
		Handler: s, TLSConfig: s.tls, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 3 * time.Minute, MaxHeaderBytes: maxHeaders,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	parts.Go(func() { ended <- s.serve(server, lis) })
	s.log.Info("serving the Kubernetes API", slog.String("address", s.addr.String()), slog.String(telemetry.KeyCluster, s.cfg.Cluster))
	select {
	case <-ctx.Done():
		err = nil
	case err = <-ended:
	}
	close(s.draining)
	within, cancel := context.WithTimeout(life, stopGrace)
	defer cancel()
	if e := server.Shutdown(within); e != nil {
		_ = server.Close() // what hangs is not worth waiting for
	}
	return err
}

func (s *Service) serve(server *http.Server, lis net.Listener) error {
	var err error
	if s.tls != nil {
		err = server.ServeTLS(lis, "", "")
	} else {
		err = server.Serve(lis)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("gateway: %w", err)
}
