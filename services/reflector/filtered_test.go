package reflector_test

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// labelled is [quick] with a label selector.
func labelled() reflector.Config {
	cfg := quick()
	cfg.Resources[0].Scope.LabelSelector = "app=x"
	return cfg
}

func TestADepartureFromTheSelectorIsToldFromADeletion(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) {
		return 200, list("10", "", item("left", 1), item("dead", 2), item("recreated", 3), item("secret", 4))
	}
	a.onGet = func(_ int, key string, q url.Values) (int, string) {
		if q.Get("resourceVersion") == "" {
			t.Errorf("%s is asked for without a version", key)
		}
		switch key {
		case "default/left":
			return 200, object("left", 11)
		case "default/recreated": // made again with the name, and not selected
			return 200, strings.Replace(object("recreated", 14), "uid-recreated", "uid-other", 1)
		case "default/secret":
			return 403, status(403, "Forbidden", "pods may not be read")
		}
		return 404, status(404, "NotFound", "no such pod")
	}
	a.onWatch = func(_ int, _ url.Values, w *wire) {
		w.send(event("DELETED", object("left", 11)), event("DELETED", object("dead", 12)), event("DELETED", object("recreated", 13)), bookmark(15))
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	_, tel, _ := startSeen(t, labelled(), clientOf(t, a.URL), nats, logs(t))
	m := follow(t, nats, pods)
	m.until(t, "the bookmark behind", func() bool { return m.revision().RV == "15" })
	for key, want := range map[delta.Key]delta.DeleteReason{
		"default/left": delta.FilteredOut, "default/dead": delta.Observed, "default/recreated": delta.Observed,
	} {
		if r, _ := m.get(key); !r.Tombstone() || r.DeleteReason != want || r.Payload == nil {
			t.Errorf("%s: %v %q, want a tombstone with its last state and %q", key, r.Type, r.DeleteReason, want)
		}
	}
	want := map[string]float64{"left": 1, "deleted": 2}
	if diff := cmp.Diff(want, counted(t, tel.Registry, "deltaplane_reflector_departures_total")); diff != "" {
		t.Errorf("departures by answer (-want +got):\n%s", diff)
	}
}

func TestAnOpenQuestionHoldsBackItsKeyAndTheWatermarkOnly(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1), item("b", 2)) }
	answer := make(chan struct{})
	a.onGet = func(int, string, url.Values) (int, string) {
		a.wait(answer)
		return 200, object("a", 11)
	}
	a.onWatch = func(_ int, _ url.Values, w *wire) {
		w.send(event("DELETED", object("a", 11)), event("MODIFIED", object("b", 12)), bookmark(20))
		w.hold()
	}
	m := mirrored(t, a, labelled())
	m.until(t, "the other key", func() bool { return m.live()["default/b"] == "12" })
	if r, _ := m.get("default/a"); r.Tombstone() && r.DeleteReason != delta.Observed || delta.Compare(m.revision().RV, "11") >= 0 && !r.Tombstone() {
		t.Errorf("at %v: %+v; want no claim that the deletion is in the log", m.revision(), r)
	}
	close(answer)
	m.until(t, "the answer", func() bool { return m.revision().RV == "20" })
	if r, _ := m.get("default/a"); !r.Tombstone() {
		t.Errorf("%+v, want a tombstone", r)
	}
}

func TestWhatFollowsAnswersTheQuestion(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("back", 1), item("other", 2)) }
	hang := make(chan struct{})
	a.onGet = func(int, string, url.Values) (int, string) { a.wait(hang); return 500, "" }
	a.onWatch = func(_ int, _ url.Values, w *wire) {
		w.send(
			event("DELETED", object("back", 11)), event("ADDED", object("back", 12)),
			event("DELETED", object("other", 13)), event("ADDED", strings.Replace(object("other", 14), "uid-other", "uid-new", 1)),
		)
		w.hold()
	}
	m := mirrored(t, a, labelled())
	m.until(t, "both again", func() bool { return m.revision().RV == "14" })
	live := m.live()
	if live["default/back"] != "12" || live["default/other"] != "14" {
		t.Errorf("%v, want the later state of each key", live)
	}
	for _, r := range m.kinds(delta.KindDelta) {
		want := delta.FilteredOut
		if r.Key == "default/other" {
			want = delta.Observed
		}
		if r.Tombstone() && r.DeleteReason != want {
			t.Errorf("%s is %q, want %q: what came next says so", r.Key, r.DeleteReason, want)
		}
	}
}

