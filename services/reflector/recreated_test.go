package reflector_test

import (
	"net/url"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// TestAStandbyThatRecreatesALostLogStartsEmpty: the log goes away together with its leader. What
// the standby has read is of the log that was, and says nothing about what the new one holds: it
// must list, and publish all of it before the synced record.
func TestAStandbyThatRecreatesALostLogStartsEmpty(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1), item("b", 2)) }
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Holder = "one"
	first, stop := start(t, cfg, a.URL, nats)
	reflection(t, dial(t, first), "pods", "the first leads", watching)
	cfg.Holder = "two"
	second, _ := start(t, cfg, a.URL, nats)
	c := dial(t, second)
	reflection(t, c, "pods", "the second has read so much that a new log ends before it", func(r *reflectorv1.Reflection) bool {
		return standingBy(r) && r.GetObjects() == 2 && r.GetShadowRevision().GetResourceVersion() == "10"
	})
	js := operator(t, nats)
	if err := js.DeleteStream(t.Context(), pods.StreamName()); err != nil {
		t.Fatal(err)
	}
	stop()
	reflection(t, c, "pods", "the second leads", watching)
	m := follow(t, nats, pods)
	m.until(t, "sync", m.readable)
	if live := m.live(); len(live) != 2 {
		t.Errorf("the log recreated was said to be complete with %v, want both objects", live)
	}
}

// TestARestoredScopeBringsBackWhatAListMissed: an object leaves the narrow form while nobody
// watches, so that a list infers its deletion. It lives, and is older than its tombstone, when the
// wide form comes back.
func TestARestoredScopeBringsBackWhatAListMissed(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "", item("in", 1), item("out", 2))
		}
		return 200, list("20", "", item("in", 1))
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		if n == 1 {
			w.send(errorEvent(410, "Expired"))
			return
		}
		w.send()
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	narrow := quick()
	narrow.Resources[0].Scope = kube.Scope{LabelSelector: "app=in"}
	_, stop := start(t, narrow, a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "the inferred deletion", func() bool { return len(m.live()) == 1 && m.revision().RV == "20" })
	stop()
	a.set(func(a *api) {
		a.onList = func(int, url.Values) (int, string) { return 200, list("30", "", item("in", 1), item("out", 15)) }
	})
	start(t, quick(), a.URL, nats)
	m.until(t, "the wide form's list", func() bool { return m.revision().RV == "30" })
	if live := m.live(); len(live) != 2 {
		t.Errorf("%v, want both objects", live)
	}
}

