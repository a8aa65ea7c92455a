package authority

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// pagesOf lists objects one by one.
type pagesOf [][]byte

func (p pagesOf) List(_ context.Context, _ kube.Resource, o kube.ListOptions) (kube.Page, error) {
	at := 0
	_, _ = fmt.Sscan(o.Continue, &at)
	page := kube.Page{RV: "7"}
	if at < len(p) {
		page.Items = p[at : at+1]
	}
	if at+1 < len(p) {
		page.Continue = fmt.Sprint(at + 1)
	}
	return page, nil
}

func TestNamespacesAreThoseOfTheBindingsThatNameTheCallerOrAGroup(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	ids := []*access.Identity{
		{User: "alice", Groups: []string{"web", "all"}},
		{User: "bob", Groups: []string{"all"}},
		{User: "web"},
		{User: "system:serviceaccount:n1:robot"},
	}
	subjects := []struct {
		json string
		is   func(id *access.Identity, namespace string) bool
	}{
		{`{"kind":"User","name":"alice"}`, func(id *access.Identity, _ string) bool { return id.User == "alice" }},
		{`{"kind":"Group","name":"web"}`, func(id *access.Identity, _ string) bool { return slices.Contains(id.Groups, "web") }},
		{`{"kind":"Group","name":"all"}`, func(id *access.Identity, _ string) bool { return slices.Contains(id.Groups, "all") }},
		{`{"kind":"ServiceAccount","namespace":"n1","name":"robot"}`, func(id *access.Identity, _ string) bool { return id.User == "system:serviceaccount:n1:robot" }},
		{`{"kind":"ServiceAccount","name":"robot"}`, func(id *access.Identity, ns string) bool { return id.User == "system:serviceaccount:"+ns+":robot" }},
	}
	type bound struct {
		namespace string
		subjects  []int
	}
	b := newBindings()
	model := map[string]bound{}
	object := func(key string) (o []byte) {
		var list []string
		for _, s := range model[key].subjects {
			list = append(list, subjects[s].json)
		}
		return fmt.Appendf(nil, `{"metadata":{"namespace":%q,"name":%q},"subjects":[%s]}`, key[:2], key[3:], strings.Join(list, ","))
	}
	change := func(key string) {
		model[key] = bound{namespace: key[:2]}
		for range rng.IntN(4) {
			model[key] = bound{key[:2], append(model[key].subjects, rng.IntN(len(subjects)))}
		}
	}
	key := func() string { return fmt.Sprintf("n%d/b%d", rng.IntN(3), rng.IntN(4)) }
	for range 5 {
		change(key())
	}
	var first pagesOf
	for k := range model {
		first = append(first, object(k))
	}
	if rv, err := b.list(t.Context(), first, kube.Resource{}); err != nil || rv != "7" {
		t.Fatalf("list = %q, %v", rv, err)
	}
	for step := range 2000 {
		k := key()
		gone := rng.IntN(3) == 0
		if gone {
			if err := b.put(object(k), true); err != nil {
				t.Fatal(err)
			}
			delete(model, k)
		} else {
			change(k)
			if err := b.put(object(k), false); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range ids {
			got, err := b.of(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, m := range model {
				if slices.ContainsFunc(m.subjects, func(s int) bool { return subjects[s].is(id, m.namespace) }) {
					want = append(want, m.namespace)
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if got, want = slices.Compact(got), slices.Compact(want); !slices.Equal(got, want) {
				t.Fatalf("step %d: namespaces of %s are %q, want %q", step, id.User, got, want)
			}
		}
	}
	for k := range model {
		if err := b.put(object(k), true); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.namespace)+len(b.subjects) != 0 {
		t.Errorf("%v and %v are left when no binding is", b.namespace, b.subjects)
	}
}

func TestNamespacesAreUnknownUntilBindingsAreListed(t *testing.T) {
	t.Parallel()
	b := newBindings()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := b.of(ctx, &access.Identity{User: "alice"}); err == nil {
		t.Errorf("namespaces %q of bindings that nobody has listed", got)
	}
	if err := b.put([]byte(`{"subjects":1}`), false); err == nil {
		t.Error("a binding that cannot be read is taken")
	}
}
