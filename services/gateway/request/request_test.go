package request_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/services/gateway/request"
)

func get(target string, header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	u, err := url.ParseRequestURI(target)
	if err != nil {
		panic(err)
	}
	r.URL = u
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

func TestReadsAreUnderstood(t *testing.T) {
	t.Parallel()
	pods := request.Resource{Version: "v1", Name: "pods"}
	jobs := request.Resource{Group: "batch", Version: "v1", Name: "jobs"}
	for target, want := range map[string]request.Read{
		"/api/v1/pods":                          {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Recent},
		"/api/v1/namespaces/a/pods":             {Path: request.Path{Resource: pods, Namespace: "a"}, Verb: request.List, Match: request.Recent},
		"/api/v1/namespaces/a/pods/b":           {Path: request.Path{Resource: pods, Namespace: "a", Name: "b"}, Verb: request.Get, Match: request.Recent},
		"/apis/batch/v1/jobs":                   {Path: request.Path{Resource: jobs}, Verb: request.List, Match: request.Recent},
		"/api/v1/namespaces":                    {Path: request.Path{Resource: request.Resource{Version: "v1", Name: "namespaces"}}, Verb: request.List, Match: request.Recent},
		"/api/v1/namespaces/a":                  {Path: request.Path{Resource: request.Resource{Version: "v1", Name: "namespaces"}, Name: "a"}, Verb: request.Get, Match: request.Recent},
		"/api/v1/pods?resourceVersion=0":        {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Any},
		"/api/v1/pods?resourceVersion=7":        {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.NotOlderThan, Version: 7},
		"/api/v1/pods?limit=5":                  {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Recent, Limit: 5},
		"/api/v1/pods?timeout=30s&limit=5":      {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Recent, Limit: 5},
		"/api/v1/pods?limit=5&timeoutSeconds=9": {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Recent, Limit: 5},
		// The cache of an API server passes over a limit of any version; a version with one is
		// exact.
		"/api/v1/pods?resourceVersion=0&limit=5":                                   {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Any},
		"/api/v1/pods?resourceVersion=7&limit=5":                                   {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Exact, Version: 7, Limit: 5},
		"/api/v1/pods?resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan": {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.NotOlderThan, Version: 7, Limit: 5},
		"/api/v1/pods?resourceVersion=7&resourceVersionMatch=Exact":                {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Exact, Version: 7},
		"/api/v1/pods?limit=2&continue=" + request.Token("a/b", 9):                 {Path: request.Path{Resource: pods}, Verb: request.List, Match: request.Exact, Version: 9, After: "a/b", Limit: 2},
		"/api/v1/namespaces/a/pods?limit=2&continue=" + request.Token("b", 9):      {Path: request.Path{Resource: pods, Namespace: "a"}, Verb: request.List, Match: request.Exact, Version: 9, After: "a/b", Limit: 2},
		"/api/v1/pods?watch=1": {Path: request.Path{Resource: pods}, Verb: request.Watch, Match: request.Recent},
		"/api/v1/pods?watch=true&resourceVersion=0&allowWatchBookmarks=true":                                                 {Path: request.Path{Resource: pods}, Verb: request.Watch, Match: request.Any, Bookmarks: true},
		"/api/v1/pods?watch=true&resourceVersion=7&timeoutSeconds=30":                                                        {Path: request.Path{Resource: pods}, Verb: request.Watch, Match: request.Exact, Version: 7, Timeout: 30 * time.Second},
		"/api/v1/pods?watch=1&sendInitialEvents=1&allowWatchBookmarks=1&resourceVersionMatch=NotOlderThan":                   {Path: request.Path{Resource: pods}, Verb: request.Watch, Match: request.Recent, Initial: true, Bookmarks: true},
		"/api/v1/pods?watch=1&sendInitialEvents=1&allowWatchBookmarks=1&resourceVersionMatch=NotOlderThan&resourceVersion=7": {Path: request.Path{Resource: pods}, Verb: request.Watch, Match: request.NotOlderThan, Version: 7, Initial: true, Bookmarks: true},
	} {
		got, reason := request.Parse(get(target))
		if got == nil {
			t.Errorf("%s is left to the API server: %s", target, reason)
			continue
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s\n is %+v\nwant %+v", target, *got, want)
		}
	}
}

func TestWhatIsNotUnderstoodIsLeftToTheAPIServer(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"/": "path", "/api/v1": "path", "/apis": "path", "/apis/batch/v1": "path", "/version": "path", "/openapi/v3": "path", "/api/v1/pods/": "path",
		"/api/v1//pods": "path", "/api/v1/namespaces/a/../pods": "path", "/api/v1/namespaces/a/pods/b%2Fc": "path", "/api/v1/watch/pods": "path",
		"/apis//v1/pods":                                                   "path",
		"/api/v1/namespaces/a/pods/b/status":                               "subresource",
		"/api/v1/namespaces/a/pods/b/log":                                  "subresource",
		"/api/v1/namespaces/a/services/b/proxy/x/y":                        "subresource",
		"/api/v1/namespaces/a/status":                                      "subresource",
		"/api/v1/pods?unknown=1":                                           "parameter",
		"/api/v1/pods?limit=1&limit=2":                                     "parameter",
		"/api/v1/pods?pretty=true":                                         "parameter",
		"/api/v1/pods?limit=-1":                                            "parameter",
		"/api/v1/pods?limit=x":                                             "parameter",
		"/api/v1/pods?resourceVersion=01":                                  "parameter",
		"/api/v1/pods?resourceVersion=x":                                   "parameter",
		"/api/v1/pods?resourceVersion=99999999999999999999":                "parameter",
		"/api/v1/pods?resourceVersionMatch=Exact":                          "parameter",
		"/api/v1/pods?resourceVersionMatch=NotOlderThan":                   "parameter",
		"/api/v1/pods?resourceVersion=0&resourceVersionMatch=Exact":        "parameter",
		"/api/v1/pods?continue=x":                                          "parameter",
		"/api/v1/pods?resourceVersion=7&continue=" + request.Token("a", 9): "parameter",
		"/api/v1/pods?sendInitialEvents=true":                              "parameter",
		"/api/v1/pods?watch=yes":                                           "parameter",
		"/api/v1/pods?watch=1&limit=2":                                     "parameter",
		"/api/v1/pods?watch=1&timeoutSeconds=-1":                           "parameter",
		"/api/v1/pods?watch=1&sendInitialEvents=1":                         "parameter",
		"/api/v1/pods?watch=1&resourceVersionMatch=NotOlderThan":           "parameter",
		"/api/v1/namespaces/a/pods/b?watch=1":                              "parameter",
		"/api/v1/namespaces/a/pods/b?labelSelector=a":                      "parameter",
		"/api/v1/pods?labelSelector=a+in+(":                                "selector",
		"/api/v1/pods?fieldSelector=status.podIP=10.0.0.1":                 "selector",
		"/api/v1/nodes?fieldSelector=spec.unschedulable=true":              "selector",
		"/api/v1/pods?fieldSelector=spec.containers[0].image=a":            "selector",
		"/api/v1/pods?%zz":                                                 "parameter",
	} {
		if got, reason := request.Parse(get(target)); got != nil && len(got.Declared) == 0 || reason != want {
			t.Errorf("%s: %+v, reason %q, want %q", target, got, reason, want)
		}
	}
	r := get("/api/v1/pods")
	r.Method = http.MethodPost
	if got, reason := request.Parse(r); got != nil || reason != "method" {
		t.Errorf("POST: %+v, %q", got, reason)
	}
	if got, reason := request.Parse(get("/api/v1/pods", "Upgrade", "websocket", "Connection", "Upgrade")); got != nil || reason != "upgrade" {
		t.Errorf("an upgrade: %+v, %q", got, reason)
	}
}

