package expectations_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/expectations"
)

func TestExpectationsAreMetByName(t *testing.T) {
	t.Parallel()
	s := expectations.Set{Owner: "u1", Creates: []string{"b", "a"}, Deletes: []string{"x"}, StoredAt: 100}
	seen := s.Observe("u1", []string{"a"}, nil)
	seen = seen.Observe("u1", []string{"a"}, nil) // reported twice, counts once
	if diff := cmp.Diff(seen, expectations.Set{Owner: "u1", Creates: []string{"b"}, Deletes: []string{"x"}, StoredAt: 100}); diff != "" {
		t.Fatalf("set (-got +want):\n%s", diff)
	}
	if len(s.Creates) != 2 {
		t.Error("Observe changed the set it was called on")
	}
	if got := seen.Observe("other", []string{"b"}, []string{"x"}); got.Satisfied() {
		t.Error("another owner's observation was counted")
	}
	if got := seen.Observe("", []string{"b"}, []string{"x"}); !got.Satisfied() || got.Live(100) != nil {
		t.Error("everything was seen, still not satisfied")
	}
}

func TestASetEndsFiveMinutesAfterItWasStored(t *testing.T) {
	t.Parallel()
	s := expectations.Set{Owner: "u1", Creates: []string{"a"}, StoredAt: 100}
	if s.Live(100+300e6-1) == nil || s.Live(100+300e6) != nil {
		t.Error("a set is live until, and not at, its expiry")
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "a b", "a\nb", string(make([]byte, 300)), "\xff"} {
		if expectations.Check("creations", []string{"ok", bad}) == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if expectations.Check("creations", make([]string, expectations.MaxNames+1)) == nil {
		t.Error("too many names were accepted")
	}
	if err := expectations.Check("creations", []string{"ok-1"}); err != nil {
		t.Error(err)
	}
}
