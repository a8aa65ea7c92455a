package indexer_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

const podsName = "dev/pods.v1"

func fleet() []delta.Record {
	return []delta.Record{
		pod("a/one", options{node: "n1", labels: "app=web,tier=x", owner: "job-1", phase: "Running"}),
		pod("a/two", options{node: "n2", labels: "app=web", owner: "job-1", phase: "Pending"}),
		pod("b/one", options{node: "n1", labels: "app=db", owner: "job-2", phase: "Running"}),
		pod("b/two", options{phase: "Pending"}),
	}
}

func TestEveryRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	ctx := t.Context()

	t.Run("Get returns the stored bytes and the revision", func(t *testing.T) {
		resp, err := r.Get(ctx, &indexv1.GetRequest{Collection: podsName, Key: "a/one"})
		if err != nil {
			t.Fatal(err)
		}
		o := resp.GetObject()
		if o.GetKey() != "a/one" || o.GetUid() != "uid-a/one" || o.GetResourceVersion() != "1" || o.GetEncoding() != deltav1.Encoding_ENCODING_JSON {
			t.Errorf("object = %v", o)
		}
		if !json.Valid(o.GetPayload()) || !strings.Contains(string(o.GetPayload()), `"nodeName":"n1"`) {
			t.Errorf("payload = %s", o.GetPayload())
		}
		if rev := resp.GetRevision(); rev.GetEpoch() != w.w.Epoch() || rev.GetResourceVersion() != "5" {
			t.Errorf("revision = %v, want the watermark 5", rev)
		}
	})
	t.Run("Get of a key that is not there names the revision", func(t *testing.T) {
		_, err := r.Get(ctx, &indexv1.GetRequest{Collection: podsName, Key: "a/none"})
		wantStatus(t, "Get", err, codes.NotFound, "KEY_NOT_FOUND", "")
		if info := rpc.Info(err); info.GetMetadata()["resource_version"] != "5" || info.GetMetadata()["key"] != "a/none" {
			t.Errorf("metadata = %v", info.GetMetadata())
		}
	})
	t.Run("short names find the collection", func(t *testing.T) {
		for _, name := range []string{"pods", "pods.v1", "dev/pods", podsName} {
			if _, err := r.Get(ctx, &indexv1.GetRequest{Collection: name, Key: "a/one"}); err != nil {
				t.Errorf("Get in %q: %v", name, err)
			}
		}
	})
	t.Run("BatchGet keeps the order and lists what is missing", func(t *testing.T) {
		resp, err := r.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: "pods", Keys: []string{"b/one", "x/y", "a/one"}, View: indexv1.View_VIEW_KEYS})
		if err != nil {
			t.Fatal(err)
		}
		wantKeys(t, "BatchGet", resp.GetObjects(), "b/one", "a/one")
		if !slices.Equal(resp.GetMissingKeys(), []string{"x/y"}) || resp.GetRevision().GetResourceVersion() != "5" {
			t.Errorf("missing = %q, revision = %v", resp.GetMissingKeys(), resp.GetRevision())
		}
	})
	t.Run("List by namespace, labels and fields", func(t *testing.T) {
		for _, row := range []struct {
			ns, labels, fields string
			want               []string
		}{
			{"", "", "", []string{"a/one", "a/two", "b/one", "b/two"}},
			{"a", "", "", []string{"a/one", "a/two"}},
			{"none", "", "", nil},
			{"", "app=web", "", []string{"a/one", "a/two"}},
			{"", "app==web,tier", "", []string{"a/one"}},
			{"", "app!=web", "", []string{"b/one", "b/two"}},
			{"", "app in (web,db)", "", []string{"a/one", "a/two", "b/one"}},
			{"", "app notin (web)", "", []string{"b/one", "b/two"}},
			{"", "!app", "", []string{"b/two"}},
			{"b", "app", "", []string{"b/one"}},
			{"a", "app=db", "", nil},
			{"", "", "metadata.name=one", []string{"a/one", "b/one"}},
			{"", "", "metadata.namespace=b,metadata.name!=one", []string{"b/two"}},
			{"a", "", "metadata.namespace=b", nil},
			{"", "", "metadata.namespace!=a", []string{"b/one", "b/two"}},
			{"", "", "spec.nodeName=n1", []string{"a/one", "b/one"}},
			{"", "app=web", "status.phase=Running,spec.nodeName!=", []string{"a/one"}},
		} {
			resp, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", Namespace: row.ns, LabelSelector: row.labels, FieldSelector: row.fields})
			if err != nil {
				t.Errorf("List(%+v): %v", row, err)
				continue
			}
			wantKeys(t, fmt.Sprintf("List(%q %q %q)", row.ns, row.labels, row.fields), resp.GetObjects(), row.want...)
			if row.fields != "" {
				continue
			}
			n, err := r.Count(ctx, &indexv1.CountRequest{Collection: "pods", Namespace: row.ns, LabelSelector: row.labels})
			if err != nil || n.GetCount() != int64(len(row.want)) {
				t.Errorf("Count(%q %q) = %v, %v, want %d", row.ns, row.labels, n.GetCount(), err, len(row.want))
			}
		}
	})
	t.Run("ByIndex over each built-in index", func(t *testing.T) {
		for _, row := range []struct {
			index  string
			values []string
			want   []string
		}{
			{"namespace", []string{"b"}, []string{"b/one", "b/two"}},
			{"node", []string{"n1"}, []string{"a/one", "b/one"}},
			{"node", []string{"n2", "n1", "n9"}, []string{"a/one", "a/two", "b/one"}},
			{"owner", []string{"job-1"}, []string{"a/one", "a/two"}},
			{"label", []string{"app=db"}, []string{"b/one"}},
			{"label", []string{"tier"}, []string{"a/one"}},
			{"label", []string{"none"}, nil},
		} {
			resp, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: row.index, Values: row.values})
			if err != nil {
				t.Fatal(err)
			}
			wantKeys(t, fmt.Sprint("ByIndex ", row.index, row.values), resp.GetObjects(), row.want...)
			if len(row.values) > 1 {
				continue
			}
			keys, err := r.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: "pods", Index: row.index, Value: row.values[0]})
			if err != nil || !slices.Equal(keys.GetKeys(), row.want) {
				t.Errorf("IndexKeys(%s %s) = %q, %v", row.index, row.values[0], keys.GetKeys(), err)
			}
			n, err := r.Count(ctx, &indexv1.CountRequest{Collection: "pods", Index: row.index, Value: row.values[0]})
			if err != nil || n.GetCount() != int64(len(row.want)) {
				t.Errorf("Count(%s %s) = %v, %v", row.index, row.values[0], n.GetCount(), err)
			}
		}
		n, err := r.Count(ctx, &indexv1.CountRequest{Collection: "pods", Index: "node", Value: "n1", Namespace: "b", LabelSelector: "app"})
		if err != nil || n.GetCount() != 1 {
			t.Errorf("Count by all = %v, %v", n.GetCount(), err)
		}
	})
	t.Run("Index by an example that does not exist", func(t *testing.T) {
		example := pod("zz/example", options{labels: "app=web,tier=none"})
		resp, err := r.Index(ctx, &indexv1.IndexRequest{Collection: "pods", Index: "label", Object: example.Payload, View: indexv1.View_VIEW_KEYS})
		if err != nil {
			t.Fatal(err)
		}
		wantKeys(t, "Index", resp.GetObjects(), "a/one", "a/two", "b/one")
		if want := []string{"app", "app=web", "tier", "tier=none"}; !slices.Equal(resp.GetValues(), want) {
			t.Errorf("values = %q, want %q", resp.GetValues(), want)
		}
		// One that is stored finds itself and what is like it.
		stored, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a/one"})
		if err != nil {
			t.Fatal(err)
		}
		resp, err = r.Index(ctx, &indexv1.IndexRequest{Collection: "pods", Index: "node", Object: stored.GetObject().GetPayload(), View: indexv1.View_VIEW_KEYS})
		if err != nil || !slices.Equal(resp.GetValues(), []string{"n1"}) {
			t.Fatalf("Index by a stored object = %v, %v, want the value n1", resp, err)
		}
		wantKeys(t, "Index by a stored object", resp.GetObjects(), "a/one", "b/one")
	})
	t.Run("ListIndexFuncValues by prefix, in pages", func(t *testing.T) {
		var got []string
		req := &indexv1.ListIndexFuncValuesRequest{Collection: "pods", Index: "label", Prefix: "app", PageSize: 2}
		for {
			resp, err := r.ListIndexFuncValues(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range resp.GetValues() {
				got = append(got, fmt.Sprintf("%s:%d", v.GetValue(), v.GetKeys()))
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if want := []string{"app:3", "app=db:1", "app=web:2"}; !slices.Equal(got, want) {
			t.Errorf("values = %q, want %q", got, want)
		}
	})
	t.Run("ListIndexers and ListCollections", func(t *testing.T) {
		resp, err := r.ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: "pods"})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, x := range resp.GetIndexers() {
			names = append(names, fmt.Sprintf("%s:%d:%v", x.GetName(), x.GetValues(), x.GetBuiltIn()))
		}
		if want := []string{"label:5:true", "namespace:2:true", "node:2:true", "owner:2:true"}; !slices.Equal(names, want) {
			t.Errorf("indexers = %q, want %q", names, want)
		}
		all, err := r.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
		if err != nil || len(all.GetCollections()) != 1 {
			t.Fatalf("ListCollections = %v, %v", all, err)
		}
		c := all.GetCollections()[0]
		if c.GetCollection() != podsName || !c.GetSynced() || c.GetObjects() != 4 || c.GetStale() || c.GetLagRecords() != 0 || c.GetLiveAt() == nil || c.GetBytes() == 0 || all.GetReplica() == "" {
			t.Errorf("collection = %v", c)
		}
	})
	t.Run("views and field masks", func(t *testing.T) {
		get := func(req *indexv1.GetRequest) string {
			req.Collection, req.Key = "pods", "a/one"
			resp, err := r.Get(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			return string(resp.GetObject().GetPayload())
		}
		if got := get(&indexv1.GetRequest{View: indexv1.View_VIEW_KEYS}); got != "" {
			t.Errorf("keys view has payload %s", got)
		}
		meta := get(&indexv1.GetRequest{View: indexv1.View_VIEW_METADATA})
		var decoded map[string]any
		if err := json.Unmarshal([]byte(meta), &decoded); err != nil || len(decoded) != 3 || decoded["kind"] != "Pod" || decoded["metadata"] == nil {
			t.Errorf("metadata view = %s, %v", meta, err)
		}
		got := get(&indexv1.GetRequest{FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"metadata.name", "status.conditions.type", "status.none", "spec.nodeName.deeper", "metadata.labels"}}})
		want := `{"metadata":{"name":"one","labels":{"app":"web","tier":"x"}},"spec":{},"status":{"conditions":[{"type":"Ready"},{"type":"Init"}]}}`
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("field mask (-want +got): %s", diff)
		}
	})
}

func TestListPagesComeFromOneSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var records []delta.Record
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("n%d/p%02d", i%2, i)
		records = append(records, pod(key, options{labels: "app=web"}))
		want = append(want, key)
	}
	slices.Sort(want)
	w.start(t, records...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	pages := func(req *indexv1.ListRequest, between func()) []string {
		var got []string
		remaining := int64(len(want))
		for {
			resp, err := r.List(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if remaining -= int64(len(resp.GetObjects())); resp.GetRemaining() != remaining {
				t.Errorf("remaining = %d, want %d", resp.GetRemaining(), remaining)
			}
			if resp.GetRevision().GetResourceVersion() != "26" {
				t.Errorf("a page has revision %v, want that of the first", resp.GetRevision())
			}
			got = append(got, keysOf(resp.GetObjects())...)
			if req.PageToken == "" {
				between()
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				return got
			}
		}
	}
	if got := pages(&indexv1.ListRequest{Collection: "pods", PageSize: 7, LabelSelector: "app=web"}, func() {}); !slices.Equal(got, want) {
		t.Errorf("pages with a selector = %q, want %q", got, want)
	}
	got := pages(&indexv1.ListRequest{Collection: "pods", PageSize: 7}, func() { // the store moves on under the reader
		w.put(t, pod("n0/p00x", options{}), gone("n1/p23"), pod("n1/p99", options{}))
		w.caughtUp(t, r)
	})
	if !slices.Equal(got, want) {
		t.Errorf("pages = %q, want %q", got, want)
	}
}

func TestASnapshotThatIsGoneGivesATokenToGoOnWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var records []delta.Record
	for i := range 10 {
		records = append(records, pod(fmt.Sprintf("n/p%d", i), options{}))
	}
	w.start(t, records...)
	one := w.index(t, func(c *indexer.Config) { c.MaxSnapshots = 1 })
	two := w.index(t, nil)
	w.caughtUp(t, one)
	w.caughtUp(t, two)
	list := func(r *replica, token string) (*indexv1.ListResponse, error) {
		return r.List(t.Context(), &indexv1.ListRequest{Collection: "pods", PageSize: 4, PageToken: token, View: indexv1.View_VIEW_KEYS})
	}
	first, err := list(two, "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = list(one, first.GetNextPageToken())
	wantStatus(t, "another replica's token", err, codes.FailedPrecondition, "SNAPSHOT_GONE", "")
	on, err := list(one, rpc.Info(err).GetMetadata()["page_token"])
	if err != nil {
		t.Fatalf("the token in the details: %v", err)
	}
	wantKeys(t, "page from the new snapshot", on.GetObjects(), "n/p4", "n/p5", "n/p6", "n/p7")
	if on.GetRemaining() != 2 {
		t.Errorf("remaining = %d, want 2", on.GetRemaining())
	}
	w.put(t, pod("n/p9", options{node: "n2"}))
	w.caughtUp(t, one)
	if _, err := list(one, ""); err != nil { // a later snapshot takes the only place
		t.Fatal(err)
	}
	_, err = list(one, on.GetNextPageToken())
	wantStatus(t, "a token too old", err, codes.FailedPrecondition, "SNAPSHOT_GONE", "")
}

func TestAPageIsCutByBytesAndHoldsAtLeastOneObject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("n/a", options{pad: 1_400_000, node: "n1"}), pod("n/b", options{pad: 2000, node: "n1"}), pod("n/c", options{pad: 2000, node: "n1"}))
	r := w.index(t, func(c *indexer.Config) { c.MaxPageBytes = 5000 })
	w.caughtUp(t, r)
	req := &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}}
	var sizes []int
	for {
		resp, err := r.ByIndex(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(resp.GetObjects()))
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if !slices.Equal(sizes, []int{1, 2}) {
		t.Errorf("pages hold %v objects, want a 1.4 MB object alone and two small ones", sizes)
	}
}

func TestBadInputIsNamedAndTheServiceGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	ctx := t.Context()
	page, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	token := page.GetNextPageToken()
	many := make([]string, 1001)
	badRV := &indexv1.Consistency{AtLeast: &deltav1.Revision{ResourceVersion: "0x1"}}
	rows := []struct {
		name   string
		call   func() error
		code   codes.Code
		reason string
		field  string
	}{
		{"unknown collection", func() error {
			_, err := r.Get(ctx, &indexv1.GetRequest{Collection: "dev/cats.v1", Key: "a"})
			return err
		}, codes.NotFound, "COLLECTION_NOT_FOUND", ""},
		{"no collection", func() error { _, err := r.Get(ctx, &indexv1.GetRequest{Key: "a"}); return err }, codes.InvalidArgument, "INVALID_ARGUMENT", "collection"},
		{"malformed collection", func() error { _, err := r.Get(ctx, &indexv1.GetRequest{Collection: "a b", Key: "a"}); return err }, codes.InvalidArgument, "INVALID_ARGUMENT", "collection"},
		{"key with two slashes", func() error { _, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a/b/c"}); return err }, codes.InvalidArgument, "INVALID_ARGUMENT", "key"},
		{"empty key", func() error { _, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods"}); return err }, codes.InvalidArgument, "INVALID_ARGUMENT", "key"},
		{"unknown view", func() error {
			_, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a", View: 99})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "view"},
		{"view and mask", func() error {
			_, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a", View: 1, FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"a"}}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "field_mask"},
		{"broken mask", func() error {
			_, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a", FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"a", "b..c"}}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "field_mask.paths[1]"},
		{"RV that is no decimal", func() error {
			_, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a", Consistency: badRV})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "consistency.at_least.resource_version"},
		{"negative timeout", func() error {
			_, err := r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a", Consistency: &indexv1.Consistency{AtLeast: &deltav1.Revision{}, Timeout: durationpb.New(-1)}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "consistency.timeout"},
		{"no keys", func() error { _, err := r.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: "pods"}); return err }, codes.InvalidArgument, "INVALID_ARGUMENT", "keys"},
		{"too many keys", func() error {
			_, err := r.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: "pods", Keys: many})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "keys"},
		{"one bad key of two", func() error {
			_, err := r.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: "pods", Keys: []string{"a/one", "a//"}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "keys[1]"},
		{"label selector", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", LabelSelector: "a in ("})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "label_selector"},
		{"endless label selector", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", LabelSelector: strings.Repeat("a,", 40_000)})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "label_selector"},
		{"field selector syntax", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", FieldSelector: "a"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "field_selector"},
		{"field that is not indexed", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", FieldSelector: "spec.x=1"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "field_selector"},
		{"namespace", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", Namespace: "a/b"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "namespace"},
		{"negative page", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", PageSize: -1})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "page_size"},
		{"forged token", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", PageToken: "Zm9v"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "page_token"},
		{"cut token", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", PageToken: token[:len(token)-2]})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "page_token"},
		{"token of another query", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", PageToken: token, Namespace: "a"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "page_token"},
		{"token of another call", func() error {
			_, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}, PageToken: token})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "page_token"},
		{"no values", func() error {
			_, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: "node"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "values"},
		{"no index", func() error {
			_, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Values: []string{"n1"}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "index"},
		{"unknown index in ByIndex", func() error {
			_, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: "no", Values: []string{"x"}})
			return err
		}, codes.NotFound, "INDEX_NOT_FOUND", ""},
		{"unknown index in IndexKeys", func() error {
			_, err := r.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: "pods", Index: "no"})
			return err
		}, codes.NotFound, "INDEX_NOT_FOUND", ""},
		{"unknown index in ListIndexFuncValues", func() error {
			_, err := r.ListIndexFuncValues(ctx, &indexv1.ListIndexFuncValuesRequest{Collection: "pods", Index: "no"})
			return err
		}, codes.NotFound, "INDEX_NOT_FOUND", ""},
		{"unknown index in Index", func() error {
			_, err := r.Index(ctx, &indexv1.IndexRequest{Collection: "pods", Index: "no", Object: []byte(`{"metadata":{}}`)})
			return err
		}, codes.NotFound, "INDEX_NOT_FOUND", ""},
		{"unknown index in Count", func() error {
			_, err := r.Count(ctx, &indexv1.CountRequest{Collection: "pods", Index: "no", Value: "x"})
			return err
		}, codes.NotFound, "INDEX_NOT_FOUND", ""},
		{"value without index", func() error {
			_, err := r.Count(ctx, &indexv1.CountRequest{Collection: "pods", Value: "x"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "index"},
		{"Count in an index without a value", func() error {
			_, err := r.Count(ctx, &indexv1.CountRequest{Collection: "pods", Index: "node"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "value"},
		{"example that is not JSON", func() error {
			_, err := r.Index(ctx, &indexv1.IndexRequest{Collection: "pods", Index: "node", Object: []byte("{")})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "object"},
		{"namespaces beside a namespace", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", Namespace: "a", Namespaces: []string{"b"}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "namespaces"},
		{"one of the namespaces", func() error {
			_, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}, Namespaces: []string{"a", "b/c"}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "namespaces[1]"},
		{"values beside a value", func() error {
			_, err := r.Count(ctx, &indexv1.CountRequest{Collection: "pods", Index: "node", Value: "n1", Values: []string{"n2"}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "values"},
		{"clusters beside a collection's own", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: podsName, Clusters: []string{"dev"}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "collection"},
		{"every cluster and another", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", Clusters: []string{"dev", "*"}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "clusters[1]"},
		{"too many clusters", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", Clusters: many})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "clusters"},
		{"negative page of an index", func() error {
			_, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}, PageSize: -1})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "page_size"},
		{"selector of 10,000 terms by an index", func() error {
			_, err := r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1"}, LabelSelector: "a" + strings.Repeat(",a", 9_999)})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "label_selector"},
		{"token of other clusters", func() error {
			_, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", Clusters: []string{"dev"}, PageSize: 1, PageToken: token})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "page_token"},
		{"nothing to wait for", func() error { _, err := r.WaitForRevision(ctx, &indexv1.WaitForRevisionRequest{}); return err }, codes.InvalidArgument, "INVALID_ARGUMENT", "revisions"},
		{"bad revision to wait for", func() error {
			_, err := r.WaitForRevision(ctx, &indexv1.WaitForRevisionRequest{Revisions: []*deltav1.CollectionRevision{{Collection: "pods", Revision: &deltav1.Revision{ResourceVersion: "-1"}}}})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT", "revisions[0].revision.resource_version"},
	}
	for _, row := range rows {
		err := row.call()
		wantStatus(t, row.name, err, row.code, row.reason, row.field)
		if there := map[string]string{
			"COLLECTION_NOT_FOUND": "there are: dev/pods.v1", "INDEX_NOT_FOUND": "there are: label, namespace, node, owner",
		}[row.reason]; !strings.Contains(rpc.Message(err), there) {
			t.Errorf("%s: %v does not say %q", row.name, err, there)
		}
	}
	for _, size := range []int32{0, 1_000_000_000} {
		if resp, err := r.List(ctx, &indexv1.ListRequest{Collection: "pods", PageSize: size}); err != nil || len(resp.GetObjects()) != 4 {
			t.Errorf("page size %d: %v, %v", size, keysOf(resp.GetObjects()), err)
		}
	}
}
