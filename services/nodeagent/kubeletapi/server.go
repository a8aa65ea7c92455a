// Package kubeletapi is what an API server asks a node for: the logs of its
// containers, by the kubelet's HTTPS API. Callers are authenticated by a client
// certificate or a token, as the API server reviews it, and need the right to get
// nodes/proxy.
package kubeletapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// Config says where the API is served.
type Config struct {
	// Node is the node's name.
	Node string
	// Listen is host:port; port 0 is any.
	Listen string
	// ClientCA is a PEM file of who signs client certificates; without it tokens alone count.
	ClientCA string
	// Hosts are the node's names and addresses, for the certificate that the server makes itself.
	Hosts []string
	// Stall is how long a reader of a log may read nothing before it is given up; 1 min.
	Stall time.Duration
}

// Sources find the logs of a node's containers. Errors are [ErrNotFound], [ErrRuntime], or say why
// there is none yet.
type Sources interface {
	// Log is the file of a container's last instance, or of the one before, and says as long as the
	// instance is not known to have ended.
	Log(namespace, pod, container string, previous bool) (path string, running func() bool, err error)
}

// ErrNotFound says that the node has no such pod or container.
var ErrNotFound = errors.New("not found")

// ErrRuntime says that the container runtime could not be asked.
var ErrRuntime = errors.New("the container runtime does not answer")

// Server is the API of one node. Make it with New.
type Server struct {
	cfg     Config
	review  kube.Reviewer
	sources Sources
	log     *slog.Logger
	tls     *tls.Config
	reviews chan struct{} // holds one for each caller that is being reviewed
}

// lifetime is that of the certificate that a server makes when it starts.
const lifetime = 365 * 24 * time.Hour

// maxReviews is how many callers are reviewed at once: each costs the API server two calls.
const maxReviews = 16

// New makes a server that does not listen yet. The error names a file that cannot be read.
func New(cfg Config, review kube.Reviewer, sources Sources, log *slog.Logger) (*Server, error) {
	files := certs.Config{CAFile: cfg.ClientCA}
	authorities, err := certs.Open(files)
	if err != nil {
		return nil, fmt.Errorf("kubelet API: %w", err)
	}
	now := time.Now()
	ca, _, err := certs.NewAuthority(cfg.Node+"-ca", now, lifetime)
	if err != nil {
		return nil, fmt.Errorf("kubelet API: %w", err)
	}
	pair, err := ca.Issue(certs.Subject{User: "system:node:" + cfg.Node, Groups: []string{"system:nodes"}, Hosts: append([]string{cfg.Node}, cfg.Hosts...)}, now, lifetime)
	if err != nil {
		return nil, fmt.Errorf("kubelet API: %w", err)
	}
	own, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("kubelet API: %w", err)
	}
	cfg.Stall = cmp.Or(cfg.Stall, time.Minute)
	s := &Server{cfg: cfg, reviews: make(chan struct{}, maxReviews), review: review, sources: sources, log: log}
	s.tls = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	s.tls.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		conn := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: s.tls.NextProtos, Certificates: []tls.Certificate{own}}
		if pool := authorities.Get().Authorities; pool != nil {
			conn.ClientCAs, conn.ClientAuth = pool, tls.VerifyClientCertIfGiven
		}
		return conn, nil
	}
	return s, nil
}

// Listen opens the port.
func (s *Server) Listen(ctx context.Context) (net.Listener, error) {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("kubelet API: %w", err)
	}
	return lis, nil
}

// Serve answers on lis until ctx ends, and then ends what is being followed. It returns nil on a
// clean stop.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	server := &http.Server{
		Handler: s.permitted(mux), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 90 * time.Second, TLSConfig: s.tls,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(late) != nil {
			_ = server.Close()
		}
	})
	s.log.Info("kubelet API is served", slog.String(telemetry.KeyAddr, lis.Addr().String()))
	err := server.ServeTLS(lis, "", "")
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("kubelet API: %w", err)
	}
	return nil
}
