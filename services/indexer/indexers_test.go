package indexer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

func byField(name, path string) *indexv1.IndexerDefinition {
	return &indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_Field{Field: path}}
}

func byCEL(name, text string) *indexv1.IndexerDefinition {
	return &indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_Cel{Cel: text}}
}

func byLabel(name, label string) *indexv1.IndexerDefinition {
	return &indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_Label{Label: label}}
}

func byOwner(name string, controller bool) *indexv1.IndexerDefinition {
	return &indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_OwnerUid{OwnerUid: &indexv1.OwnerSource{ControllerOnly: controller}}}
}

const ready = indexv1.IndexerState_INDEXER_STATE_READY

func (r *replica) add(t testing.TB, collection string, list ...*indexv1.IndexerDefinition) []*indexv1.Indexer {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		resp, err := r.AddIndexers(t.Context(), &indexv1.AddIndexersRequest{Collection: collection, Indexers: list, Wait: durationpb.New(30 * time.Second)})
		if err != nil {
			t.Fatalf("AddIndexers: %v", err)
		}
		building := func(x *indexv1.Indexer) bool { return x.GetState() == indexv1.IndexerState_INDEXER_STATE_BUILDING }
		if !slices.ContainsFunc(resp.GetIndexers(), building) || time.Now().After(deadline) {
			return resp.GetIndexers()
		}
	}
}

func (r *replica) indexer(t testing.TB, collection, name string) *indexv1.Indexer {
	t.Helper()
	resp, err := r.ListIndexers(t.Context(), &indexv1.ListIndexersRequest{Collection: collection})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range resp.GetIndexers() {
		if x.GetName() == name {
			return x
		}
	}
	return nil
}

// awaitIndexer waits until a replica's index is in a state, or gone.
func (r *replica) awaitIndexer(t testing.TB, name string, state indexv1.IndexerState) {
	t.Helper()
	eventually(t, func() string {
		if x := r.indexer(t, podsName, name); x.GetState() != state {
			return fmt.Sprintf("index %s is %v, want %v", name, x, state)
		}
		return ""
	})
}

func (r *replica) byIndex(t testing.TB, index string, values ...string) []string {
	t.Helper()
	resp, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: podsName, Index: index, Values: values, View: indexv1.View_VIEW_KEYS})
	if err != nil {
		t.Fatalf("ByIndex %s %q: %v", index, values, err)
	}
	return keysOf(resp.GetObjects())
}

func TestIndexesAreDeclaredOnALiveFullStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	added := r.add(t, "pods",
		byField("by-phase", "status.phase"), byField("by-condition", "status.conditions[*].type"), byLabel("by-app", "app"),
		byOwner("by-controller", true), byCEL("by-ns-node", "object.metadata.namespace + '@' + object.spec.nodeName"))
	for i, name := range []string{"by-phase", "by-condition", "by-app", "by-controller", "by-ns-node"} {
		x := added[i]
		if x.GetName() != name || x.GetState() != ready || x.GetErrors() != 0 || x.GetCompleteFrom().GetEpoch() != w.w.Epoch() || x.GetCompleteFrom().GetResourceVersion() != strconv.Itoa(w.rv) || x.GetBuiltIn() || x.GetDefinition().GetName() != name {
			t.Errorf("index %d = %v, want %s, ready", i, x, name)
		}
	}
	if x := r.indexer(t, podsName, "by-condition"); x.GetValues() != 2 || x.GetEntries() != 8 || x.GetBytes() <= 0 || x.GetDescription() != "field status.conditions[].type" {
		t.Errorf("by-condition = %v, want 2 values and 8 entries", x)
	}
	all := list(t, r)
	if got := r.byIndex(t, "by-condition", "Ready"); !slices.Equal(got, all) {
		t.Errorf("by condition Ready = %q, want %q", got, all)
	}
	// What comes later is filed at once, and dead values vanish.
	w.put(t, pod("z/new", options{node: "n7", phase: "Odd", labels: "app=z", owner: "uid-z"}))
	w.caughtUp(t, r)
	for index, value := range map[string]string{"by-phase": "Odd", "by-app": "z", "by-controller": "uid-z", "by-ns-node": "z@n7"} {
		if got := r.byIndex(t, index, value); !slices.Equal(got, []string{"z/new"}) {
			t.Errorf("%s %s = %q, want the new pod", index, value, got)
		}
	}
	w.put(t, gone("z/new"))
	w.caughtUp(t, r)
	if x := r.byIndex(t, "by-phase", "Odd"); len(x) != 0 {
		t.Errorf("a deleted pod is found: %q", x)
	}
	values, err := r.ListIndexFuncValues(t.Context(), &indexv1.ListIndexFuncValuesRequest{Collection: podsName, Index: "by-phase", Prefix: "Odd"})
	if err != nil || len(values.GetValues()) != 0 {
		t.Errorf("a dead value shows: %v, %v", values, err)
	}
	// Its path is a field of selectors now, however it is written.
	resp, err := r.List(t.Context(), &indexv1.ListRequest{Collection: podsName, FieldSelector: "status.conditions[*].type=Init", View: indexv1.View_VIEW_KEYS})
	if err != nil || !slices.Equal(keysOf(resp.GetObjects()), all) {
		t.Errorf("by field selector = %q, %v, want %q", keysOf(resp.GetObjects()), err, all)
	}
	// Index by an example object that does not exist.
	like, err := r.Index(t.Context(), &indexv1.IndexRequest{Collection: podsName, Index: "by-condition", Object: []byte(`{"metadata":{"name":"x"},"status":{"conditions":[{"type":"Init"},{"type":"Other"}]}}`), View: indexv1.View_VIEW_KEYS})
	if err != nil || !slices.Equal(like.GetValues(), []string{"Init", "Other"}) || !slices.Equal(keysOf(like.GetObjects()), all) {
		t.Errorf("by example = %v, %v", like, err)
	}
}

