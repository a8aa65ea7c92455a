package kubeletapi

import (
	"log/slog"
	"net/http"
	"slices"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// permitted lets through who may get nodes/proxy of this node, as the API server says.
func (s *Server) permitted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.reviews <- struct{}{}:
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many callers are being reviewed", http.StatusTooManyRequests)
			return
		}
		if s.permits(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}

// permits reviews a caller, and answers the one whom it refuses.
func (s *Server) permits(w http.ResponseWriter, r *http.Request) bool {
	defer func() { <-s.reviews }()
	id, err := s.caller(r)
	if err != nil {
		s.undecided(w, err)
		return false
	}
	if id == nil {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return false
	}
	want := access.Attributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "proxy", Name: s.cfg.Node}
	allowed, reason, err := s.review.ReviewAccess(r.Context(), id, want)
	if err != nil {
		s.undecided(w, err)
		return false
	}
	if !allowed {
		s.log.Debug("kubelet API refuses a caller", slog.String(telemetry.KeyError, reason))
		http.Error(w, "Forbidden (user="+id.User+", verb=get, resource=nodes, subresource=proxy)", http.StatusForbidden)
	}
	return allowed
}

// undecided answers a caller of whom the API server could not be asked.
func (s *Server) undecided(w http.ResponseWriter, err error) {
	s.log.Warn("a caller of the kubelet API cannot be reviewed", telemetry.Err(err))
	http.Error(w, "the API server does not answer", http.StatusInternalServerError)
}

// caller is who asks; nil is nobody.
func (s *Server) caller(r *http.Request) (*access.Identity, error) {
	if t := r.TLS; t != nil && len(t.VerifiedChains) > 0 {
		cert := t.VerifiedChains[0][0]
		if cert.Subject.CommonName == "" {
			return nil, nil //nolint:nilnil // nobody is the answer
		}
		return &access.Identity{User: cert.Subject.CommonName, Groups: append(slices.Clone(cert.Subject.Organization), "system:authenticated")}, nil
	}
	token := rpc.Bearer(r.Header.Get("Authorization"))
	if token == "" {
		return nil, nil //nolint:nilnil // nobody is the answer
	}
	id, why, err := s.review.ReviewToken(r.Context(), token, "")
	if err == nil && id == nil {
		s.log.Debug("kubelet API: a token is nobody's", slog.String(telemetry.KeyError, why))
	}
	return id, err
}
