package telemetry

import (
	"errors"
	"fmt"
	"net"
	"net/http"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
)

// AdminConfig says where the admin HTTP server listens.
type AdminConfig struct {
	// Listen is host:port. Default 127.0.0.1:0. "off" serves nothing.
	Listen string
	// TLS is used when its CertFile is set. With a CAFile, a client certificate that
	// descends from it is one way to be let in.
	TLS rpc.TLSConfig
	// TokenFile holds bearer tokens, in the format of [rpc.NewTokens] with paths for
	// methods; a known token is the other way to be let in.
	TokenFile string
	// Insecure permits an address beyond loopback without TLS and authentication.
	Insecure bool
	// Pprof adds /debug/pprof, without the command line. Anyone who can reach the port
	// can then make the process work, and read names of what it holds from a profile
	// or trace.
	Pprof bool
	// Traces adds /traces, which shows what is kept there.
	Traces *recent.Store
}

// guarded reports whether callers must be known.
func (c AdminConfig) guarded() bool { return c.TLS.CAFile != "" || c.TokenFile != "" }

// Validate reports every fault of c together. It includes the rule of the open door
// ([rpc.CheckOpen]).
func (c AdminConfig) Validate() error {
	if c.Listen == "" || c.Listen == "off" {
		return nil
	}
	var faults []error
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		faults = append(faults, fmt.Errorf("telemetry: admin address %q: %w", c.Listen, err))
	}
	if err := certs.Validate(c.TLS); err != nil {
		faults = append(faults, fmt.Errorf("telemetry: admin: %w", err))
	}
	if c.TLS.CAFile != "" && c.TLS.CertFile == "" {
		faults = append(faults, fmt.Errorf("telemetry: admin: the client CA %q is given without a certificate of our own", c.TLS.CAFile))
	}
	if err := rpc.CheckOpen(c.Listen, c.TLS.CertFile != "" && c.guarded(), c.Insecure); err != nil {
		faults = append(faults, fmt.Errorf("telemetry: admin: %w", err))
	}
	return errors.Join(faults...)
}

// ServeHTTP answers a request.
func (a *Admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch known, refused := a.known(r); {
	case known:
		a.mux.ServeHTTP(w, r)
	case r.URL.Path == "/healthz":
		_, _ = w.Write([]byte("ok\n"))
	case r.URL.Path == "/readyz":
		a.bare(w, r)
	case refused != nil:
		a.refuse(w, r, http.StatusForbidden, refused.Error())
	default:
		w.Header().Set("WWW-Authenticate", "Bearer")
		a.refuse(w, r, http.StatusUnauthorized, "a client certificate or a valid bearer token is needed")
	}
}

func (a *Admin) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	if a.refused != nil {
		a.refused(r, status, why)
	}
	http.Error(w, why, status)
}

// OnRefusal has fn called for each request that is refused, before it is answered. It must be set
// before the server runs.
func (a *Admin) OnRefusal(fn func(r *http.Request, status int, why string)) { a.refused = fn }

// known reports whether a caller may see the page, or why one that is known may not.
func (a *Admin) known(r *http.Request) (bool, error) {
	if !a.cfg.guarded() || r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return true, nil
	}
	if a.tokens == nil {
		return false, nil
	}
	_, err := a.tokens.Presented(rpc.Bearer(r.Header.Get("Authorization")), r.URL.Path)
	if err == nil {
		return true, nil
	}
	if rpc.Code(err) == codes.Unauthenticated {
		return false, nil
	}
	return false, err
}

// bare says whether the service is ready and nothing else.
func (a *Admin) bare(w http.ResponseWriter, r *http.Request) {
	if a.Readiness(r.Context()).Ready {
		_, _ = w.Write([]byte("ok\n"))
		return
	}
	http.Error(w, "not ready", http.StatusServiceUnavailable)
}
