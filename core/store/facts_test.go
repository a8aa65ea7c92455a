package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/deltaplane/deltaplane/core/store"
)

func TestLabelsAnswerSelectorsAndMakeTerms(t *testing.T) {
	t.Parallel()
	l := store.NewLabels([]store.Pair{{Name: "tier", Value: "web"}, {Name: "app", Value: ""}})
	if want := []string{"app", "app=", "tier", "tier=web"}; !slices.Equal(l.Terms(), want) {
		t.Errorf("Terms = %q, want %q", l.Terms(), want)
	}
	if !l.Has("app") || l.Has("web") || l.Get("tier") != "web" || l.Get("none") != "" {
		t.Error("lookups disagree with the pairs")
	}
	var none *store.Labels
	if none.Has("app") || none.Terms() != nil || none.Pairs() != nil || store.NewLabels(nil) != nil {
		t.Error("an empty set is not empty")
	}
}

func TestOwnersKeepTheirOrderAndGiveEachUIDOnce(t *testing.T) {
	t.Parallel()
	o := store.NewOwners([]store.Owner{{Name: "z", UID: "u2"}, {Name: "a", UID: "u1"}, {Name: "n"}, {Name: "b", UID: "u2"}})
	if want := []string{"u1", "u2"}; !slices.Equal(o.UIDs(), want) || o.List()[0].Name != "z" || len(o.List()) != 4 {
		t.Errorf("UIDs = %q, List = %v", o.UIDs(), o.List())
	}
	var none *store.Owners
	if none.UIDs() != nil || none.List() != nil || store.NewOwners(nil) != nil {
		t.Error("an empty list is not empty")
	}
}

func TestFieldsTellAnEmptyOneFromOneNotRead(t *testing.T) {
	t.Parallel()
	fault := errors.New("not a scalar")
	o := store.NewObject(store.ObjectConfig{Fields: store.NewFields([]store.Field{
		{Name: "b", Values: []string{"x", "y"}}, {Name: "a"}, {Name: "c", Err: fault}, {Name: "b", Values: []string{"late"}},
	})})
	if v, ok := o.Field("b"); !ok || !slices.Equal(v, []string{"x", "y"}) {
		t.Errorf("b = %q, %v", v, ok)
	}
	if v, ok := o.Field("a"); !ok || v != nil {
		t.Errorf("a = %q, %v", v, ok)
	}
	if v, ok := o.Field("none"); ok || v != nil || o.FieldErr("none") != nil {
		t.Errorf("none = %q, %v", v, ok)
	}
	if !errors.Is(o.FieldErr("c"), fault) || len(o.Fields().List()) != 3 {
		t.Errorf("c = %v, fields %v", o.FieldErr("c"), o.Fields().List())
	}
	if store.NewFields(nil) != nil || (*store.Fields)(nil).List() != nil {
		t.Error("an empty set is not empty")
	}
}
