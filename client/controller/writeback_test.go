package controller_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/wrote"
)

// sent is a client's way to the API server, which takes everything.
type sent struct{ requests []string }

func (s *sent) RoundTrip(r *http.Request) (*http.Response, error) {
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
}

// body says whether it was closed, as a RoundTripper must.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

func TestAPutThatWouldRemoveWhatTheIndexLeavesOutIsNotSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods", "configmaps", "nodes")
	for resource, dropped := range map[string][]string{"pods": {"metadata.managedFields"}, "configmaps": {"data.secret"}, "nodes": {"spec.taints"}} {
		r.append(resource, delta.Record{Kind: delta.KindLiveness, Dropped: dropped})
	}
	index := client.NewIndex(dialed(t, r.indexAddr))
	r.eventually("the index knows what is left out", func() string {
		all, err := index.Collections(t.Context())
		if err != nil || len(all) < 3 {
			return fmt.Sprint(len(all), err)
		}
		for _, c := range all {
			if c.Dropped == nil {
				return c.Collection
			}
		}
		return ""
	})
	p := r.replica("a", forPods, func(context.Context, *replica, controller.Request) (controller.Result, error) {
		return controller.Result{}, nil
	}, nil)
	for _, c := range []struct {
		cluster, method, path string
		field                 string // empty: it is sent
	}{
		{"", http.MethodPut, "/api/v1/namespaces/ns/configmaps/a", "data.secret"},
		{"dev", http.MethodPut, "/proxy/api/v1/namespaces/api/configmaps/a", "data.secret"},
		{"other", http.MethodPut, "/api/v1/namespaces/ns/configmaps/a", ""},
		{"", http.MethodPatch, "/api/v1/namespaces/ns/configmaps/a", ""},
		{"", http.MethodPost, "/api/v1/namespaces/ns/configmaps", ""},
		{"", http.MethodPut, "/api/v1/namespaces/ns/pods/p", ""},
		{"", http.MethodPut, "/api/v1/nodes/n", "spec.taints"},
		{"", http.MethodPut, "/api/v1/nodes/n/status", ""},
		{"", http.MethodPut, "/api/v1/namespaces/ns/finalize", ""},
		{"", http.MethodPut, "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", ""},
	} {
		next := &sent{}
		b := &body{Reader: strings.NewReader("{}")}
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://api"+c.path, b)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: p.Transport(c.cluster)(next)}).Do(req)
		if err == nil {
			resp.Body.Close()
		}
		switch {
		case c.field == "" && (err != nil || len(next.requests) != 1):
			t.Errorf("%s %s: %v, sent: %v", c.method, c.path, err, next.requests)
		case c.field != "" && (!errors.Is(err, client.ErrDroppedFields) || !strings.Contains(err.Error(), c.field) || len(next.requests) > 0 || !b.closed):
			t.Errorf("%s %s: %v, want a refusal that names %s; sent: %v", c.method, c.path, err, c.field, next.requests)
		}
	}
}

func TestTheTransportNotesWhatAReconcileWrites(t *testing.T) {
	t.Parallel()
	c := controller.New(nil, nil, controller.Options{Name: "test"})
	var n wrote.Notes
	ctx := context.WithValue(t.Context(), wrote.Key{}, &n)
	const object = `{"kind":"Pod","metadata":{"name":"a","namespace":"ns","resourceVersion":"7"}}`
	for _, x := range []struct {
		method, url, kind string
		code              int
		err               error
	}{
		{http.MethodPost, "http://api/api/v1/namespaces/ns/pods", "application/json", http.StatusCreated, nil},
		{http.MethodPatch, "http://api/api/v1/namespaces/ns/pods/a", "application/vnd.kubernetes.protobuf", http.StatusOK, nil},
		{http.MethodPatch, "http://api/api/v1/namespaces/ns/pods/a", "application/json", http.StatusConflict, nil},
		{http.MethodPatch, "http://api/api/v1/namespaces/ns/pods/a?dryRun=All", "application/json", http.StatusOK, nil},
		{http.MethodDelete, "http://api/api/v1/namespaces/ns/pods/a", "application/json", http.StatusOK, io.ErrUnexpectedEOF},
		{http.MethodGet, "http://api/api/v1/namespaces/ns/pods/a", "application/json", http.StatusOK, nil},
	} {
		r, err := http.NewRequestWithContext(ctx, x.method, x.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Transport("dev")(answers{x.code, x.kind, object, x.err}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if string(body) != object || !errors.Is(err, x.err) {
			t.Errorf("%s %s: the caller reads %q, %v; want the answer, %v", x.method, x.url, body, err, x.err)
		}
	}
	want := []wrote.Write{
		{Verb: "create", Cluster: "dev", Resource: "pods.v1", Key: "ns/a", RV: "7"},
		{Verb: "patch", Cluster: "dev", Resource: "pods.v1", Key: "ns/a"},
		{Verb: "delete", Cluster: "dev", Resource: "pods.v1", Key: "ns/a", RV: "7"},
	}
	got := n.All()
	for i := range got {
		if got[i].Began.IsZero() || got[i].Ended.Before(got[i].Began) {
			t.Errorf("%s took from %v to %v", got[i].Verb, got[i].Began, got[i].Ended)
		}
		got[i].Began, got[i].Ended = time.Time{}, time.Time{}
	}
	if !slices.Equal(got, want) {
		t.Errorf("noted %v, want %v", got, want)
	}
}

// answers is an API server's answer, which breaks off behind the object where err is set.
type answers struct {
	code       int
	kind, body string
	err        error
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body := io.Reader(strings.NewReader(a.body))
	if a.err != nil {
		body = io.MultiReader(body, iotest.ErrReader(a.err))
	}
	return &http.Response{StatusCode: a.code, Header: http.Header{"Content-Type": {a.kind}}, Body: io.NopCloser(body), Request: r}, nil
}