func TestWithoutAnAnswerADeletionIsObserved(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", items(3, 1)...) }
	hang := make(chan struct{})
	a.onGet = func(n int, _ string, _ url.Values) (int, string) {
		if n == 1 {
			a.wait(hang) // nobody answers in time
		}
		return 403, status(403, "Forbidden", "pods may not be read")
	}
	steps := a.stepped()
	nats := embeddedtest.NATS(t).URL()
	_, tel, _ := startSeen(t, labelled(), clientOf(t, a.URL), nats, logs(t))
	m := follow(t, nats, pods)
	for i := range 3 {
		rv := strconv.Itoa(20 + i)
		steps <- event("DELETED", object("p"+strconv.Itoa(i), 20+i))
		m.until(t, rv, func() bool { return m.revision().RV == rv })
		if r, _ := m.get(delta.Key("default/p" + strconv.Itoa(i))); r.DeleteReason != delta.Observed {
			t.Errorf("%s is %q, want what the API server said", r.Key, r.DeleteReason)
		}
	}
	if n := len(a.of(asked)); n != 2 {
		t.Errorf("%d lookups; want none after the answer that none are allowed", n)
	}
	want := map[string]float64{"none": 1, "forbidden": 2}
	if diff := cmp.Diff(want, counted(t, tel.Registry, "deltaplane_reflector_departures_total")); diff != "" {
		t.Errorf("departures by answer (-want +got):\n%s", diff)
	}
}

func TestAListWaitsForTheQuestionsAndNothingIsAskedWithoutASelector(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) { return 200, list(strconv.Itoa(20*n), "", item("a", 20*n)) }
	var answered atomic.Bool
	a.onGet = func(int, string, url.Values) (int, string) {
		answered.Store(true)
		return 404, status(404, "NotFound", "no such pod")
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(event("DELETED", object("a", 21)), errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	m := mirrored(t, a, labelled())
	m.until(t, "the pod of the second list", func() bool { return m.revision().RV == "40" })
	if live := m.live(); live["default/a"] != "40" || !answered.Load() {
		t.Errorf("%v, want the list behind the deletion", live)
	}
	for _, scope := range []func(*reflector.Config){
		func(*reflector.Config) {},
		func(c *reflector.Config) { c.Resources[0].Scope.FieldSelector = "metadata.name=a" },
	} {
		b := newAPI(t)
		b.onList = a.onList
		b.onWatch = func(_ int, _ url.Values, w *wire) { w.send(event("DELETED", object("a", 21))); w.hold() }
		cfg := quick()
		scope(&cfg)
		svc, _ := start(t, cfg, b.URL, embeddedtest.NATS(t).URL())
		reflection(t, dial(t, svc), "pods", "the deletion", func(r *reflectorv1.Reflection) bool { return r.GetRevision().GetResourceVersion() == "21" })
		if n := len(b.of(asked)); n != 0 {
			t.Errorf("%d lookups, want none: no object can leave", n)
		}
	}
}

// TestAStreamingStartPublishesAKeyBehindItsPendingDeletion: a deletion before the end of the
// initial state is held back until it is known what it means. What the source tells of the key
// next, in the same stream or in a list that stands in for it, must not overtake the deletion in
// the log.
func TestAStreamingStartPublishesAKeyBehindItsPendingDeletion(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]struct {
		rest  []string
		lists bool
	}{
		"in the stream":         {rest: []string{event("ADDED", object("a", 12)), initialEnd(13), bookmark(20)}},
		"behind the stream":     {rest: []string{initialEnd(11), event("ADDED", object("a", 12)), bookmark(20)}},
		"in the list behind it": {rest: []string{`{"type":"ADDED","object":{"metadata":{"name":"b"`}, lists: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t)
			a.onStream = func(_ int, _ url.Values, w *wire) {
				w.send(append([]string{event("ADDED", object("a", 1)), event("DELETED", object("a", 11))}, script.rest...)...)
				if !script.lists {
					w.hold()
				}
			}
			a.onList = func(int, url.Values) (int, string) { return 200, list("13", "", item("a", 12)) }
			a.onWatch = func(_ int, _ url.Values, w *wire) { w.send(bookmark(20)); w.hold() }
			a.onGet = func(int, string, url.Values) (int, string) {
				select { // long enough for what must not overtake
				case <-time.After(300 * time.Millisecond):
				case <-a.closing:
				}
				return 404, status(404, "NotFound", "no such pod")
			}
			cfg := streaming()
			cfg.Resources[0].Scope.LabelSelector = "app=x"
			m := mirrored(t, a, cfg)
			m.until(t, "the bookmark, which the watermark reaches behind the answer", func() bool { return m.revision().RV == "20" })
			var told []string
			for _, r := range m.kinds(delta.KindDelta) {
				told = append(told, r.RV)
			}
			if !slices.IsSortedFunc(told, delta.Compare) || told[len(told)-1] != "12" {
				t.Errorf("the log tells %v of one key, want the source's order", told)
			}
			if n := len(a.of(listed)); (n > 0) != script.lists {
				t.Errorf("%d lists", n)
			}
		})
	}
}
