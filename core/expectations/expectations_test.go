package expectations_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/expectations"
)

func TestExpectationsAreMetByName(t *testing.T) {
	t.Parallel()
	s, err := expectations.Set{}.Expect("u1", []string{"b", "a"}, []string{"x"}, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	s = s.Observe("u1", []string{"a"}, nil)
	s = s.Observe("u1", []string{"a"}, nil) // reported twice, counts once
	if diff := cmp.Diff(s, expectations.Set{Owner: "u1", Creates: []string{"b"}, Deletes: []string{"x"}, Expires: 100}); diff != "" {
		t.Fatalf("set (-got +want):\n%s", diff)
	}
	if s.Live(99) == nil || s.Live(100) != nil {
		t.Error("a set is live until, and not at, its expiry")
	}
	if got := s.Observe("other", []string{"b"}, []string{"x"}); got.Satisfied() {
		t.Error("another owner's observation was counted")
	}
	if got := s.Observe("", []string{"b"}, []string{"x"}); !got.Satisfied() || got.Live(0) != nil {
		t.Error("everything was seen, still not satisfied")
	}
}

func TestAnotherOwnerOrExpiryReplacesTheSet(t *testing.T) {
	t.Parallel()
	s, _ := expectations.Set{}.Expect("u1", []string{"a"}, nil, 0, 100)
	more, _ := s.Expect("u1", []string{"b"}, nil, 50, 150)
	if diff := cmp.Diff(more.Creates, []string{"a", "b"}); diff != "" {
		t.Errorf("same owner (-got +want):\n%s", diff)
	}
	recreated, _ := s.Expect("u2", []string{"b"}, nil, 50, 150)
	late, _ := s.Expect("u1", []string{"b"}, nil, 100, 200)
	for _, got := range []expectations.Set{recreated, late} {
		if diff := cmp.Diff(got.Creates, []string{"b"}); diff != "" {
			t.Errorf("replaced (-got +want):\n%s", diff)
		}
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	names := make([]string, expectations.MaxNames+1)
	for i := range names {
		names[i] = "n" + strconv.Itoa(i)
	}
	if _, err := (expectations.Set{}).Expect("u", names, nil, 0, 1); !errors.Is(err, expectations.ErrTooMany) {
		t.Errorf("error = %v, want ErrTooMany", err)
	}
	for _, bad := range []string{"", "a b", "a\nb", string(make([]byte, 300)), "\xff"} {
		if expectations.Check("creates", []string{"ok", bad}) == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if err := expectations.Check("creates", []string{"ok-1"}); err != nil {
		t.Error(err)
	}
}
