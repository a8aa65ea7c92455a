package reflector_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// Closes in good order are no failures, and counted all the same.
func TestEndsOfWatchesAreCountedByReason(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	a.onWatch = func(n int, _ url.Values, w *wire) {
		switch n {
		case 1, 2:
			w.send(bookmark(10 + n))
		case 3:
			w.send()
		case 4:
			w.send(bookmark(14), errorEvent(410, "Expired"))
		case 5:
			w.send(bookmark(15))
			panic(http.ErrAbortHandler)
		default:
			w.send(event("DELETED", object("a", 20)))
			w.hold()
		}
	}
	svc, tel, stop := startSeen(t, quick(), clientOf(t, a.URL), embeddedtest.NATS(t).URL(), logs(t))
	r := reflection(t, dial(t, svc), "pods", "the sixth watch", func(r *reflectorv1.Reflection) bool {
		return r.GetWatches() == 6 && r.GetRevision().GetResourceVersion() == "20"
	})
	if r.GetTombstones() != 1 || r.GetObjects() != 0 {
		t.Errorf("%d tombstones, %d objects after a deletion", r.GetTombstones(), r.GetObjects())
	}
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "deltaplane_reflector_watch_ends_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "reason" {
					got[l.GetValue()] = value(m)
				}
			}
		}
	}
	if diff := cmp.Diff(map[string]float64{"CLOSED": 2, "SHORT_WATCH": 1, "EXPIRED": 1, "UNREACHABLE": 1}, got); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
	stop()
}