func TestANameIsOneDefinition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, func(c *indexer.Config) { c.MaxIndexes = 4 })
	w.caughtUp(t, r)
	r.add(t, podsName, byField("a", "spec.nodeName"))
	r.add(t, "*/pods", byField("every", "spec.nodeName"))
	r.add(t, podsName, byField("a", "spec['nodeName']")) // the same again
	add := func(collection string, list ...*indexv1.IndexerDefinition) error {
		_, err := r.AddIndexers(t.Context(), &indexv1.AddIndexersRequest{Collection: collection, Indexers: list})
		return err
	}
	for name, run := range map[string]struct {
		err    error
		code   codes.Code
		reason string
		field  string
	}{
		"another definition":   {add(podsName, byField("b", "spec.x"), byLabel("a", "app")), codes.AlreadyExists, "INDEX_CONFLICT", ""},
		"for every cluster":    {add("*/pods.v1", byField("b", "spec.x"), byField("a", "spec.nodeName")), codes.AlreadyExists, "INDEX_CONFLICT", ""},
		"for this cluster":     {add(podsName, byField("every", "spec.nodeName")), codes.AlreadyExists, "INDEX_CONFLICT", ""},
		"a built-in name":      {add(podsName, byField("b", "spec.x"), byField("node", "spec.x")), codes.InvalidArgument, "INVALID_ARGUMENT", "indexers[1].name"},
		"built in everywhere":  {add("*/pods.v1", byField("owner", "spec.x")), codes.InvalidArgument, "INVALID_ARGUMENT", "indexers[0].name"},
		"twice in one request": {add(podsName, byField("b", "spec.x"), byField("b", "spec.y")), codes.InvalidArgument, "INVALID_ARGUMENT", "indexers[1].name"},
		"a map":                {add(podsName, byField("b", "spec.x"), byCEL("c", "{'a': 'b'}")), codes.InvalidArgument, "INVALID_ARGUMENT", "indexers[1].cel"},
		"does not compile":     {add(podsName, byCEL("c", "object.")), codes.InvalidArgument, "INVALID_ARGUMENT", "indexers[0].cel"},
		"too costly":           {add(podsName, byCEL("c", "object.a.map(a, object.b.map(b, object.c.map(c, a + b + c).join(',')).join(','))")), codes.InvalidArgument, "INVALID_ARGUMENT", "indexers[0].cel"},
		"path":                 {add(podsName, byField("c", "spec[")), codes.InvalidArgument, "INVALID_ARGUMENT", "indexers[0].field"},
		"no definitions":       {add(podsName), codes.InvalidArgument, "INVALID_ARGUMENT", "indexers"},
		"no collection":        {add("", byField("c", "spec.x")), codes.InvalidArgument, "INVALID_ARGUMENT", "collection"},
		"unknown collection":   {add("dev/things.v1", byField("c", "spec.x")), codes.NotFound, "COLLECTION_NOT_FOUND", ""},
		"no such resource":     {add("*/things", byField("c", "spec.x")), codes.NotFound, "COLLECTION_NOT_FOUND", ""},
		"too many":             {add(podsName, byField("b", "spec.b"), byField("c", "spec.c"), byField("d", "spec.d")), codes.ResourceExhausted, "TOO_MANY_INDEXES", ""},
		"too many everywhere":  {add("*/pods.v1", byField("b", "spec.b"), byField("c", "spec.c"), byField("d", "spec.d")), codes.ResourceExhausted, "TOO_MANY_INDEXES", ""},
	} {
		wantStatus(t, name, run.err, run.code, run.reason, run.field)
	}
	if r.indexer(t, podsName, "b") != nil || r.indexer(t, podsName, "c") != nil {
		t.Error("a refused request has added something")
	}
	remove := func(collection string, names ...string) error {
		_, err := r.RemoveIndexers(t.Context(), &indexv1.RemoveIndexersRequest{Collection: collection, Names: names})
		return err
	}
	wantStatus(t, "removing a built-in index", remove(podsName, "a", "node"), codes.InvalidArgument, "INVALID_ARGUMENT", "names[1]")
	wantStatus(t, "removing nothing", remove(podsName), codes.InvalidArgument, "INVALID_ARGUMENT", "names")
	err := remove(podsName, "a", "zz")
	if wantStatus(t, "removing an unknown one", err, codes.NotFound, "INDEX_NOT_FOUND", ""); !strings.Contains(err.Error(), "; there are: a") {
		t.Errorf("the error does not say which are declared: %v", err)
	}
	err = remove(podsName, "every")
	if wantStatus(t, "removing one of every cluster", err, codes.NotFound, "INDEX_NOT_FOUND", ""); !strings.Contains(err.Error(), "but for */pods.v1") {
		t.Errorf("the error does not say where it is declared: %v", err)
	}
	if got := r.byIndex(t, "a", "n1"); len(got) == 0 {
		t.Error("a refused removal has removed something")
	}
	if err := remove(podsName, "a"); err != nil {
		t.Fatal(err)
	}
	_, err = r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: podsName, Index: "a", Values: []string{"n1"}})
	wantStatus(t, "a removed index", err, codes.NotFound, "INDEX_NOT_FOUND", "")
	if err := remove("*/pods.v1", "every"); err != nil {
		t.Fatal(err)
	}
	r.add(t, podsName, byLabel("a", "app")) // the name is free again
	if got := r.byIndex(t, "a", "web"); len(got) == 0 {
		t.Error("the new definition of an old name finds nothing")
	}
}