func TestTheFormThatIsAcceptedIsChosen(t *testing.T) {
	t.Parallel()
	const (
		meta  = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
		table = ";as=Table;g=meta.k8s.io;v=v1"
		proto = "application/vnd.kubernetes.protobuf"
		js    = "application/json"
	)
	for accept, want := range map[string]struct {
		form request.Form
		ok   bool
	}{
		"":                             {request.Full, true},
		"*/*":                          {request.Full, true},
		js:                             {request.Full, true},
		"application/*":                {request.Full, true},
		js + ";charset=utf-8":          {request.Full, true},
		proto + "," + js:               {request.Full, true},
		proto + ", */*":                {request.Full, true},
		js + meta:                      {request.Metadata, true},
		proto + meta + "," + js + meta: {request.Metadata, true},
		proto + meta + "," + js + meta + "," + js: {request.Metadata, true},
		proto:                                {},
		proto + meta:                         {request.MetadataProtobuf, true},
		proto + meta + "," + js:              {request.MetadataProtobuf, true},
		js + table + "," + js:                {request.Table, true}, // kubectl
		js + ";q=0.5," + js + table:          {request.Table, true},
		proto + table + "," + js:             {},
		js + table + ";q=0.5," + js:          {request.Full, true},
		"application/yaml":                   {},
		"application/cbor":                   {},
		"text/plain":                         {},
		js + ";pretty=1":                     {},
		js + ";as=PartialObjectMetadataList": {},
		js + ";q=0":                          {},
		"x":                                  {},
		"application/json;;;":                {},
	} {
		r := get("/api/v1/pods")
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		got, reason := request.Parse(r)
		switch {
		case (got != nil) != want.ok:
			t.Errorf("%q: %+v, reason %q, want it understood: %v", accept, got, reason, want.ok)
		case got != nil && got.Objects != (got.Form == request.Table):
			t.Errorf("%q: objects as they are: %v", accept, got.Objects)
		case got != nil && got.Form != want.form:
			t.Errorf("%q: form %d, want %d", accept, got.Form, want.form)
		}
	}
}

