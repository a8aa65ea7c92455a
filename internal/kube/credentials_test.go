package kube_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// transport answers every request in the test's own process.
type transport func(*http.Request) string

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(t(r))), Request: r}, nil
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestATokenFileThatIsRotatedIsReadAgain(t *testing.T) {
	t.Parallel()
	file := write(t, filepath.Join(t.TempDir(), "token"), "first")
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		c, err := kube.New(&rest.Config{Host: "http://api.example", BearerTokenFile: file, Transport: transport(func(r *http.Request) string {
			sent = append(sent, r.Header.Get("Authorization"))
			return `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}`
		})}, kube.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := c.List(t.Context(), podResource, kube.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			write(t, file, "second")
			time.Sleep(2 * time.Minute) // the kubelet rotates long before a token ends
		}
		if got := strings.Join(sent, " "); got != "Bearer first Bearer second" {
			t.Errorf("sent %q", got)
		}
	})
}

// asked is a server's memory of the requests it got.
type asked struct {
	mu   sync.Mutex
	list []string
}

func (a *asked) handler(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.list = append(a.list, r.Host+" "+r.Header.Get("Authorization"))
	a.mu.Unlock()
	_, _ = io.WriteString(w, `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[]}`)
}

func (a *asked) last() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.list) == 0 {
		return ""
	}
	return a.list[len(a.list)-1]
}

func TestAKubeconfigsTLSTokensPluginsAndProxiesAreUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var secure, plain asked
	tls := httptest.NewTLSServer(http.HandlerFunc(secure.handler))
	t.Cleanup(tls.Close)
	proxy := httptest.NewServer(http.HandlerFunc(plain.handler))
	t.Cleanup(proxy.Close)
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw}))
	token := write(t, filepath.Join(dir, "token"), "from-file")
	plugin := write(t, filepath.Join(dir, "plugin"), `#!/bin/sh
echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"from-plugin"}}'
`)
	config := write(t, filepath.Join(dir, "config"), fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: file
clusters:
- {name: secure, cluster: {server: %q, certificate-authority-data: %s}}
- {name: stranger, cluster: {server: %q}}
- {name: proxied, cluster: {server: "http://api.invalid:1", proxy-url: %q}}
users:
- {name: file, user: {tokenFile: %q}}
- {name: plugin, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never}}}
- {name: no-plugin, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: /no/such/plugin, interactiveMode: Never}}}
contexts:
- {name: file, context: {cluster: secure, user: file}}
- {name: plugin, context: {cluster: secure, user: plugin}}
- {name: no-plugin, context: {cluster: secure, user: no-plugin}}
- {name: stranger, context: {cluster: stranger, user: file}}
- {name: proxied, context: {cluster: proxied, user: file}}
`, tls.URL, ca, tls.URL, proxy.URL, token, plugin))
	list := func(context string) error {
		c, err := kube.Load(kube.Config{Kubeconfig: config, Context: context})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		_, err = c.List(t.Context(), podResource, kube.ListOptions{})
		return err
	}
	for _, x := range []struct {
		context string
		server  *asked
		want    string
	}{
		{"", &secure, "Bearer from-file"}, {"plugin", &secure, "Bearer from-plugin"}, {"proxied", &plain, "api.invalid:1 "}, // credentials go over TLS only
	} {
		if err := list(x.context); err != nil || !strings.HasSuffix(x.server.last(), x.want) {
			t.Errorf("context %q: %v, the server got %q, want %q", x.context, err, x.server.last(), x.want)
		}
	}
	if err := list("stranger"); !kube.IsCertificate(err) {
		t.Errorf("a certificate of nobody's authority: %v", err)
	}
	if err := list("no-plugin"); !kube.IsUnauthorized(err) || !strings.Contains(err.Error(), "/no/such/plugin") {
		t.Errorf("a plugin that is not there: %v", err)
	}
}

func TestAggregatedDiscoveryAsksTwiceAndTellsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	var requests asked
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		requests.mu.Lock()
		requests.list = append(requests.list, r.URL.Path)
		requests.mu.Unlock()
		if !strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList") {
			t.Errorf("asked for %q", r.Header.Get("Accept"))
		}
		if r.URL.Path == "/api" {
			_, _ = io.WriteString(w, `{"kind":"APIGroupDiscoveryList","items":[{"metadata":{},"versions":[{"version":"v1","freshness":"Current","resources":[
				{"resource":"pods","responseKind":{"kind":"Pod"},"scope":"Namespaced","verbs":["list","watch"],"subresources":[{"subresource":"status"}]}]}]}]}`)
			return
		}
		_, _ = io.WriteString(w, `{"kind":"APIGroupDiscoveryList","items":[
			{"metadata":{"name":"a.io"},"versions":[
				{"version":"v2","freshness":"Current","resources":[{"resource":"both","responseKind":{"kind":"Both"},"scope":"Cluster","verbs":["list"]}]},
				{"version":"v1","freshness":"Current","resources":[{"resource":"both","responseKind":{"kind":"Both"}},{"resource":"old","responseKind":{"kind":"Old"}}]}]},
			{"metadata":{"name":"metrics.io"},"versions":[{"version":"v1","freshness":"Stale","resources":[]}]}]}`)
	})
	var got []string
	all, err := c.DiscoverAll(t.Context())
	for _, r := range all {
		got = append(got, fmt.Sprintf("%s %s %v %v", r.Collection("x"), r.Kind, r.Namespaced, r.Watchable()))
	}
	if text := strings.Join(got, ", "); text != "x/pods.v1 Pod true true, x/both.v2.a.io Both false false, x/old.v1.a.io Old false false" {
		t.Errorf("DiscoverAll() = %s", text)
	}
	unknown := kube.Undiscovered(err)
	if err == nil || unknown("a.io") || unknown("") || !unknown("metrics.io") {
		t.Errorf("DiscoverAll() error %v: want it to know all but metrics.io", err)
	}
	if n := len(requests.list); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	if whole := kube.Undiscovered(io.ErrUnexpectedEOF); !whole("a.io") {
		t.Error("an error of the whole says something about a group")
	}
}

func TestMetadataOnlyAsksForItAndTakesNothingElse(t *testing.T) {
	t.Parallel()
	kinds := []string{"PartialObjectMetadataList", "PodList"}
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1" {
			t.Errorf("asked for %q", r.Header.Get("Accept"))
		}
		_, _ = fmt.Fprintf(w, `{"items":[{"metadata":{"name":"a","resourceVersion":"1"}}],"metadata":{"resourceVersion":"1"},"kind":%q}`, kinds[0])
		kinds = kinds[1:]
	})
	res := podResource.MetadataOnly()
	page, err := c.List(t.Context(), res, kube.ListOptions{})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("List() = %v, %v", page, err)
	}
	var transform kube.Transform
	o, err := transform.Normalize(page.Items[0], res)
	if want := `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","resourceVersion":"1"}}`; err != nil || string(o.Payload) != want {
		t.Errorf("payload %s, %v, want %s", o.Payload, err, want)
	}
	if _, err := c.List(t.Context(), res, kube.ListOptions{}); err == nil || !strings.Contains(err.Error(), "PodList") {
		t.Errorf("a whole list where metadata was asked for: %v", err)
	}
}
