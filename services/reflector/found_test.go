package reflector_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

func TestADefinitionThatVanishesWhileNobodyLooksGoesLikeAnyOther(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, name := range []string{"widgets", "gadgets", "gizmos"} {
		f.serve(&kind{group: "example.com", version: "v1", name: name, kind: name, namespaced: true})
		f.put(name, "default", "a", "", "")
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "*"}, {Name: "gadgets.v1.example.com"}}
	svc, stop := start(t, cfg, f.URL, nats)
	c := dial(t, svc)
	for _, name := range []string{"widgets", "gadgets", "gizmos", "deployments"} {
		reflection(t, c, name, name, watching)
	}
	add(t, c, &reflectorv1.ReflectionSpec{Resource: "gizmos.v1.example.com"}) // "*" had found it
	js := operator(t, nats)
	eventually(t, "the note of what was found", func() bool {
		kv, err := js.KeyValue(t.Context(), "deltaplane-reflections")
		if err != nil {
			return false
		}
		e, err := kv.Get(t.Context(), "found=2Fdev")
		return err == nil && strings.Contains(string(e.Value()), "widgets") && !strings.Contains(string(e.Value()), "gizmos")
	})
	stop()
	for _, name := range []string{"widgets", "gadgets", "gizmos", "deployments"} {
		f.withdraw(name)
	}
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cfg.KeepVanished = time.Second
	start(t, cfg, f.URL, nats)
	left := func(name string) bool {
		logs, err := conn.Collections(t.Context())
		return err != nil || slices.ContainsFunc(logs, func(col delta.Collection) bool { return col.Resource == name })
	}
	eventually(t, "the logs of what vanished deleted", func() bool { return !left("widgets") && !left("deployments") })
	for _, name := range []string{"gadgets", "gizmos", "configmaps"} { // named, added, and still there
		if !left(name) {
			t.Errorf("the log of %s is gone", name)
		}
	}
}

// TestWhatIsNoLongerNamedIsNotedAgain: else its log would be left when its definition vanishes
// while nobody looks.
func TestWhatIsNoLongerNamedIsNotedAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, name := range []string{"widgets", "gizmos"} {
		f.serve(&kind{group: "example.com", version: "v1", name: name, kind: name, namespaced: true})
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "*"}}
	svc, _ := start(t, cfg, f.URL, nats)
	c := dial(t, svc)
	js := operator(t, nats)
	noted := func(want bool) func() bool {
		return func() bool {
			kv, err := js.KeyValue(t.Context(), "deltaplane-reflections")
			if err != nil {
				return false
			}
			e, err := kv.Get(t.Context(), "found=2Fdev")
			return err == nil && strings.Contains(string(e.Value()), "widgets") && strings.Contains(string(e.Value()), "gizmos") == want
		}
	}
	eventually(t, "gizmos noted", noted(true))
	for range 2 {
		add(t, c, &reflectorv1.ReflectionSpec{Resource: "gizmos.v1.example.com"})
		eventually(t, "gizmos, which are named, struck", noted(false))
		if _, err := c.RemoveReflection(t.Context(), &reflectorv1.RemoveReflectionRequest{Resource: "gizmos.v1.example.com"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "gizmos noted again", noted(true))
	}
}

// TestTwoProcessesDoNotTakeTurnsAtTheNoteOfWhatWasFound: "*" of one finds what another names.
func TestTwoProcessesDoNotTakeTurnsAtTheNoteOfWhatWasFound(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	for _, name := range []string{"widgets", "gadgets"} {
		f.serve(&kind{group: "example.com", version: "v1", name: name, kind: name, namespaced: true})
	}
	nats := embeddedtest.NATS(t).URL()
	cfg := quick()
	cfg.Resources = []reflector.Resource{{Name: "*"}}
	svc, _ := start(t, cfg, f.URL, nats)
	reflection(t, dial(t, svc), "gadgets", "gadgets", watching)
	cfg.Resources, cfg.DiscoverEvery = []reflector.Resource{{Name: "gadgets.v1.example.com"}}, time.Hour // it asks once
	other, _ := start(t, cfg, f.URL, nats)
	reflection(t, dial(t, other), "gadgets", "gadgets named", func(r *reflectorv1.Reflection) bool {
		return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_STANDBY
	})
	js := operator(t, nats)
	note := func() (string, uint64) {
		kv, err := js.KeyValue(t.Context(), "deltaplane-reflections")
		if err != nil {
			return "", 0
		}
		e, err := kv.Get(t.Context(), "found=2Fdev")
		if err != nil {
			return "", 0
		}
		return string(e.Value()), e.Revision()
	}
	eventually(t, "gadgets struck from the note", func() bool {
		text, _ := note()
		return strings.Contains(text, "widgets") && !strings.Contains(text, "gadgets")
	})
	_, settled := note()
	asked := f.count("/apis")
	eventually(t, "discovery some times more", func() bool { return f.count("/apis") >= asked+10 })
	if text, now := note(); now > settled+2 { // once more at most, if it had not been seen
		t.Errorf("the note was written %d times more: %s", now-settled, text)
	}
}
