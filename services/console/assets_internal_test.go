package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/goldentest"
	"github.com/deltaplane/deltaplane/services/console/session"
)

func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	if _, err := newMetrics(registry, session.NewManager(nil)); err != nil {
		t.Fatal(err)
	}
	goldentest.Metrics(t, "metrics.txt", registry)
}

func TestPagesAreKeptByBrowsersAsLongAsTheirContentIsTheSame(t *testing.T) {
	t.Parallel()
	p, err := newPages(fstest.MapFS{
		"index.html": {Data: []byte(`<link href="app.css"><script src="/app.js"></script>`)},
		"app.js":     {Data: []byte(strings.Repeat("let a = 1;\n", 100))},
		"app.css":    {Data: []byte("body{}")},
	})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string, headers map[string]string) *http.Response {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		for name, value := range headers {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		return w.Result()
	}
	script := "/app.js?v=" + p["/app.js"].hash
	if text := string(p[index].plain); !strings.Contains(text, `"`+script+`"`) || !strings.Contains(text, `"/app.css?v=`+p["/app.css"].hash+`"`) {
		t.Errorf("the first page names %s", text)
	}
	for path, c := range map[string]struct {
		headers map[string]string
		status  int
		want    map[string]string
	}{
		script:            {nil, 200, map[string]string{"Cache-Control": "public, max-age=31536000, immutable", "Content-Type": "text/javascript; charset=utf-8", "Content-Encoding": ""}},
		"/app.js":         {map[string]string{"Accept-Encoding": "br, gzip"}, 200, map[string]string{"Cache-Control": "no-cache", "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}},
		"/app.js?v=other": {map[string]string{"If-None-Match": `"` + p["/app.js"].hash + `"`}, 304, map[string]string{"Cache-Control": "no-cache"}},
		"/app.css":        {map[string]string{"Accept-Encoding": "gzip"}, 200, map[string]string{"Content-Encoding": ""}}, // it would be longer
		"/":               {nil, 200, map[string]string{"Cache-Control": "no-cache", "Content-Type": "text/html; charset=utf-8"}},
		"/queues/dev":     {nil, 200, map[string]string{"Content-Type": "text/html; charset=utf-8"}},
		"/missing.js":     {nil, 404, nil},
	} {
		resp := get(path, c.headers)
		if resp.StatusCode != c.status {
			t.Errorf("%s: %s", path, resp.Status)
		}
		for name, want := range c.want {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
}
