package forward

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/gateway/answer"
)

// Forwarder passes requests on. It is safe for concurrent use.
type Forwarder struct {
	up    *kube.Upstream
	vouch *Voucher // nil vouches for nobody
	proxy *httputil.ReverseProxy
	log   *slog.Logger
}

// Unreachable is asked to answer a request when the API server could not be reached; it reports
// whether it did.
type Unreachable func(w http.ResponseWriter, r *http.Request) bool

// Listener returns what is to hear of the answer to a write before its sender does; nil where
// nobody wants to. The request is the one that was passed on, at the path that it came with.
type Listener func(r *http.Request, at *url.URL) func(Written)

// New is a forwarder to an API server. Each of vouch, listener and unreachable may be nil.
func New(up *kube.Upstream, vouch *Voucher, listener Listener, unreachable Unreachable, log *slog.Logger) *Forwarder {
	f := &Forwarder{up: up, vouch: vouch, log: log}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: f.rewrite, Transport: f, BufferPool: &pool{}, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil { // its sender is gone
				panic(http.ErrAbortHandler)
			}
			if unreachable != nil && unreachable(w, r) {
				return
			}
			f.log.Warn("a request could not be passed on", slog.String("path", r.URL.Path), telemetry.Err(err))
			answer.Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the API server cannot be reached")
		},
	}
	if listener != nil {
		f.proxy.ModifyResponse = func(resp *http.Response) error { return f.note(resp, listener) }
	}
	return f
}

// ServeHTTP implements http.Handler.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.proxy.ServeHTTP(w, r) }

// RoundTrip implements http.RoundTripper.
func (f *Forwarder) RoundTrip(r *http.Request) (*http.Response, error) {
	up := f.up
	if f.vouch != nil && Vouched(r.Context()) != nil {
		up = f.vouch.Up
	}
	if lasts(r) {
		return up.Shared.RoundTrip(r)
	}
	return up.Single.RoundTrip(r)
}

// lasts reports whether a request may take as long as its client wants.
func lasts(r *http.Request) bool {
	return r.Header.Get("Upgrade") == "" && (strings.Contains(r.URL.RawQuery, "watch") || strings.Contains(r.URL.RawQuery, "follow"))
}

func (f *Forwarder) rewrite(p *httputil.ProxyRequest) {
	p.SetURL(f.up.URL)
	p.Out.URL.RawQuery = p.In.URL.RawQuery // what cannot be read is the API server's to refuse
	p.SetXForwarded()
	for name := range p.Out.Header {
		if strings.HasPrefix(name, "X-Remote-") { // a client may not claim them
			delete(p.Out.Header, name)
		}
	}
	if id := Vouched(p.In.Context()); id != nil && f.vouch != nil {
		f.vouch.name(p.Out.Header, id)
	}
	if _, ok := p.In.Header["User-Agent"]; !ok {
		p.Out.Header["User-Agent"] = nil // otherwise Go's own is sent
	}
}

// pool lends buffers for bodies.
type pool struct{ p sync.Pool }

const bufferSize = 256 << 10

func (p *pool) Get() []byte {
	if b, ok := p.p.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, bufferSize)
}

func (p *pool) Put(b []byte) { p.p.Put(&b) }

// maxAnswer is up to which length the answer to a write is read.
const maxAnswer = 4 << 20

// note reads what was written from an answer, which is passed on as it came.
func (f *Forwarder) note(resp *http.Response, listener Listener) error {
	switch resp.Request.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return nil
	}
	if resp.StatusCode < http.StatusOK || resp.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	at := url.URL{Path: strings.TrimPrefix(resp.Request.URL.Path, strings.TrimSuffix(f.up.URL.Path, "/"))}
	wrote := listener(resp.Request, &at)
	if wrote == nil {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		wrote(Written{}) // it may have been done
		return err
	}
	w := Written{}
	if resp.Header.Get("Content-Encoding") == "" && len(head) < maxAnswer {
		w = readWritten(resp.Header.Get("Content-Type"), head)
	}
	wrote(w)
	resp.Body = &joined{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	return nil
}

// joined is a body of which some was read.
type joined struct {
	io.Reader
	io.Closer
}
