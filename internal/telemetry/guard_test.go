package telemetry_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

func TestAnAdminPortShowsStrangersNothingButWhetherItIsReady(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	authority, ca, err := certs.NewAuthority("test", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certs.Subject{User: "admin", Hosts: []string{"127.0.0.1"}}, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const token, scraper = "0123456789abcdef-all", "0123456789abcdef-scraper"
	cfg := telemetry.AdminConfig{
		Listen:    "127.0.0.1:0",
		TLS:       certs.Config{CertFile: file("tls.crt", pair.Cert), KeyFile: file("tls.key", pair.Key), CAFile: file("ca.crt", ca.Cert)},
		TokenFile: file("tokens", []byte(token+" ops\n"+scraper+" prometheus /metrics\n")),
	}
	admin, err := telemetry.NewAdmin(cfg, prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	refusals := make(chan string, 20)
	admin.OnRefusal(func(r *http.Request, status int, why string) {
		if why == "" {
			t.Errorf("%s is refused without a reason", r.URL.Path)
		}
		refusals <- fmt.Sprint(r.URL.Path, " ", status)
	})
	admin.Ready("store", func(context.Context) error { return errors.New("the password of the store is wrong") })
	lis, err := admin.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- admin.Serve(ctx, lis) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, token string, shown ...tls.Certificate) (int, string) {
		t.Helper()
		transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: shown}}
		defer transport.CloseIdleConnections()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+lis.Addr().String()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	for _, c := range []struct {
		path, token string
		shown       []tls.Certificate
		code        int
		secret      bool
	}{
		{"/healthz", "", nil, 200, false},
		{"/readyz", "", nil, 503, false},
		{"/readyz?verbose", "", nil, 503, false},
		{"/metrics", "", nil, 401, false},
		{"/debug/pprof/", "", nil, 401, false},
		{"/metrics", "0123456789abcdef-unknown", nil, 401, false},
		{"/metrics", scraper, nil, 200, false},
		{"/readyz", scraper, nil, 503, false},
		{"/debug/pprof/", scraper, nil, 403, false},
		{"/readyz", token, nil, 503, true},
		{"/metrics", "", []tls.Certificate{cert}, 200, false},
		{"/readyz?verbose", "", []tls.Certificate{cert}, 503, true},
	} {
		code, text := get(c.path, c.token, c.shown...)
		if code != c.code || strings.Contains(text, "password of the store") != c.secret {
			t.Errorf("%s with token %q and %d certificates: %d %q", c.path, c.token, len(c.shown), code, text)
		}
		want := ""
		if code == 401 || code == 403 {
			want = fmt.Sprint(c.path, " ", code)
		}
		got := ""
		if len(refusals) > 0 {
			got = <-refusals
		}
		if got != want {
			t.Errorf("%s with token %q: the refusal %q is reported, want %q", c.path, c.token, got, want)
		}
	}
}

func TestAnAdminPortBeyondLoopbackNeedsTLSAndAuthentication(t *testing.T) {
	t.Parallel()
	tlsOnly := certs.Config{CertFile: "a", KeyFile: "b"}
	for want, cfg := range map[string]telemetry.AdminConfig{
		"needs TLS and authentication": {Listen: "0.0.0.0:1", TLS: tlsOnly},
		"needs TLS":                    {Listen: "0.0.0.0:1", TokenFile: "t"},
		"both a certificate file":      {Listen: "127.0.0.1:1", TLS: certs.Config{CertFile: "a"}},
		"without a certificate":        {Listen: "127.0.0.1:1", TLS: certs.Config{CAFile: "a"}},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", cfg, err, want)
		}
	}
	if err := (telemetry.AdminConfig{Listen: "0.0.0.0:1", TLS: tlsOnly, TokenFile: "t"}).Validate(); err != nil {
		t.Error(err)
	}
}
