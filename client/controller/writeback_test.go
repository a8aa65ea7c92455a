package controller_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	"github.com/deltaplane/deltaplane/core/delta"
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
