package admission

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/deltaplane/deltaplane/core/taint"
)

// Path is where reviews are answered.
const Path = "/default-tolerations"

// Config says how the webhook serves.
type Config struct {
	// Listen is the address; ":8443" when empty.
	Listen string
	// CertFile and KeyFile are the certificate the API server trusts by the
	// caBundle of the webhook's configuration. They are read again for new
	// connections, so that a renewal needs no restart.
	CertFile, KeyFile string
	// Defaults are the seconds given; nil is Kubernetes' 300 each.
	Defaults *taint.Defaults
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, ":8443")
	if c.Defaults == nil {
		c.Defaults = new(taint.StandardDefaults())
	}
	return c
}

// Validate reports every fault of c together.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		faults = append(faults, fmt.Errorf("admission: listen: %w", err))
	}
	if c.CertFile == "" || c.KeyFile == "" {
		faults = append(faults, errors.New("admission: a certificate file and its key file are needed: API servers call webhooks over TLS only"))
	}
	if err := c.Defaults.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("admission: %w", err))
	}
	return errors.Join(faults...)
}

// Server answers reviews. Make it with New, run it once.
type Server struct {
	cfg   Config
	log   *slog.Logger
	count *prometheus.CounterVec
	took  prometheus.Histogram
	ready chan struct{}
	addr  string // set before ready is closed

	mu   sync.Mutex // guards cert
	cert *tls.Certificate
}

// New returns a server and registers its metrics; it reads the certificate, and
// listens only when it runs.
func New(cfg Config, reg prometheus.Registerer, log *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg.withDefaults(), log: log, ready: make(chan struct{}),
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_admission_reviews_total", Help: "Reviews. result: patched, unchanged, denied, unreadable.",
		}, []string{"result"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "deltaplane_admission_review_duration_seconds", Help: "How long a review took.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
	}
	for _, result := range []string{patched, unchanged, denied, unreadable} {
		s.count.WithLabelValues(result)
	}
	if _, err := s.certificate(nil); err != nil {
		return nil, err
	}
	if err := errors.Join(reg.Register(s.count), reg.Register(s.took)); err != nil {
		return nil, fmt.Errorf("admission: metrics: %w", err)
	}
	return s, nil
}

// certificate reads the files again; while a renewal is half written the last
// good certificate holds.
func (s *Server) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(s.cfg.CertFile, s.cfg.KeyFile)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.cert = &cert
	}
	if s.cert == nil {
		return nil, fmt.Errorf("admission: certificate: %w", err)
	}
	return s.cert, nil
}

// Addr is the address listened on, once Run listens.
func (s *Server) Addr(ctx context.Context) (string, error) {
	select {
	case <-s.ready:
		return s.addr, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

const (
	callTimeout = 10 * time.Second
	stopTimeout = 5 * time.Second
)

// Run serves until ctx ends; calls that run then are finished. It returns nil
// after such a stop.
func (s *Server) Run(ctx context.Context) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	srv := &http.Server{
		Handler: s.Handler(), ReadTimeout: callTimeout, WriteTimeout: callTimeout, IdleTimeout: 2 * time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.certificate},
		ErrorLog:  slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.addr = lis.Addr().String()
	close(s.ready)
	s.log.Info("admission webhook listens", slog.String("address", s.addr))
	ended := make(chan error, 1)
	go func() { ended <- srv.ServeTLS(lis, "", "") }()
	select {
	case err := <-ended:
		return fmt.Errorf("admission: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err = srv.Shutdown(stop); err != nil {
		err = srv.Close()
	}
	if end := <-ended; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// The results of a review.
const (
	patched    = "patched"
	unchanged  = "unchanged"
	denied     = "denied"
	unreadable = "unreadable"
)

// Handler answers reviews at [Path] and /healthz. It is safe for concurrent use.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+Path, s.serve)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	return mux
}

// maxBody is the largest review: the API server's own limit for a pod is 3 MiB,
// and an update's review holds two.
const maxBody = 8 << 20

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	defer func() { s.took.Observe(time.Since(began).Seconds()) }()
	review, code, err := read(w, r)
	if err != nil {
		s.count.WithLabelValues(unreadable).Inc()
		http.Error(w, err.Error(), code)
		return
	}
	resp := Review(review.Request, *s.cfg.Defaults)
	switch {
	case !resp.Allowed:
		s.count.WithLabelValues(denied).Inc()
	case resp.Patch != nil:
		s.count.WithLabelValues(patched).Inc()
	default:
		s.count.WithLabelValues(unchanged).Inc()
	}
	review.Request, review.Response = nil, resp
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		s.log.DebugContext(r.Context(), "answer not sent", slog.Any("error", err))
	}
}

func read(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionReview, int, error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, http.StatusUnsupportedMediaType, errors.New("the content type must be application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, http.StatusRequestEntityTooLarge, err
	}
	if err != nil {
		return nil, http.StatusBadRequest, err
	}
	review := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(body, review); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("the review cannot be read: %w", err)
	}
	if review.APIVersion != "admission.k8s.io/v1" || review.Kind != "AdmissionReview" {
		return nil, http.StatusBadRequest, fmt.Errorf("%s %s is not an AdmissionReview of admission.k8s.io/v1", review.APIVersion, review.Kind)
	}
	if review.Request == nil {
		return nil, http.StatusBadRequest, errors.New("the review has no request")
	}
	return review, 0, nil
}