func TestTheExpressionsOfACollectionAreBoundedTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	var list []*indexv1.IndexerDefinition
	for i := range 10 {
		list = append(list, dear(i))
	}
	r.add(t, podsName, list...)
	again := dear(3)
	again.Name = "the-same" // evaluated once
	r.add(t, podsName, again)
	for _, collection := range []string{podsName, "*/pods.v1"} {
		_, err := r.AddIndexers(t.Context(), &indexv1.AddIndexersRequest{Collection: collection, Indexers: []*indexv1.IndexerDefinition{byField("x", "spec.x"), dear(10)}})
		if wantStatus(t, collection, err, codes.ResourceExhausted, "TOO_MANY_INDEXES", ""); err == nil || !strings.Contains(err.Error(), "may cost 55000 for one object, at most 50000") {
			t.Errorf("%s: %v, want what they cost", collection, err)
		}
	}
	r.add(t, podsName, byField("x", "spec.x"))
}

func TestDefinitionsAreTheSameOnAllReplicasAndAfterRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	a, b := w.index(t, nil), w.index(t, nil)
	w.caughtUp(t, a)
	w.caughtUp(t, b)
	a.add(t, "*/pods.v1", byField("by-phase", "status.phase"))
	a.add(t, "*/widgets.v1.example.com", byField("by-size", "spec.size")) // nobody has it yet
	b.awaitIndexer(t, "by-phase", ready)
	want := a.byIndex(t, "by-phase", "Running")
	if got := b.byIndex(t, "by-phase", "Running"); !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("another replica answers %q, want %q", got, want)
	}
	a.stop()
	b.stop()
	c := w.index(t, nil)
	eventually(t, func() string {
		resp, err := c.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: podsName, Index: "by-phase", Values: []string{"Running"}})
		if rpc.Reason(err) == "INDEX_NOT_FOUND" {
			t.Fatalf("after a restart: %v", err)
		}
		if err != nil {
			return err.Error()
		}
		if !slices.Equal(keysOf(resp.GetObjects()), want) {
			t.Fatalf("after a restart = %q, want %q", keysOf(resp.GetObjects()), want)
		}
		return ""
	})
	// A cluster that comes later has it too.
	other := delta.Collection{Cluster: "other", Version: "v1", Resource: "pods"}
	writer := w.lead(t, other, false)
	write(t, writer, w.stamp([]delta.Record{pod("o/p", options{phase: "Running"})})...)
	write(t, writer, delta.Record{Kind: delta.KindSynced, RV: "1000", Watermark: "1000"})
	eventually(t, func() string {
		resp, err := c.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: "other/pods.v1", Index: "by-phase", Values: []string{"Running"}})
		if err != nil || len(resp.GetObjects()) != 1 {
			return fmt.Sprint("the new cluster: ", resp, err)
		}
		return ""
	})
	if _, err := c.RemoveIndexers(t.Context(), &indexv1.RemoveIndexersRequest{Collection: "*/pods.v1", Names: []string{"by-phase"}}); err != nil {
		t.Fatal(err)
	}
	_, err := c.IndexKeys(t.Context(), &indexv1.IndexKeysRequest{Collection: "other/pods.v1", Index: "by-phase", Value: "Running"})
	wantStatus(t, "after the removal", err, codes.NotFound, "INDEX_NOT_FOUND", "")
}

