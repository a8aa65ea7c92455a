package authority

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Authorize implements [rpc.Authorizer]: it says who calls. A bearer token counts before a
// certificate. What the caller may do is asked for by the method, see [Authority.Allow].
func (a *Authority) Authorize(ctx context.Context, method string) (*access.Identity, error) {
	id, err := a.identify(ctx, method)
	if err != nil {
		a.refused(ctx, method, err)
		return nil, err
	}
	return a.callers.intern(id), nil
}

func (a *Authority) identify(ctx context.Context, method string) (*access.Identity, error) {
	token, presented := rpc.BearerToken(ctx)
	if !presented {
		return a.certified(ctx)
	}
	if a.tokens != nil {
		id, err := a.tokens.Presented(token, method)
		if err == nil {
			return id, a.vouched(id)
		}
		if status.Code(err) != codes.Unauthenticated || len(a.clusters) == 0 {
			return nil, err
		}
	}
	if len(a.clusters) == 0 {
		return nil, unauthenticated("the bearer token is not known")
	}
	if why := unsuitable(token, time.Now()); why != "" {
		return nil, unauthenticated(why)
	}
	return a.reviewed(ctx, token)
}

// reviewed asks the clusters whose a token is, one after the other: each knows its own.
func (a *Authority) reviewed(ctx context.Context, token string) (*access.Identity, error) {
	host := peerHost(ctx)
	var failures []error
	for _, c := range a.clusters {
		id, err := c.token(ctx, token, host)
		switch {
		case errors.Is(err, errTooManyTokens):
			return nil, &refusal{
				is: ErrDenied, code: codes.ResourceExhausted, reason: "TOO_MANY_UNKNOWN_TOKENS", retry: undecidedRetry, text: err.Error(),
				meta: map[string]string{"limit": fmt.Sprint(unknownRate)},
			}
		case err != nil:
			failures = append(failures, err)
		case id != nil:
			return id, nil
		}
	}
	if err := errors.Join(failures...); err != nil {
		return nil, &refusal{is: ErrUndecided, code: codes.Unavailable, reason: "ACCESS_UNDECIDED", retry: undecidedRetry, text: "the bearer token cannot be reviewed: " + err.Error()}
	}
	return nil, unauthenticated("no cluster knows the bearer token, or it has ended")
}

// Token is whose a bearer token is that came in a request from a host, by the clusters alone; nil
// when it is nobody's. An error says that nobody can tell, or may be asked.
func (a *Authority) Token(ctx context.Context, token, address string) (*access.Identity, error) {
	for _, c := range a.clusters {
		id, err := c.token(ctx, token, hostOf(address))
		if err != nil {
			return nil, err
		}
		if id != nil {
			return a.Known(id), nil
		}
	}
	return nil, nil //nolint:nilnil // nobody is no error
}

// Known is the identity that stands for all that are equal to id: what is decided about one holds
// for each.
func (a *Authority) Known(id *access.Identity) *access.Identity {
	return a.callers.intern(id)
}

// certified is the identity of a verified client certificate: its SPIFFE ID, or its common name
// with its organizations as groups, as API servers read them.
func (a *Authority) certified(ctx context.Context) (*access.Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, unauthenticated("a bearer token or a client certificate is needed")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil, unauthenticated("a bearer token or a client certificate is needed")
	}
	id, err := ofCertificate(info.State.PeerCertificates[0])
	if err != nil {
		return nil, err
	}
	return id, a.vouched(id)
}

func ofCertificate(cert *x509.Certificate) (*access.Identity, error) {
	id := &access.Identity{User: cert.Subject.CommonName, Groups: cert.Subject.Organization, Source: access.Certificate, Subject: cert.Subject.String()}
	for _, uri := range cert.URIs {
		if uri.Scheme == "spiffe" {
			id.User, id.Groups, id.Subject = uri.String(), nil, uri.String()
			break
		}
	}
	if id.User == "" {
		return nil, unauthenticated("the client certificate has neither a common name nor a SPIFFE ID")
	}
	return id, nil
}

// vouched refuses an identity that calls itself what only a cluster may call it.
func (a *Authority) vouched(id *access.Identity) error {
	if a.policy.get().Vouches(id) {
		return nil
	}
	users, groups := id.Reserved()
	return unauthenticated(fmt.Sprintf("%s is from a %s: names that begin with system: count only where an IdentityMapping of the policy names them",
		strings.Join(append(users, groups...), ", "), id.Source))
}

// peerHost is where a call comes from, for limits.
func peerHost(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	return hostOf(p.Addr.String())
}

// hostOf is the host of an address, or the address where it has none.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
