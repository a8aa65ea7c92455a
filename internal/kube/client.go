package kube

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/internal/wrote"
)

// Config says how to reach an API server. Exactly one of Kubeconfig, URL and InCluster is used, in
// this order; the zero value means the kubeconfig of this user.
type Config struct {
	// Kubeconfig is a file's path.
	Kubeconfig string
	// Context of the kubeconfig; default its current one.
	Context string
	// URL of a server that needs no credentials, such as the dev cluster.
	URL string
	// InCluster uses the service account of the pod this runs in.
	InCluster bool
	// QPS and Burst limit the requests this client sends, lists, watches and writes alike; 0 means no
	// limit. Burst defaults to 2*QPS.
	QPS   float64
	Burst int
	// UserAgent of the requests; default "deltaplane".
	UserAgent string
	// Timeout of one request other than a watch; default 60 s.
	Timeout time.Duration
}

// maxBody bounds one answer; the API server's own limit for an object is below 2 MB and pages are
// at most some thousand objects.
const maxBody = 1 << 30

// Client speaks to one API server. It is safe for concurrent use.
type Client struct {
	http    *http.Client
	base    *url.URL
	agent   string
	timeout time.Duration
	limiter *rate.Limiter // nil: no limit

	identity identity

	mu        sync.Mutex
	resources map[string]discovered // by group/version; guarded by mu
}

// Load makes a client from a kubeconfig, a URL or the pod's service account. It does not contact
// the server. Errors name the file, the context or the URL that is wrong.
func Load(cfg Config) (*Client, error) {
	rc, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	c, err := New(rc, cfg)
	if err != nil && rc.Host != cfg.URL && !cfg.InCluster {
		return nil, fmt.Errorf("kube: kubeconfig %s: %w", kubeconfigName(cfg), err)
	}
	return c, err
}

// kubeconfigName is what errors call the file of cfg.
func kubeconfigName(cfg Config) string {
	if cfg.Kubeconfig == "" {
		return "(KUBECONFIG or ~/.kube/config)"
	}
	return strconv.Quote(cfg.Kubeconfig)
}

// New makes a client that uses the transport and credentials of rc; of cfg only the limits, agent
// and timeout count.
func New(rc *rest.Config, cfg Config) (*Client, error) {
	rc = rest.CopyConfig(rc)
	rc.DisableCompression = true // both ends are close; compressing lists costs more than it saves
	hc, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(rc)
	if err != nil {
		return nil, fmt.Errorf("kube: server address %q: %w", rc.Host, err)
	}
	c := &Client{
		http: &http.Client{Transport: unshared(hc.Transport)}, base: base, agent: cmp.Or(cfg.UserAgent, "deltaplane"), timeout: cmp.Or(cfg.Timeout, time.Minute),
		resources: map[string]discovered{}, identity: identity{turn: make(chan struct{}, 1)},
	}
	if cfg.QPS < 0 || cfg.Burst < 0 || cfg.Timeout < 0 {
		return nil, fmt.Errorf("kube: qps %v, burst %d, timeout %v: must not be negative", cfg.QPS, cfg.Burst, cfg.Timeout)
	}
	if cfg.QPS > 0 {
		c.limiter = rate.NewLimiter(rate.Limit(cfg.QPS), max(cmp.Or(cfg.Burst, int(2*cfg.QPS)), 1))
	}
	return c, nil
}

// unshared is a transport that client-go made, or one of our own where it would share the process's
// default one: that keeps only two idle connections to a host, too few for workers that write over
// plain HTTP.
func unshared(made http.RoundTripper) http.RoundTripper {
	if made != nil && made != http.DefaultTransport {
		return made
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}
}

// Close gives up idle connections. Calls under way go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func restConfig(cfg Config) (*rest.Config, error) {
	switch {
	case cfg.Kubeconfig != "" || cfg.URL == "" && !cfg.InCluster:
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		if cfg.Kubeconfig != "" {
			rules = &clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.Kubeconfig}
		}
		rc, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
			&clientcmd.ConfigOverrides{CurrentContext: cfg.Context}).ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("kube: kubeconfig %s: %w", kubeconfigName(cfg), err)
		}
		return rc, nil
	case cfg.URL != "":
		u, err := url.Parse(cfg.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("kube: server address %q: want http(s)://host:port", redacted(u))
		}
		return &rest.Config{Host: cfg.URL}, nil
	default:
		rc, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("kube: in cluster: %w", err)
		}
		return rc, nil
	}
}

// Address is the server's URL, for people: without a password.
func (c *Client) Address() string { return c.base.Redacted() }

// redacted is a URL as an error may quote it; one that cannot be read is not quoted, as nobody
// knows where its password is.
func redacted(u *url.URL) string {
	if u == nil {
		return "(malformed)"
	}
	return u.Redacted()
}

// request is one call. Path begins with /api or /apis.
type request struct {
	method, path string
	query        url.Values
	contentType  string
	accept       string // default application/json
	body         []byte
}

func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	if c.limiter != nil {
		if err := c.limiter.Wait(ctx); err != nil {
			return nil, fmt.Errorf("kube: client rate limit: %w", err)
		}
	}
	u := *c.base
	u.Path = strings.TrimSuffix(u.Path, "/") + r.path
	u.RawQuery = r.query.Encode()
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	req.Header.Set("Accept", cmp.Or(r.accept, "application/json"))
	req.Header.Set("User-Agent", c.agent)
	wrote.Inject(ctx, req.Header)
	if r.body != nil {
		req.Header.Set("Content-Type", cmp.Or(r.contentType, "application/json"))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// The URL may hold selectors; the path is enough.
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		if strings.HasPrefix(err.Error(), "getting credentials: ") { // client-go's plugins have no typed error
			err = fmt.Errorf("%w: %w", errNoCredentials, err)
		}
		return nil, fmt.Errorf("kube: %s %s: %w", r.method, r.path, err)
	}
	return resp, nil
}

// do sends a call and reads its whole answer; an answer of 400 or more becomes a [StatusError].
func (c *Client) do(ctx context.Context, r request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if r.query.Has("dryRun") {
		return c.answer(ctx, r)
	}
	ctx, call := wrote.Begin(ctx, "", r.method, r.path)
	body, err := c.answer(ctx, r)
	if err != nil {
		call.Failed(err.Error())
		return nil, err
	}
	call.CarriedOut(body)
	return body, nil
}

func (c *Client) answer(ctx context.Context, r request) ([]byte, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := readAll(resp)
	if err != nil {
		return nil, fmt.Errorf("kube: %s %s: %w", r.method, r.path, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return nil, newStatusError(r, resp, body)
	}
	return body, nil
}

func readAll(resp *http.Response) ([]byte, error) {
	var buf bytes.Buffer
	if resp.ContentLength > 0 && resp.ContentLength < maxBody {
		buf.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if n > maxBody {
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxBody)
	}
	return buf.Bytes(), nil
}
