package view

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/deltaplane/deltaplane/internal/explain"
)

// still is a source that says nothing.
type still struct{}

func (still) run(ctx context.Context) { <-ctx.Done() }
func (still) soon()                   {}

func TestWhatIsFollowedForACallerIsBounded(t *testing.T) {
	t.Parallel()
	h := NewHub(t.Context(), explain.Parts{}, nil, slog.New(slog.DiscardHandler))
	defer h.Close()
	share := func(name string) (func(), error) {
		_, release, err := h.share(name, func() source { return still{} })
		return release, err
	}
	var release func()
	for i := range mostShared {
		var err error
		if release, err = share(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := share("0"); err != nil {
		t.Errorf("what is followed already: %v", err)
	}
	if _, err := share("another"); !errors.Is(err, ErrTooManyViews) {
		t.Errorf("one thing more: %v", err)
	}
	release()
	if _, err := share("another"); err != nil {
		t.Errorf("after something was given back: %v", err)
	}
}
