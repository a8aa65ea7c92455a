package gateway

import (
	"net/http"
	"testing"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/services/gateway/request"
)

// seeing is a watch behind a version, or a list of it, by somebody who sees a part of the pods; of
// all of them for no namespaces.
func seeing(version uint64, namespaces ...string) *request.Read {
	read := &request.Read{Path: request.Path{Resource: request.Resource{Version: "v1", Name: "pods"}}, Match: request.Exact, Version: version}
	if len(namespaces) > 0 {
		read.Scope = &access.Scope{Namespaces: namespaces}
	}
	return read
}

func TestAWatchGoesOnBehindAListOfTheSamePart(t *testing.T) {
	t.Parallel()
	var s sights
	who := &caller{key: "a", options: request.Options{Visible: true}}
	if !s.goesOn(who, seeing(5, "x")) {
		t.Error("who is not known is not believed")
	}
	s.shown(who, seeing(0, "x"), 10)
	s.shown(who, seeing(0, "x"), 20)
	for _, tc := range []struct {
		what string
		read *request.Read
		want bool
	}{
		{"behind the first list", seeing(10, "x"), true},
		{"behind the second", seeing(20, "x"), true},
		{"behind one before it saw this", seeing(9, "x"), false},
		{"of more", seeing(20, "x", "y"), false},
		{"of all", seeing(20), false},
	} {
		if got := s.goesOn(who, tc.read); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.what, got, tc.want)
		}
	}
	s.shown(who, seeing(0), 20) // it sees all now
	if s.goesOn(who, seeing(19)) || !s.goesOn(who, seeing(20)) {
		t.Error("a list of all does not count from its version on")
	}
	if !s.goesOn(&caller{key: "b", options: who.options}, seeing(1)) || !s.goesOn(&caller{key: "a"}, seeing(1)) {
		t.Error("others, and requests without the prefix, are held up")
	}
}

func TestWhatCannotBeShownIsRefusedSoThatItsReaderGoesOn(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]int{unlikeSight: http.StatusGone, "version": http.StatusGone, "recent": http.StatusServiceUnavailable, "table": http.StatusServiceUnavailable} {
		if got := unseen(seeing(1, "x"), reason).code; got != want {
			t.Errorf("%s: %d, want %d", reason, got, want)
		}
	}
}
