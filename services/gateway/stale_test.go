package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/gateway"
)

// end ends a server at once. Its own Close waits for requests under way, of which a watch that came
// between two calls is one for minutes.
func end(s *httptest.Server) {
	_ = s.Listener.Close()
	done := make(chan struct{})
	go func() {
		s.Close()
		close(done)
	}()
	for {
		s.CloseClientConnections()
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// cutOff is a gateway whose API server went away after a config map was read through it.
func cutOff(t *testing.T, stale bool) *rig {
	t.Helper()
	c := devclustertest.Start(t, devcluster.Config{BookmarkEvery: time.Second})
	there, err := url.Parse(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	between := httptest.NewServer(httputil.NewSingleHostReverseProxy(there))
	away := func() { end(between) }
	t.Cleanup(away)
	r := &rig{t: t, direct: c.URL(), api: plain(t)}
	r.start(kube.Config{URL: between.URL}, func(cfg *gateway.Config) { cfg.AllowAll, cfg.ServeStale = true, stale })
	resp := r.ask(r.direct, http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"kept"}}`, "Content-Type", "application/json")
	_ = resp.Body.Close()
	r.mirrored("/api/v1/configmaps")
	for by, body := "", ""; by != "index" || !strings.Contains(body, `"kept"`); by, _, body = r.read("/api/v1/configmaps" + any0) {
		if t.Context().Err() != nil {
			t.Fatal("the config map does not come")
		}
	}
	away()
	return r
}

func TestKnownStateIsShownWithItsAgeWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	r := cutOff(t, true)
	for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/default/configmaps/kept"} {
		resp := r.ask(r.url, http.MethodGet, path, "")
		raw, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(raw), `"kept"`) {
			t.Errorf("%s: %s %.200s %v", path, resp.Status, raw, err)
		}
		if warning := resp.Header.Get("Warning"); !strings.HasPrefix(warning, `299 - "the API server cannot be reached: this is the state of `) {
			t.Errorf("%s: the warning is %q", path, warning)
		}
	}
	for what, path := range map[string]string{
		"an object that is not known": "/api/v1/namespaces/default/configmaps/nothing", "a version that is not known": "/api/v1/configmaps?resourceVersion=999999",
		"what is not mirrored": "/apis/example.com/v1/things", "a table": "/version",
	} {
		if by, code, body := r.read(path); by != "" || code != http.StatusServiceUnavailable {
			t.Errorf("%s: answered by %q with %d: %.200s", what, by, code, body)
		}
	}
}

func TestRequestsAreRefusedWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	r := cutOff(t, false)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		resp := r.ask(r.url, method, "/api/v1/namespaces/default/configmaps", "{}", "Content-Type", "application/json")
		var s metav1.Status
		err := json.NewDecoder(resp.Body).Decode(&s)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable || s.Reason != metav1.StatusReasonServiceUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s, %+v, %v", method, resp.Status, s, err)
		}
	}
}
