package console

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/console/session"
	"github.com/deltaplane/deltaplane/services/console/view"
)

// Deps is what a console talks to. Its connections show no token.
type Deps struct {
	Reflector, Index, Queue explain.Part
	// Traces are those that the process keeps; nil where it keeps none. They are shown to everybody,
	// and so to nobody where callers are asked who they are.
	Traces view.Traces
}

// Service is a console.
type Service struct {
	cfg      Config
	deps     Deps
	log      *slog.Logger
	tls      *tls.Config // nil for plain text
	admin    *telemetry.Admin
	handler  http.Handler
	sessions *session.Manager
	unknown  *strangers
	metrics  *metrics

	life      context.Context //nolint:containedctx // of what sessions follow; set by Run before the first of them
	listening chan struct{}   // closed when what follows is set
	addr      net.Addr
	draining  chan struct{}
}

// New makes a console. It reads its certificate, and calls nobody.
func New(cfg Config, deps Deps, tel *telemetry.Telemetry) (*Service, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.proves() {
		deps.Traces = nil // they name objects of everybody, and no service says who may see which
	}
	s := &Service{cfg: cfg, deps: deps, log: tel.Log, listening: make(chan struct{}), draining: make(chan struct{})}
	var err error
	if cfg.TLS.CertFile != "" {
		if s.tls, err = certs.Server(cfg.TLS, true, "h2", "http/1.1"); err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
	}
	if s.admin, err = telemetry.NewAdmin(cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	files, err := fs.Sub(embedded, "assets")
	if err != nil {
		return nil, fmt.Errorf("console: pages: %w", err)
	}
	static, err := newPages(files)
	if err != nil {
		return nil, err
	}
	s.sessions, s.unknown = session.NewManager(s.hub), newStrangers()
	if s.metrics, err = newMetrics(tel.Registry, s.sessions); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", static)
	s.register(mux)
	s.handler = &guard{hosts: cfg.Hosts, next: mux}
	return s, nil
}

// Addr is the address of the pages, once the console listens.
func (s *Service) Addr(ctx context.Context) (string, error) {
	select {
	case <-s.listening:
		return s.addr.String(), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

const (
	// maxHeaders bounds the headers of a request: everybody can send some.
	maxHeaders = 64 << 10
	// requestWithin is how long a request may take to come, and its answer to be taken. Streams say
	// for themselves how long theirs may.
	requestWithin = 30 * time.Second
	// stopGrace is how long calls may take to end once the console is to stop. Streams end at once.
	stopGrace = 5 * time.Second
)

// Run serves until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	s.life, s.addr = life, lis.Addr()
	close(s.listening)
	ended := make(chan error, 2)
	parts.Go(func() { ended <- s.admin.Run(life) })
	server := s.server()
	parts.Go(func() { ended <- s.serve(server, lis) })
	s.log.Info("serving the console", slog.String("address", s.addr.String()))
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

func (s *Service) server() *http.Server {
	return &http.Server{
		Handler: s.handler, TLSConfig: s.tls, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: requestWithin, WriteTimeout: requestWithin,
		IdleTimeout: 3 * time.Minute, MaxHeaderBytes: maxHeaders, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
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
	return fmt.Errorf("console: %w", err)
}
