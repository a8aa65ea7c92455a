package kube

import (
	"fmt"
	"net/http"
	"net/url"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// Upstream is an API server to which requests of others are passed on, each with its own
// credentials: none of ours go with them.
type Upstream struct {
	// URL of the server; its path comes before that of a request.
	URL *url.URL
	// Shared carries many requests on one connection, by HTTP/2: for those that last. Single
	// carries one at a time, by HTTP/1.1: a large answer takes half the time to pass on, and what
	// leaves HTTP can be carried by nothing else.
	Shared, Single http.RoundTripper
}

// LoadUpstream reads where the API server of a configuration is, and by which authorities it is
// known. It does not contact the server.
func LoadUpstream(cfg Config) (*Upstream, error) {
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	rc = rest.AnonymousClientConfig(rc)
	rc.DisableCompression = true
	u := &Upstream{}
	if u.Shared, err = anonymous(rc); err != nil {
		return nil, err
	}
	rc.NextProtos = []string{"http/1.1"}
	if u.Single, err = anonymous(rc); err != nil {
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

func anonymous(rc *rest.Config) (http.RoundTripper, error) {
	hc, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	t, ok := transport(hc).(*http.Transport)
	if !ok {
		return transport(hc), nil
	}
	t = t.Clone() // client-go shares its transports
	t.MaxIdleConnsPerHost = maxIdle
	return t, nil
}
