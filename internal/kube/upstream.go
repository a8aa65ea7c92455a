package kube

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/deltaplane/deltaplane/internal/certs"
)

// Upstream is an API server to which requests of others are passed on.
type Upstream struct {
	// URL of the server; its path comes before that of a request.
	URL *url.URL
	// Shared carries many requests on one connection, by HTTP/2: for those that last. Single
	// carries one at a time, by HTTP/1.1: a large answer takes half the time to pass on, and what
	// leaves HTTP can be carried by nothing else.
	Shared, Single http.RoundTripper
}

// Credentials are what an [Upstream] adds to each request. Their zero value adds nothing: requests
// have their senders' own.
type Credentials struct {
	// Own are the credentials of the configuration.
	Own bool
	// CertFile and KeyFile are those of a client certificate, read again when it changes.
	CertFile, KeyFile string
}

// LoadUpstream reads where the API server of a configuration is, and by which authorities it is
// known. It does not contact the server.
func LoadUpstream(cfg Config, with Credentials) (*Upstream, error) {
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	if !with.Own {
		rc = rest.AnonymousClientConfig(rc)
	}
	var shown *certs.Files[certs.Identity]
	if with.CertFile != "" {
		if shown, err = certs.Open(certs.Config{CertFile: with.CertFile, KeyFile: with.KeyFile}); err != nil {
			return nil, fmt.Errorf("kube: %w", err)
		}
	}
	rc.DisableCompression = true
	u := &Upstream{}
	if u.Shared, err = carrier(rc, shown); err != nil {
		return nil, err
	}
	rc.NextProtos = []string{"http/1.1"}
	if u.Single, err = carrier(rc, shown); err != nil {
		return nil, err
	}
	if u.URL, _, err = rest.DefaultServerUrlFor(rc); err != nil {
		return nil, fmt.Errorf("kube: server address %q: %w", rc.Host, err)
	}
	return u, nil
}

// Close gives up idle connections. Requests under way go on.
func (u *Upstream) Close() {
	for _, t := range []http.RoundTripper{u.Shared, u.Single} {
		utilnet.CloseIdleConnectionsFor(t)
	}
}

// maxIdle is how many connections to the API server rest between requests.
const maxIdle = 256

// carrier shows a certificate, which may be renewed, where there is one. Client-go's own following
// of its files would go on until the process ends.
func carrier(rc *rest.Config, shown *certs.Files[certs.Identity]) (http.RoundTripper, error) {
	cfg, err := rc.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	if shown != nil {
		cfg.TLS.GetCertHolder = &transport.GetCertHolder{GetCert: func() (*tls.Certificate, error) { return shown.Get().Certificate, nil }}
	}
	rt, err := transport.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	t, ok := unshared(rt).(*http.Transport)
	if !ok {
		return unshared(rt), nil
	}
	t = t.Clone() // client-go shares its transports
	t.MaxIdleConnsPerHost = maxIdle
	return t, nil
}
