package telemetry

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Admin serves /metrics, /healthz, /readyz and, when asked to, /debug/pprof.
//
// /readyz answers 200 when every named check passes, else 503; with ?verbose it
// lists them as JSON. /healthz says only that the process answers. Where callers must
// be known, a stranger is answered 401, but for /healthz and the bare status of /readyz,
// so that probes need no credentials.
type Admin struct {
	cfg    AdminConfig
	mux    *http.ServeMux
	tls    *tls.Config // nil for plain text
	tokens *rpc.Tokens // nil without a token file
	log    *slog.Logger
	// refused gets requests that are refused, with the status and why; nil for nobody.
	refused func(r *http.Request, status int, why string)

	mu     sync.Mutex // guards checks
	checks map[string]Check
}

// A Check says whether one part is ready: nil, or why not. It must be quick
// and safe for concurrent use. An error made by [Degraded] counts as ready.
type Check func(ctx context.Context) error

// Degraded is the error of a part that is ready and has something to say all the
// same: it shows as the check's detail.
func Degraded(err error) error { return degraded{err} }

// Degrades is a check whose errors are [Degraded]: the service goes on, and
// somebody should know.
func Degrades(check Check) Check {
	return func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return Degraded(err)
		}
		return nil
	}
}

type degraded struct{ error }

func (d degraded) Unwrap() error { return d.error }

// NewAdmin builds the admin server of a service. A nil gatherer leaves out /metrics.
func NewAdmin(cfg AdminConfig, g prometheus.Gatherer, log *slog.Logger) (*Admin, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &Admin{cfg: cfg, mux: http.NewServeMux(), log: log, checks: map[string]Check{}}
	if cfg.Listen != "off" {
		var err error
		if cfg.TLS.CertFile != "" {
			if a.tls, err = certs.Server(cfg.TLS, true, "h2", "http/1.1"); err != nil {
				return nil, fmt.Errorf("telemetry: admin: %w", err)
			}
		}
		if cfg.TokenFile != "" {
			if a.tokens, err = rpc.NewTokens(rpc.AuthConfig{TokenFile: cfg.TokenFile}, log); err != nil {
				return nil, fmt.Errorf("telemetry: admin: %w", err)
			}
		}
	}
	if g != nil {
		a.mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	}
	a.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	a.mux.HandleFunc("GET /readyz", a.readyz)
	if cfg.Traces != nil {
		a.mux.HandleFunc("GET /traces", func(w http.ResponseWriter, r *http.Request) { traces(w, r, cfg.Traces) })
	}
	if cfg.Pprof {
		a.mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		// The command line may hold a password. Index would serve it by this name.
		a.mux.Handle("GET /debug/pprof/cmdline", http.NotFoundHandler())
		a.mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		a.mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		a.mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return a, nil
}

// Ready adds a check by name; a second one of the same name replaces the first.
func (a *Admin) Ready(name string, check Check) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checks[name] = check
}

// Handle adds a page. The pattern is as for http.ServeMux.
func (a *Admin) Handle(pattern string, h http.Handler) { a.mux.Handle(pattern, h) }

// CheckResult is one line of /readyz?verbose.
type CheckResult struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
	// Detail is what a part that is ready cannot do at present.
	Detail string `json:"detail,omitempty"`
}

// Readiness is the body of /readyz?verbose.
type Readiness struct {
	Ready  bool          `json:"ready"`
	Checks []CheckResult `json:"checks"`
}

// Readiness runs every check, in the order of their names.
func (a *Admin) Readiness(ctx context.Context) Readiness {
	a.mu.Lock()
	names := make([]string, 0, len(a.checks))
	checks := make(map[string]Check, len(a.checks))
	for name, check := range a.checks {
		names = append(names, name)
		checks[name] = check
	}
	a.mu.Unlock()
	slices.Sort(names)
	all := Readiness{Ready: true, Checks: []CheckResult{}}
	for _, name := range names {
		r := CheckResult{Name: name, OK: true}
		err := checks[name](ctx)
		if d, ok := errors.AsType[degraded](err); ok {
			r.Detail = d.Error()
		} else if err != nil {
			r.OK, r.Error, all.Ready = false, err.Error(), false
		}
		all.Checks = append(all.Checks, r)
	}
	return all
}

func (a *Admin) readyz(w http.ResponseWriter, r *http.Request) {
	ready := a.Readiness(r.Context())
	code := http.StatusOK
	if !ready.Ready {
		code = http.StatusServiceUnavailable
	}
	if r.URL.Query().Has("verbose") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(ready)
		return
	}
	w.WriteHeader(code)
	for _, c := range ready.Checks {
		if !c.OK {
			_, _ = fmt.Fprintf(w, "%s: %s\n", c.Name, c.Error)
		}
	}
	if ready.Ready {
		_, _ = w.Write([]byte("ok\n"))
	}
	for _, c := range ready.Checks {
		if c.Detail != "" {
			_, _ = fmt.Fprintf(w, "%s: %s\n", c.Name, c.Detail)
		}
	}
}

// Listen opens the admin address; nil when it is "off".
func (a *Admin) Listen(ctx context.Context) (net.Listener, error) {
	if a.cfg.Listen == "off" {
		return nil, nil //nolint:nilnil // off is not an error, and there is nothing to listen on
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", cmp.Or(a.cfg.Listen, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("telemetry: admin: %w", err)
	}
	return lis, nil
}

// Serve answers on lis, which it closes, until ctx ends. A nil lis only waits.
// It returns nil after a stop by ctx.
func (a *Admin) Serve(ctx context.Context, lis net.Listener) error {
	if lis == nil {
		<-ctx.Done()
		return nil
	}
	srv := &http.Server{Handler: a, TLSConfig: a.tls, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)}
	done := make(chan error, 1)
	go func() {
		if a.tls != nil {
			done <- srv.ServeTLS(lis, "", "")
			return
		}
		done <- srv.Serve(lis)
	}()
	select {
	case err := <-done:
		return fmt.Errorf("telemetry: admin: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		_ = srv.Close() // a profile may be running: it is not worth waiting for
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("telemetry: admin: %w", err)
	}
	return nil
}

// Run is Listen and Serve.
func (a *Admin) Run(ctx context.Context) error {
	lis, err := a.Listen(ctx)
	if err != nil {
		return err
	}
	return a.Serve(ctx, lis)
}
