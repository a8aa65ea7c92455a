package indexer_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// ended is the deletion of a pod as the watch told it, with its last status.
func ended(key string, reason delta.DeleteReason) delta.Record {
	r := pod(key, options{node: "n1", phase: "Final"})
	r.Type, r.DeleteReason = delta.Deleted, reason
	return r
}

// deletion reads up to the next deletion.
func (v *viewer) deletion(t *testing.T) *indexv1.Event {
	t.Helper()
	for {
		resp, err := v.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.GetEvents().GetEvents() {
			if e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED {
				return e
			}
		}
	}
}

func TestADeletionCarriesTheObjectAsItWasDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("a/one", options{phase: "Running"}), pod("a/two", options{phase: "Running"}), pod("a/three", options{phase: "Running"}), pod("a/four", options{phase: "Running"}))
	r := w.index(t, nil)
	w.caughtUp(t, r)
	full := watch(t, r, &indexv1.WatchRequest{})
	full.expect(t, "+a/four", "+a/one", "+a/three", "+a/two", "end")
	begin := full.at
	metadata := watch(t, r, &indexv1.WatchRequest{View: indexv1.View_VIEW_METADATA})
	keys := watch(t, r, &indexv1.WatchRequest{View: indexv1.View_VIEW_KEYS})
	byPhase := watch(t, r, &indexv1.WatchRequest{FieldSelector: "status.phase=Running"})
	for _, v := range []*viewer{metadata, keys, byPhase} {
		v.expect(t, "+a/four", "+a/one", "+a/three", "+a/two", "end")
	}
	known := func(what string, e *indexv1.Event, part string, not string) {
		t.Helper()
		o := e.GetObject()
		if o.GetKey() != "a/one" || o.GetUid() != "uid-a/one" || o.GetResourceVersion() != strconv.Itoa(w.rv) || e.GetFinalStateUnknown() ||
			!strings.Contains(string(o.GetPayload()), part) || not != "" && strings.Contains(string(o.GetPayload()), not) ||
			e.GetDeleteReason() != deltav1.DeleteReason_DELETE_REASON_OBSERVED {
			t.Errorf("%s: %v, want a/one as it was deleted at %d", what, e, w.rv)
		}
	}
	w.put(t, ended("a/one", delta.Observed))
	known("full", full.deletion(t), `"phase":"Final"`, "")
	known("metadata", metadata.deletion(t), `"name":"one"`, "Final")
	e := keys.deletion(t)
	known("keys", e, "", "")
	if len(e.GetObject().GetPayload()) > 0 {
		t.Errorf("a view of keys tells %s", e.GetObject().GetPayload())
	}
	known("of what it was chosen by", byPhase.deletion(t), `"phase":"Final"`, "")
	late := watch(t, r, &indexv1.WatchRequest{Resume: begin})
	known("resumed", late.deletion(t), `"phase":"Final"`, "")

	unknown := func(what string, e *indexv1.Event, key string) {
		t.Helper()
		o := e.GetObject()
		if o.GetKey() != key || !e.GetFinalStateUnknown() || len(o.GetPayload()) > 0 || o.GetResourceVersion() != strconv.Itoa(w.rv) || o.GetUid() == "" {
			t.Errorf("%s: %v, want %s without its final state", what, e, key)
		}
	}
	two := gone("a/two")
	two.UID = "uid-a/two"
	w.put(t, two)
	unknown("dropped by the stage", full.deletion(t), "a/two")
	w.put(t, ended("a/three", delta.Inferred))
	unknown("inferred by a list", full.deletion(t), "a/three")
	damaged := ended("a/four", delta.Observed)
	damaged.Payload = []byte(`{"metadata":{"name":"other","namespace":"a"}}`)
	w.put(t, damaged)
	unknown("of another object", full.deletion(t), "a/four")
}

// A tombstone keeps no object: a reader from before the ring learns key and version only.
func TestAReaderBehindTheRingLearnsOfDeletionsWithoutTheirObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("a/one", options{}))
	r := w.index(t, func(c *indexer.Config) { c.RingChanges = 8 })
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{})
	v.expect(t, "+a/one", "end")
	begin := v.at
	w.put(t, ended("a/one", delta.Observed))
	at := strconv.Itoa(w.rv)
	w.put(t, many(0, 20, 10)...)
	w.caughtUp(t, r)
	e := watch(t, r, &indexv1.WatchRequest{Resume: begin}).deletion(t)
	if o := e.GetObject(); o.GetKey() != "a/one" || o.GetResourceVersion() != at || len(o.GetPayload()) > 0 || !e.GetFinalStateUnknown() {
		t.Errorf("told %v, want a/one gone at %s and nothing of what it was like", e, at)
	}
}

// An object that leaves a selection lives: nothing is said of a final state.
func TestWhatLeavesASelectionHasNoFinalState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("a/one", options{labels: "app=web"}))
	r := w.index(t, nil)
	w.caughtUp(t, r)
	v := watch(t, r, &indexv1.WatchRequest{LabelSelector: "app=web"})
	v.expect(t, "+a/one", "end")
	w.put(t, pod("a/one", options{labels: "app=db"}))
	if e := v.deletion(t); e.GetFinalStateUnknown() || len(e.GetObject().GetPayload()) > 0 || e.GetDeleteReason() != deltav1.DeleteReason_DELETE_REASON_FILTERED {
		t.Errorf("told %v", e)
	}
}
