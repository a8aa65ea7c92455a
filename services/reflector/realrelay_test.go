package reflector_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// relay stands between a reflector and the real API server: it notes what is asked, holds requests
// back and cuts watches. What is answered is the API server's.
type relay struct {
	*httptest.Server

	mu     sync.Mutex
	seen   []call
	before func(sort, *http.Request) // called with each list and watch, before it is passed on
	cuts   map[*http.Request]context.CancelFunc
}

// relay passes requests on as user, or as the administrator.
func (r *real) relay(user string) *relay {
	r.t.Helper()
	r.dir() // whose kubeconfig is written as JSON
	text, err := os.ReadFile(r.file)
	if err != nil {
		r.t.Fatal(err)
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Token string `json:"token"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal(text, &config); err != nil || len(config.Clusters) != 1 || len(config.Users) != 1 {
		r.t.Fatalf("%s: %v, %d clusters, %d users; want one of each", r.file, err, len(config.Clusters), len(config.Users))
	}
	server, err := url.Parse(config.Clusters[0].Cluster.Server)
	if err != nil {
		r.t.Fatal(err)
	}
	roots, token := x509.NewCertPool(), config.Users[0].User.Token
	roots.AppendCertsFromPEM(config.Clusters[0].Cluster.CA)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	p := &relay{cuts: map[*http.Request]context.CancelFunc{}}
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(out *httputil.ProxyRequest) {
		out.SetURL(server)
		out.Out.Header.Set("Authorization", "Bearer "+token)
		if user != "" {
			out.Out.Header.Set("Impersonate-User", user)
		}
	}}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		req = req.WithContext(ctx)
		p.pass(req, cancel)
		defer p.forget(req)
		proxy.ServeHTTP(w, req)
	}))
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.Start()
	r.t.Cleanup(func() {
		p.cut()
		p.CloseClientConnections()
		p.Close()
		transport.CloseIdleConnections()
	})
	return p
}

func (p *relay) pass(req *http.Request, cancel context.CancelFunc) {
	q := req.URL.Query()
	what := asked
	switch {
	case q.Get("watch") != "":
		what = watched
	case strings.HasSuffix(req.URL.Path, "/namespaces/kube-system"): // the identity of the cluster
	case q.Has("limit") || q.Has("resourceVersion") || q.Has("continue"):
		what = listed
	}
	p.mu.Lock()
	before := p.before
	p.seen = append(p.seen, call{sort: what, query: q})
	if what == watched {
		p.cuts[req] = cancel
	}
	p.mu.Unlock()
	if before != nil {
		before(what, req)
	}
}

func (p *relay) forget(req *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.cuts, req)
}

// cut breaks the watches that are open.
func (p *relay) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.cuts {
		cancel()
	}
}

func (p *relay) set(before func(sort, *http.Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = before
}

// of is the requests of one sort so far.
func (p *relay) of(s sort) []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []call
	for _, c := range p.seen {
		if c.sort == s {
			out = append(out, c)
		}
	}
	return out
}

func (p *relay) client(t testing.TB) *kube.Client {
	t.Helper()
	return clientOf(t, p.URL)
}
