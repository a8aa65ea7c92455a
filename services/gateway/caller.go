package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/services/gateway/answer"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// caller is who sends a request.
type caller struct {
	// identity says who it is, or as whom it wants to count, now and later; nil where nobody knows, or
	// it may not.
	identity func(context.Context) *access.Identity
	// unknown is why nothing can be answered to it from the index; empty where that can be.
	unknown string
	// options is how it wants its answers to differ from those of an API server.
	options request.Options
	// key tells callers apart that are known; empty until one has asked for a right.
	key string
	// vouch is as whom the request is passed on; nil where its own credentials are.
	vouch *access.Identity
}

// name tells callers apart: by the host where everybody may do everything.
func (c *caller) name(r *http.Request) string {
	if c.key != "" {
		return c.key
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr) // what it cannot read is one host
	return "host " + host
}

// errNobody says that a caller is not, or not any more, who it was.
var errNobody = errors.New("gateway: nobody knows the caller")

// refusal is what is answered by the gateway itself.
type refusal struct {
	code   int
	reason metav1.StatusReason
	text   string
}

// refuse answers a request by a refusal, and counts it by a word that says why; read is nil where
// the request was not looked at.
func (s *Service) refuse(w http.ResponseWriter, read *request.Read, why string, f *refusal) {
	verb := "other"
	if read != nil {
		verb = string(read.Verb)
	}
	s.metrics.answered.WithLabelValues(verb, "gateway", why).Inc()
	answer.Refuse(w, f.code, f.reason, f.text)
}

// callerOf says who sends a request: who shows a certificate of the cluster, else whose its token
// is. Credentials that the gateway cannot judge are the API server's to judge, as long as they can
// be passed on.
func (s *Service) callerOf(r *http.Request) (*caller, *refusal) {
	as, ok := parseImpersonation(r.Header)
	if s.certificates != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		_, others := r.Header["Authorization"]
		id, err := s.certificates.identity(r.TLS.PeerCertificates)
		switch {
		case err == nil:
			return s.certified(r, id, as, ok)
		case others:
		case errors.Is(err, errNoAuthorities):
			return nil, &refusal{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err.Error()}
		default:
			return nil, &refusal{http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized: the client certificate counts for nothing: " + err.Error()}
		}
	}
	if !ok || s.authority == nil && as != nil {
		return &caller{unknown: "impersonation"}, nil
	}
	if s.authority == nil {
		return &caller{}, nil
	}
	token, ok := bearer(r.Header)
	if !ok {
		return &caller{unknown: "credentials"}, nil
	}
	return &caller{identity: func(ctx context.Context) *access.Identity {
		id, err := s.authority.Token(ctx, token, r.RemoteAddr)
		if err != nil || id == nil {
			return nil
		}
		id, _ = s.impersonated(ctx, id, as)
		return id
	}}, nil
}

// certified is the caller with a certificate. A gateway that impersonates its callers judges itself
// whom they may impersonate: the API server judges the gateway.
func (s *Service) certified(r *http.Request, id *access.Identity, as *impersonation, ok bool) (*caller, *refusal) {
	shown := r.TLS.PeerCertificates
	c := &caller{vouch: id, identity: func(ctx context.Context) *access.Identity {
		id, err := s.certificates.identity(shown) // it may have ended
		if err != nil {
			return nil
		}
		id, _ = s.impersonated(ctx, s.authority.Known(id), as)
		return id
	}}
	switch {
	case s.cfg.ClientCertificates == FrontProxy:
		if !ok {
			c.unknown = "impersonation"
		}
		return c, nil
	case !ok:
		return nil, &refusal{http.StatusBadRequest, metav1.StatusReasonBadRequest, "the Impersonate headers cannot be understood: want one Impersonate-User, with Impersonate-Group, Impersonate-Uid or Impersonate-Extra-KEY"}
	case as == nil:
		return c, nil
	}
	if _, err := s.impersonated(r.Context(), s.authority.Known(id), as); err != nil {
		if denied, is := errors.AsType[*deniedError](err); is {
			return nil, &refusal{http.StatusForbidden, metav1.StatusReasonForbidden, denied.Error()}
		}
		return nil, &refusal{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "whether that may be impersonated cannot be decided: " + err.Error()}
	}
	c.vouch = as.named()
	return c, nil
}
