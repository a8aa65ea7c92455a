package indexer_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// misshapen is a pod whose node or phase is not where its path looks.
func misshapen(key, name, spec, status string) delta.Record {
	r := pod(key, options{})
	r.Payload = []byte(`{"metadata":{"name":"` + name + `","namespace":"b","resourceVersion":"RV"},"spec":` + spec + `,"status":` + status + `}`)
	return r
}

// What could not be read is not the empty value: by a field selector the object is
// answered, whether an index has the field or not. Under a value of the index it is
// left out, and named.
func TestAFieldThatCouldNotBeReadIsNotTakenForEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	w.put(t, misshapen("b/phase", "phase", `{"nodeName":"n1"}`, `"odd"`))
	r := w.index(t, nil)
	w.caughtUp(t, r)
	list := func(fields string) (*indexv1.ListResponse, error) {
		return r.List(t.Context(), &indexv1.ListRequest{Collection: podsName, FieldSelector: fields})
	}
	for fields, want := range map[string][]string{
		"status.phase=Running":                   {"a/one", "b/one", "b/phase"},
		"status.phase!=Running":                  {"a/two", "b/phase", "b/two"},
		"status.phase=":                          {"b/phase"},
		"status.phase=Pending,spec.nodeName=n2":  {"a/two"},
		"status.phase=Running,spec.nodeName=n1":  {"a/one", "b/one", "b/phase"},
		"status.phase=Running,metadata.name!=to": {"a/one", "b/one", "b/phase"},
	} {
		resp, err := list(fields)
		if err != nil {
			t.Fatalf("%s: %v", fields, err)
		}
		wantKeys(t, fields, resp.GetObjects(), want...)
		n, err := r.Count(t.Context(), &indexv1.CountRequest{Collection: podsName, FieldSelector: fields})
		if err != nil || n.GetCount() != int64(len(want)) {
			t.Errorf("Count(%s) = %v, %v, want %d", fields, n.GetCount(), err, len(want))
		}
	}
	if t.Failed() {
		return // the watch would be waited for
	}
	running := watch(t, r, &indexv1.WatchRequest{FieldSelector: "status.phase=Running"})
	running.expect(t, "+a/one", "+b/one", "+b/phase", "end")
	w.put(t, misshapen("a/one", "one", `{}`, `{}`)) // of another key: quarantined
	w.put(t, misshapen("b/one", "one", `{"nodeName":"n1"}`, `[]`))
	running.expect(t, "~a/one", "~b/one")

	w.put(t, misshapen("b/node", "node", `{"nodeName":["n1"]}`, `{}`))
	w.caughtUp(t, r)
	resp, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: podsName, Index: "node", Values: []string{"n1"}})
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, "the index", resp.GetObjects(), "b/one", "b/phase")
	wantUnindexed(t, "the index", resp.GetUnindexed(), "node", "b/node")
	for fields, want := range map[string][]string{
		"spec.nodeName=n1": {"a/one", "b/node", "b/one", "b/phase"}, "spec.nodeName!=n1": {"a/one", "a/two", "b/node", "b/two"}, "spec.nodeName=": {"a/one", "b/node", "b/two"},
	} {
		resp, err := list(fields)
		if err != nil {
			t.Fatalf("%s: %v", fields, err)
		}
		wantKeys(t, fields, resp.GetObjects(), want...)
		wantUnindexed(t, fields, resp.GetUnindexed(), "node", "b/node")
		_, err = r.List(t.Context(), &indexv1.ListRequest{Collection: podsName, FieldSelector: fields, Strict: true})
		wantStatus(t, fields, err, codes.FailedPrecondition, "INDEX_FAILED", "")
	}
	w.put(t, gone("b/node"))
	w.caughtUp(t, r)
	if resp, err := list("spec.nodeName=n1"); err != nil || resp.GetUnindexed() != nil {
		t.Errorf("after the object went: %v, %v", resp.GetUnindexed(), err)
	}
}
