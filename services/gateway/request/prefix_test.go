package request_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/services/gateway/request"
)

func TestWhatStandsBeforeAPathIsAnOption(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]struct {
		path    string
		visible bool
		masked  string // what is left of an object; empty where there is no mask
	}{
		"/api/v1/pods":         {"/api/v1/pods", false, ""},
		"/visible":             {"/visible", false, ""},
		"/visible/api/v1/pods": {"/api/v1/pods", true, ""},
		"/visible/":            {"/", true, ""},
		"/fields/spec.nodeName,status/api/v1/pods":        {"/api/v1/pods", false, `{"kind":"Pod","metadata":{"name":"a","uid":"u"},"spec":{"nodeName":"n"},"status":{"x":1}}`},
		"/visible/fields/metadata/apis/batch/v1/jobs":     {"/apis/batch/v1/jobs", true, `{"kind":"Pod","metadata":{"name":"a","uid":"u","labels":{"b":"c"}}}`},
		"/fields/metadata.labels.%60b%60/api/v1/pods/%41": {"/api/v1/pods/A", false, `{"kind":"Pod","metadata":{"name":"a","uid":"u","labels":{"b":"c"}}}`},
	} {
		out, options, err := request.Unprefixed(get(target))
		if err != nil || out.URL.Path != want.path || options.Visible != want.visible {
			t.Errorf("%s is %q %+v, %v", target, out.URL.Path, options, err)
			continue
		}
		if options.Mask == nil {
			if want.masked != "" {
				t.Errorf("%s has no mask", target)
			}
			continue
		}
		if got := string(options.Mask.Keep([]byte(`{"kind":"Pod","metadata":{"name":"a","uid":"u","labels":{"b":"c"}},"spec":{"nodeName":"n","more":1},"status":{"x":1}}`))); got != want.masked {
			t.Errorf("%s keeps %s, want %s", target, got, want.masked)
		}
	}
	if out, _, err := request.Unprefixed(get("/fields/spec/api/v1/a%2Fb")); err != nil || out.URL.RawPath != "/api/v1/a%2Fb" {
		t.Errorf("an escaped path is %q, %v", out.URL.RawPath, err)
	}
	for _, target := range []string{"/fields/", "/fields//api/v1/pods", "/fields/a[0]/api/v1/pods", "/fields/a.,b/api", "/fields/" + strings.Repeat("a,", 200) + "b/api"} {
		if _, _, err := request.Unprefixed(get(target)); !errors.Is(err, request.ErrFields) {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func FuzzUnprefixed(f *testing.F) {
	for _, path := range []string{"/api/v1/pods", "/visible/fields/a,b.c/api", "/fields/`a.b`/x%2fy", "/fields/%60", "/fields/0.0!"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		r := get("/")
		if u, err := r.URL.Parse(path); err == nil && strings.HasPrefix(u.Path, "/") {
			r.URL.Path, r.URL.RawPath = u.Path, u.RawPath
		}
		out, options, err := request.Unprefixed(r)
		if err == nil && !strings.HasPrefix(out.URL.Path, "/") {
			t.Fatalf("%q becomes %q", path, out.URL.Path)
		}
		if text, bad := url.PathUnescape(out.URL.RawPath); err == nil && out.URL.RawPath != "" && (bad != nil || text != out.URL.Path) {
			t.Fatalf("%q becomes %q, escaped %q", path, out.URL.Path, out.URL.RawPath)
		}
		if options.Mask != nil {
			options.Mask.Keep([]byte(`{"metadata":{"name":"a"},"list":[1,{"b":2}]}`))
		}
	})
}