func TestOfCallersThatDeclareAtOnceOneWins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	replicas := []*replica{w.index(t, nil), w.index(t, nil)}
	for _, r := range replicas {
		w.caughtUp(t, r)
	}
	const callers = 12
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			collection := podsName
			if i%3 == 0 {
				collection = "*/pods.v1"
			}
			_, errs[i] = replicas[i%2].AddIndexers(t.Context(), &indexv1.AddIndexersRequest{
				Collection: collection, Indexers: []*indexv1.IndexerDefinition{byField("mine", fmt.Sprintf("spec.path-%d", i)), byField(fmt.Sprint("own-", i), "spec.x")},
			})
		})
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won >= 0:
			t.Errorf("callers %d and %d both have the name", won, i)
		case err == nil:
			won = i
		default:
			wantStatus(t, fmt.Sprint("caller ", i), err, codes.AlreadyExists, "INDEX_CONFLICT", "")
		}
	}
	if won < 0 {
		t.Fatal("nobody has the name")
	}
	for _, r := range replicas {
		eventually(t, func() string {
			if got := r.indexer(t, podsName, "mine").GetDescription(); got != fmt.Sprintf("field spec.path-%d", won) {
				return fmt.Sprintf("the name is %q, want caller %d's", got, won)
			}
			return ""
		})
		for i := range callers {
			if has := r.indexer(t, podsName, fmt.Sprint("own-", i)) != nil; has != (i == won) {
				t.Errorf("caller %d has an index: %v, but %d won", i, has, won)
			}
		}
	}
}

func TestAnObjectOnWhichAnExpressionFailsIsNotInItsIndexUntilItIsRepaired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	bad := pod("b/bad", options{node: "n1"})
	bad.Payload = []byte(`{"metadata":{"name":"bad","namespace":"b","resourceVersion":"RV"},"spec":{"nodeName":"n1"},"status":"odd"}`)
	w.put(t, bad)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	added := r.add(t, podsName, byCEL("strict", "object.status.phase"), byCEL("lenient", "object.?status.?phase.orValue('none')"), byField("path", "status.phase.x"), byField("phase", "status.phase"))
	for i, failed := range []int64{1, 0, 5, 1} {
		x := added[i]
		if x.GetErrors() != failed || x.GetState() != ready || (failed > 0) != strings.Contains(x.GetLastError(), "/") || len(x.GetUnindexedKeys()) != int(failed) {
			t.Errorf("%s = %v, want %d errors", x.GetName(), x, failed)
		}
	}
	if got := r.byIndex(t, "lenient", "none"); !slices.Equal(got, []string{"b/bad"}) {
		t.Errorf("an expression that provides for what is not there = %q", got)
	}
	if got := r.byIndex(t, "strict", "Running"); !slices.Equal(got, []string{"a/one", "b/one"}) {
		t.Errorf("the others = %q", got)
	}
	_, err := r.ByIndex(t.Context(), &indexv1.ByIndexRequest{Collection: podsName, Index: "strict", Values: []string{"Running"}, Strict: true})
	wantStatus(t, "a strict read of the index", err, codes.FailedPrecondition, "INDEX_FAILED", "")
	_, err = r.List(t.Context(), &indexv1.ListRequest{Collection: podsName, FieldSelector: "status.phase=Running", Strict: true})
	wantStatus(t, "a strict selector on a field that cannot be told of some objects", err, codes.FailedPrecondition, "INDEX_FAILED", "")
	if got := r.byIndex(t, "node", "n1"); !slices.Contains(got, "b/bad") {
		t.Errorf("everything else goes on: node n1 = %q", got)
	}
	w.put(t, pod("b/bad", options{node: "n1", phase: "Mended"}))
	w.caughtUp(t, r)
	for _, index := range []string{"strict", "lenient", "phase"} {
		if got := r.byIndex(t, index, "Mended"); !slices.Equal(got, []string{"b/bad"}) {
			t.Errorf("after the repair, %s = %q", index, got)
		}
	}
	if x := r.indexer(t, podsName, "strict"); x.GetState() != ready || x.GetLastError() != "" {
		t.Errorf("after the repair: %v", x)
	}
}