// TestATrimHiddenByTombstonesIsDetectedByTheNextLeader: a tombstone counts like a key, so the
// leader does not see at once that a key was taken away. A successor that reads the log does not
// know the key, and would never miss it. The log says how many keys live. What was deleted at the
// source meanwhile is gone for readers, too.
func TestATrimHiddenByTombstonesIsDetectedByTheNextLeader(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "", item("kept", 1), item("lost", 2), item("went", 3), item("x", 4), item("y", 5))
		}
		return 200, list("20", "", item("kept", 1), item("lost", 2))
	}
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send()
		if n == 1 {
			w.send(event("DELETED", object("x", 11)))
			w.send(event("DELETED", object("y", 12)))
		}
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	first, stop := start(t, quick(), a.URL, nats)
	reflection(t, dial(t, first), "pods", "the first leads", watching)
	m := follow(t, nats, pods)
	m.until(t, "the tombstones", func() bool { return m.readable() && len(m.live()) == 3 && m.revision().RV == "12" })
	was := m.revision().Epoch
	log, err := operator(t, nats).Stream(t.Context(), pods.StreamName())
	for _, key := range []delta.Key{"default/lost", "default/went"} {
		if err == nil {
			err = log.Purge(t.Context(), jetstream.WithPurgeSubject(pods.Subject(key)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	stop()
	second, stopSecond := start(t, quick(), a.URL, nats)
	m.until(t, "the epoch of the second", func() bool { return m.readable() && m.revision().Epoch > was && m.revision().RV == "20" })
	late := follow(t, nats, pods)
	for who, m := range map[string]*mirror{"who was there": m, "a new reader": late} {
		m.until(t, who, func() bool { return m.readable() && m.revision().RV == "20" })
		if live := m.live(); len(live) != 2 || live["default/lost"] == "" {
			t.Errorf("%s has %v, want both that live", who, live)
		}
	}
	reflection(t, dial(t, second), "pods", "the second watches", watching)
	whole := m.revision().Epoch
	stopSecond()
	third, _ := start(t, quick(), a.URL, nats)
	reflection(t, dial(t, third), "pods", "the third goes on from a whole log", func(r *reflectorv1.Reflection) bool {
		return watching(r) && r.GetRevision().GetEpoch() == whole && r.GetRelists() == 0
	})
}

// The versions of the second cluster are higher, so that its watches would be answered as those of
// the first: its objects would join what the first one has left.
func TestAnotherClusterUnderTheSameNameBeginsANewEpoch(t *testing.T) {
	t.Parallel()
	for name, running := range map[string]bool{"while the reflector runs": true, "between two runs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t)
			a.cluster = "first"
			a.onList = func(int, url.Values) (int, string) { return 200, list("100", "", item("a", 1), item("b", 2)) }
			nats := embeddedtest.NATS(t).URL()
			_, stop := start(t, quick(), a.URL, nats)
			m := follow(t, nats, pods)
			m.until(t, "the first cluster", func() bool { return m.readable() && len(m.live()) == 2 })
			a.nth(t, watched, 1)
			epoch := m.revision().Epoch
			if !running {
				stop()
			}
			a.set(func(a *api) {
				a.cluster = "second"
				a.onList = func(int, url.Values) (int, string) { return 200, list("900", "", item("c", 800)) }
			})
			if running {
				a.CloseClientConnections()
			} else {
				start(t, quick(), a.URL, nats)
			}
			m.until(t, "the second cluster alone", func() bool {
				_, is := m.live()["default/c"]
				return is && len(m.live()) == 1 && m.revision().Epoch > epoch
			})
		})
	}
}

// Which cluster it is may become known in the middle of a term, such as when a right is granted.
func TestALogSaysWhichClusterItIsOfOnceThatIsKnown(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.cluster = forbidden
	a.onList = func(int, url.Values) (int, string) { return 200, list("100", "", item("a", 1)) }
	nats := embeddedtest.NATS(t).URL()
	_, stop := start(t, quick(), a.URL, nats)
	m := follow(t, nats, pods)
	m.until(t, "the cluster", func() bool { return m.readable() && len(m.live()) == 1 })
	a.nth(t, watched, 1)
	before := m.revision().Epoch
	a.set(func(a *api) { a.cluster = "first" })
	a.CloseClientConnections()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, "the log names the cluster", func() bool {
		tail, err := conn.Tail(t.Context(), pods)
		return err == nil && tail.Source == "first" && tail.Epoch == before
	})
	stop()
	a.set(func(a *api) {
		a.cluster = "second"
		a.onList = func(int, url.Values) (int, string) { return 200, list("900", "", item("c", 800)) }
	})
	start(t, quick(), a.URL, nats)
	m.until(t, "the second cluster alone", func() bool {
		_, is := m.live()["default/c"]
		return is && len(m.live()) == 1 && m.revision().Epoch > before
	})
}

func TestAClusterThatMayNotBeKnownIsMirroredAndSaid(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.cluster = forbidden
	a.onList = func(int, url.Values) (int, string) { return 200, list("100", "", item("a", 1)) }
	var log lines
	nats := embeddedtest.NATS(t).URL()
	startSeen(t, quick(), clientOf(t, a.URL), nats, &log)
	m := follow(t, nats, pods)
	m.until(t, "the cluster", func() bool { return m.readable() && len(m.live()) == 1 })
	a.CloseClientConnections()
	a.nth(t, watched, 2)
	if got := log.warnings("another cluster under this name"); len(got) != 1 {
		t.Errorf("%q, want one warning", got)
	}
}
