package mirror

import (
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
)

// newMirror is a mirror that nobody fills.
func newMirror(t *testing.T) *Mirror {
	t.Helper()
	return &Mirror{
		filled: make(chan struct{}), kept: map[uint64]kept{},
		floor: floor{gone: map[string]time.Time{}, seen: map[string]time.Time{}},
	}
}

// state makes the view of a mirror.
func (m *Mirror) state(h *History, revision, upper uint64, events []*Event, objects ...*store.Object) *View {
	s := store.New(store.Options{})
	ops := make([]store.Op, len(objects))
	for i, o := range objects {
		ops[i].Put = o
	}
	s.Apply(store.Batch{Ops: ops, State: &store.State{Synced: true}}, time.Now())
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &View{Snapshot: s.Snapshot(), Revision: revision, Upper: upper, history: h}
	m.proof.raises(v)
	m.set(v, events)
	return v
}

func TestReadsAreNotOlderThanWhatWasWritten(t *testing.T) {
	t.Parallel()
	m, h := newMirror(t), newHistory()
	m.state(h, 10, 10, nil)
	m.Wrote(12)
	m.Wrote(11)
	if m.Met(m.View()) {
		t.Error("a state of 10 has a write of 12")
	}
	if m.state(h, 12, 12, nil); !m.Met(m.View()) {
		t.Error("a state of 12 has no write of 12")
	}
}

func TestReadsWaitForADeletionThatIsAcknowledged(t *testing.T) {
	t.Parallel()
	gone := func(uid string, version uint64) []*Event {
		return []*Event{{Version: version, Namespace: "n", Old: object("n/x", uid, 5)}}
	}
	t.Run("before the event comes", func(t *testing.T) {
		t.Parallel()
		m, h := newMirror(t), newHistory()
		m.state(h, 10, 10, nil, object("n/x", "u", 5))
		m.Deleted("u")
		if m.Met(m.View()) {
			t.Error("a state with the object has its deletion")
		}
		m.state(h, 11, 11, gone("another", 11))
		if m.Met(m.View()) {
			t.Error("the deletion of another object is taken for it")
		}
		if m.state(h, 12, 12, gone("u", 12)); !m.Met(m.View()) {
			t.Error("the state behind the event has no deletion")
		}
	})
	t.Run("behind the event", func(t *testing.T) {
		t.Parallel()
		m, h := newMirror(t), newHistory()
		m.state(h, 10, 10, nil, object("n/x", "u", 5))
		m.state(h, 12, 12, gone("u", 12))
		if m.Deleted("u"); !m.Met(m.View()) {
			t.Error("reads wait for a deletion that the state has")
		}
	})
	// A state that has neither the creation nor the deletion would show the object afterwards.
	t.Run("of an object that was not seen yet", func(t *testing.T) {
		t.Parallel()
		m, h := newMirror(t), newHistory()
		m.state(h, 10, 10, nil)
		m.Deleted("u")
		if m.Met(m.View()) {
			t.Error("a state before the creation has the deletion")
		}
	})
}

func TestAWholeListProvesAStateThatIsTheSame(t *testing.T) {
	t.Parallel()
	item := func(name, uid, version string) []byte {
		return []byte(`{"metadata":{"namespace":"n","name":"` + name + `","uid":"` + uid + `","resourceVersion":"` + version + `"}}`)
	}
	one := object("n/x", "u", 5)
	for what, tc := range map[string]struct {
		items [][]byte
		upper uint64
		want  uint64
	}{
		"the same":            {[][]byte{item("x", "u", "5")}, 10, 20},
		"another version":     {[][]byte{item("x", "u", "6")}, 10, 10},
		"another object":      {[][]byte{item("x", "v", "5")}, 10, 10},
		"another name":        {[][]byte{item("y", "u", "5")}, 10, 10},
		"one more":            {[][]byte{item("x", "u", "5"), item("y", "w", "7")}, 10, 10},
		"none":                {nil, 10, 10},
		"one that went since": {[][]byte{item("x", "u", "5")}, 21, 21},
	} {
		m, h := newMirror(t), newHistory()
		m.state(h, tc.upper, tc.upper, nil, one)
		m.prove(20, tc.items)
		if got := m.View().Revision; got != tc.want {
			t.Errorf("%s: the state is shown at %d, want %d", what, got, tc.want)
		}
		// The proof may come before the state that it proves.
		m, h = newMirror(t), newHistory()
		m.state(h, 9, 9, nil)
		m.prove(20, tc.items)
		if tc.items == nil {
			continue // which proves the first state
		}
		m.state(h, tc.upper, tc.upper, []*Event{change("n/x", 5)}, one)
		if got := m.View().Revision; got != tc.want {
			t.Errorf("%s, before the state: it is shown at %d, want %d", what, got, tc.want)
		}
	}
}