func TestDeclaredIndexesGoOnWhileTheLogIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	conn := w.connect(t)
	r := w.indexOn(t, conn, nil, io.Discard)
	w.caughtUp(t, r)
	r.add(t, podsName, byField("by-phase", "status.phase"))
	conn.Close()
	if got := r.byIndex(t, "by-phase", "Running"); len(got) == 0 {
		t.Error("a declared index does not answer while the log is away")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := r.AddIndexers(ctx, &indexv1.AddIndexersRequest{Collection: podsName, Indexers: []*indexv1.IndexerDefinition{byField("x", "spec.x")}})
	wantStatus(t, "AddIndexers without the log", err, codes.Unavailable, "DEFINITIONS_UNAVAILABLE", "")
	_, err = r.RemoveIndexers(ctx, &indexv1.RemoveIndexersRequest{Collection: podsName, Names: []string{"by-phase"}})
	wantStatus(t, "RemoveIndexers without the log", err, codes.Unavailable, "DEFINITIONS_UNAVAILABLE", "")
}

func TestAStoredDefinitionThatCannotBeUsedIsAnErrorOnThatIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	bucket, err := w.conn.Bucket(t.Context(), "deltaplane-indexes", 0)
	if err != nil {
		t.Fatal(err)
	}
	set := `{"version":1,"indexers":[
		{"cluster":"*","definition":{"name":"good","field":"status.phase"}},
		{"cluster":"dev","definition":{"name":"newer","vector":"spec.x"}},
		{"cluster":"dev","definition":{"name":"broken","cel":"object."}},
		{"cluster":"dev","definition":{"name":"node","field":"spec.x"}},
		{"cluster":"elsewhere","definition":{"name":"other","field":"spec.x"}}]}`
	if _, err := bucket.Put(t.Context(), "pods.v1", []byte(set)); err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Put(t.Context(), "jobs.v1.batch", []byte("no set")); err != nil {
		t.Fatal(err)
	}
	r := w.index(t, nil)
	w.caughtUp(t, r)
	r.awaitIndexer(t, "good", ready)
	for _, name := range []string{"newer", "broken"} {
		if x := r.indexer(t, podsName, name); x.GetState() != indexv1.IndexerState_INDEXER_STATE_FAILED || x.GetLastError() == "" {
			t.Errorf("%s = %v, want a failed index", name, x)
		}
		_, err := r.IndexKeys(t.Context(), &indexv1.IndexKeysRequest{Collection: podsName, Index: name, Value: "v"})
		wantStatus(t, name, err, codes.FailedPrecondition, "INDEX_FAILED", "")
	}
	if got := r.byIndex(t, "node", "n1"); len(got) == 0 {
		t.Error("a stored definition has taken a built-in name")
	}
	if r.indexer(t, podsName, "other") != nil {
		t.Error("the index of another cluster is there")
	}
	r.add(t, podsName, byField("mine", "spec.nodeName"))
	e, err := bucket.Get(t.Context(), "pods.v1")
	if err != nil || !json.Valid(e.Value) || !strings.Contains(string(e.Value), `"vector":"spec.x"`) {
		t.Errorf("a definition of a newer version was lost: %s, %v", e.Value, err)
	}
	if _, err := bucket.Put(t.Context(), "pods.v1", []byte("garbage")); err != nil {
		t.Fatal(err)
	}
	_, err = r.AddIndexers(t.Context(), &indexv1.AddIndexersRequest{Collection: podsName, Indexers: []*indexv1.IndexerDefinition{byField("x", "spec.x")}})
	wantStatus(t, "a set that cannot be read", err, codes.Unavailable, "DEFINITIONS_UNAVAILABLE", "")
	if got := r.byIndex(t, "mine", "n1"); len(got) == 0 {
		t.Error("a set that cannot be read took away what was there")
	}
}

