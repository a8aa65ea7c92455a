package controller

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/deltaplane/deltaplane/client/internal/writeback"
	"github.com/deltaplane/deltaplane/internal/wrote"
)

// Transport is for clients of a cluster's API server, with client-go by Wrap of rest.Config. An
// empty cluster is Options.Cluster. It sends no PUT that would remove what the index leaves out of
// the collection's objects: an object that was read here lacks it. The error wraps
// [client.ErrDroppedFields] and names the fields. Of the subresources only status is looked at, and
// patches and Apply are sent. An index that cannot be asked is an error too.
//
// What a reconcile writes by requests with its context stands in the history of its key, which
// "deltaplane why" shows.
func (c *Controller) Transport(cluster string) func(next http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return &transport{guard: c.guard, cluster: cmp.Or(cluster, c.o.Cluster), next: next}
	}
}

type transport struct {
	guard   *writeback.Guard
	cluster string
	next    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPut {
		return t.send(r)
	}
	for _, target := range targets(r.URL.Path) {
		target.of.Cluster = t.cluster
		if err := t.guard.Update(r.Context(), target.of, target.subresource); err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // as is the duty of a RoundTripper
			}
			return nil, fmt.Errorf("controller: PUT %s is not sent: %w", r.URL.Path, err)
		}
	}
	return t.send(r)
}

// mostNoted bounds the answers in which the version of what was written is looked for.
const mostNoted = 4 << 20

// send notes what the context's reconcile writes.
func (t *transport) send(r *http.Request) (*http.Response, error) {
	if !wrote.Writes(r.Method) || r.URL.Query().Has("dryRun") {
		return t.next.RoundTrip(r)
	}
	ctx, call := wrote.Begin(r.Context(), t.cluster, r.Method, r.URL.Path)
	if call == nil {
		return t.next.RoundTrip(r)
	}
	if ctx != r.Context() {
		r = r.Clone(ctx) // a RoundTripper must not change what it is given
		wrote.Inject(ctx, r.Header)
	}
	resp, err := t.next.RoundTrip(r)
	switch {
	case err != nil:
		call.Failed(err.Error())
		return resp, err
	case resp.StatusCode >= http.StatusBadRequest:
		call.Failed(resp.Status)
		return resp, nil
	}
	var answer []byte
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") && resp.ContentLength <= mostNoted {
		body := resp.Body
		answer, err = io.ReadAll(io.LimitReader(body, mostNoted))
		rest := io.Reader(body)
		if err != nil { // the caller meets it where it is
			rest = failing{err}
		}
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(answer), rest), body}
	}
	call.CarriedOut(answer)
	return resp, nil
}

type failing struct{ err error }

// Read implements [io.Reader].
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// target is an object's resource, and the subresource.
type target struct {
	of          writeback.Resource
	subresource string
}

// targets reads the path of an object. Behind a proxy the API server's paths begin with another
// one, so that there may be several readings; the index has at most one of them.
func targets(path string) (all []target) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for n, part := range parts {
		var t target
		rest := parts[n+1:]
		switch {
		case part == "api" && len(rest) >= 3:
			t.of.Version, rest = rest[0], rest[1:]
		case part == "apis" && len(rest) >= 4:
			t.of.Group, t.of.Version, rest = rest[0], rest[1], rest[2:]
		default:
			continue
		}
		if rest[0] == "namespaces" && len(rest) > 3 { // else it is a namespace's own subresource
			rest = rest[2:]
		}
		switch len(rest) {
		case 2:
			t.of.Name = rest[0]
		case 3:
			t.of.Name, t.subresource = rest[0], rest[2]
		default:
			continue
		}
		all = append(all, t)
	}
	return all
}
