package session

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/deltaplane/deltaplane/internal/explain"
	"github.com/deltaplane/deltaplane/services/console/view"
)

func manager(t *testing.T) *Manager {
	t.Helper()
	return NewManager(func(string) *view.Hub {
		return view.NewHub(t.Context(), explain.Parts{}, nil, slog.New(slog.DiscardHandler))
	})
}

// open begins a session until the test ends.
func open(t *testing.T, m *Manager, caller, user string) (end func()) {
	t.Helper()
	_, end, err := m.Open(caller, user)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return end
}

func TestTokensOfOneUserAreBoundedTogether(t *testing.T) {
	t.Parallel()
	m := manager(t)
	var end func()
	for i := range MaxOfCaller {
		end = open(t, m, fmt.Sprint(i), "alice")
	}
	if _, _, err := m.Open("another", "alice"); !errors.Is(err, ErrTooManySessions) {
		t.Errorf("one token more: %v", err)
	}
	open(t, m, "another", "bob")
	open(t, m, "nobody says whose", "")
	end()
	open(t, m, "another", "alice")
}

func TestSessionsAreBoundedInAll(t *testing.T) {
	t.Parallel()
	m := manager(t)
	var end func()
	for i := range MaxSessions {
		end = open(t, m, fmt.Sprint(i), "")
	}
	if _, _, err := m.Open("another", ""); !errors.Is(err, ErrTooManySessions) {
		t.Errorf("one session more: %v", err)
	}
	end()
	open(t, m, "another", "")
}

func TestACallerIsKnownWhileItHasASessionWithAName(t *testing.T) {
	t.Parallel()
	m := manager(t)
	open(t, m, "token", "")
	if m.Known("token") {
		t.Error("a caller whose name nobody says is known")
	}
	end := open(t, m, "other", "alice")
	if !m.Known("other") {
		t.Error("a caller with a name is not known")
	}
	end()
	if m.Known("other") {
		t.Error("a caller without a session is known")
	}
}