func TestGzipIsTakenWhereTheClientNamesIt(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{"": false, "gzip": true, "deflate, gzip;q=1.0": true, "gzip;q=0": false, "br": false} {
		if got, _ := request.Parse(get("/api/v1/pods", "Accept-Encoding", header)); got.Gzip != want {
			t.Errorf("%q: %v", header, got.Gzip)
		}
	}
}

// An API server's tokens have a slash in front where it answers from its cache.
func TestTokensOfAPIServersAreRead(t *testing.T) {
	t.Parallel()
	const cached = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NDIsInN0YXJ0IjoiL2EvYlx1MDAwMCJ9" // /a/b
	got, reason := request.Parse(get("/api/v1/pods?continue=" + cached))
	if got == nil || got.After != "a/b" || got.Version != 42 {
		t.Errorf("%+v, %q", got, reason)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("/api/v1/pods?labelSelector=a%3Db&limit=3", "application/json")
	f.Add("/apis/batch/v1/namespaces/a/jobs/b?resourceVersion=0", "application/json;as=Table;g=meta.k8s.io;v=v1")
	f.Add("/api/v1/pods?continue="+request.Token("a/b", 1), "")
	f.Fuzz(func(t *testing.T, target, accept string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r := &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{"Accept": {accept}}}
		read, reason := request.Parse(r)
		if (read == nil) == (reason == "") {
			t.Fatalf("%q: %+v and the reason %q", target, read, reason)
		}
		if read == nil {
			return
		}
		if read.Resource.Name == "" || read.Resource.Version == "" || strings.Contains(read.Namespace+read.Name, "/") {
			t.Errorf("%q is %+v", target, read.Path)
		}
		if read.Limit < 0 || read.Match == "" {
			t.Errorf("%q is %+v", target, read)
		}
	})
}