// TestADeclaredIndexEqualsAScanWhileAWriterChurns declares indexes on many
// objects that change meanwhile, and compares them with every object's bytes.
func TestADeclaredIndexEqualsAScanWhileAWriterChurns(t *testing.T) {
	t.Parallel()
	for _, tier := range []indexer.Tier{indexer.TierRaw, indexer.TierCompact} {
		t.Run(string(tier), func(t *testing.T) {
			t.Parallel()
			churn(t, tier)
		})
	}
}

func churn(t *testing.T, tier indexer.Tier) {
	t.Helper()
	n := 8000
	if testing.Short() || tier == indexer.TierCompact {
		n = 3000
	}
	w := newWorld(t)
	var records []delta.Record
	rnd := rand.New(rand.NewPCG(1, 2))
	random := func(i int) delta.Record {
		return pod(fmt.Sprintf("ns-%d/pod-%d", i%20, i), options{node: fmt.Sprint("n", rnd.IntN(50)), phase: fmt.Sprint("P", rnd.IntN(5)), labels: fmt.Sprintf("app=a%d", rnd.IntN(9))})
	}
	for i := range n {
		records = append(records, random(i))
	}
	w.start(t, records...)
	r := w.index(t, func(c *indexer.Config) { c.Tier = tier })
	w.caughtUp(t, r)
	full := w.rv
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			var batch []delta.Record
			for range 50 {
				i := rnd.IntN(n + 500)
				if rnd.IntN(6) == 0 {
					batch = append(batch, gone(fmt.Sprintf("ns-%d/pod-%d", i%20, i)))
				} else {
					batch = append(batch, random(i))
				}
			}
			w.put(t, batch...)
		}
	}()
	first := r.add(t, podsName, byField("node-path", "spec.nodeName"), byCEL("phase-app", "object.status.phase + '/' + object.metadata.labels.app"))
	second := r.add(t, "*/pods.v1", byLabel("app", "app"), byField("conditions", "status.conditions[].type"))
	close(stop)
	<-done
	for _, x := range append(first, second...) {
		if x.GetState() != ready || x.GetErrors() != 0 {
			t.Errorf("%v, want it ready", x)
		}
		from, err := strconv.Atoi(x.GetCompleteFrom().GetResourceVersion())
		if err != nil || from < full || from > w.rv || x.GetCompleteFrom().GetEpoch() != w.w.Epoch() {
			t.Errorf("%s is complete from %v, want a revision of while it was declared, %d to %d", x.GetName(), x.GetCompleteFrom(), full, w.rv)
		}
	}
	w.caughtUp(t, r)
	want := map[string]map[string][]string{}
	note := func(index, value, key string) {
		if want[index] == nil {
			want[index] = map[string][]string{}
		}
		want[index][value] = append(want[index][value], key)
	}
	for token := ""; ; {
		page, err := r.List(t.Context(), &indexv1.ListRequest{Collection: podsName, PageSize: 5000, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.GetObjects() {
			var p struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct{ NodeName string }
				Status   struct {
					Phase      string
					Conditions []struct{ Type string }
				}
			}
			if err := json.Unmarshal(o.GetPayload(), &p); err != nil {
				t.Fatal(err)
			}
			note("node-path", p.Spec.NodeName, o.GetKey())
			note("phase-app", p.Status.Phase+"/"+p.Metadata.Labels["app"], o.GetKey())
			note("app", p.Metadata.Labels["app"], o.GetKey())
			for _, c := range p.Status.Conditions {
				note("conditions", c.Type, o.GetKey())
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	for index, values := range want {
		if got := r.indexer(t, podsName, index).GetValues(); got != int64(len(values)) {
			t.Errorf("%s has %d values, want %d", index, got, len(values))
		}
		for value, keys := range values {
			got, err := r.IndexKeys(t.Context(), &indexv1.IndexKeysRequest{Collection: podsName, Index: index, Value: value})
			if err != nil || !slices.Equal(got.GetKeys(), keys) {
				t.Fatalf("%s %s: %d keys, %v, want %d", index, value, len(got.GetKeys()), err, len(keys))
			}
		}
	}
}
