package informer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

func byLabel(t *thing) ([]string, error) { return slices.Collect(maps.Keys(t.labels)), nil }

// byValue files a thing under the words of its value; "error" and "panic" are what they say.
func byValue(t *thing) ([]string, error) {
	switch t.value {
	case "error":
		return nil, errors.New("no value")
	case "panic":
		panic("no value at all")
	}
	return strings.Fields(t.value), nil
}

func keysOf(things []*thing) []string {
	out := []string{}
	for _, t := range things {
		out = append(out, t.key)
	}
	slices.Sort(out)
	return out
}

func keys(t *testing.T, what string, got []*thing, err error, want ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, keysOf(got)); diff != "" {
		t.Errorf("%s (-want +got)\n%s", what, diff)
	}
}

// TestIndexer upstream.
func TestAnIndexAddedToAFullStoreIsComplete(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource()
		src.set("pod1", "a=1,b=1|")
		src.set("pod2", "b=2|")
		i := create(t, src, func(c *informer.Config[*thing]) {
			c.Indexers = map[string]informer.IndexFunc[*thing]{"labels": byLabel}
		}).run(t)
		after(0)
		s := i.Store()
		got, err := s.ByIndex("labels", "a")
		keys(t, "a", got, err, "pod1")
		src.set("pod3", "a=2|")
		after(0)
		got, err = s.ByIndex("labels", "a")
		keys(t, "a, after an add", got, err, "pod1", "pod3")
		if err := i.AddIndexers(map[string]informer.IndexFunc[*thing]{"labels-again": byLabel}); err != nil {
			t.Fatal(err)
		}
		got, err = s.ByIndex("labels-again", "a")
		keys(t, "a, in a late index", got, err, "pod1", "pod3")
		for _, name := range []string{"labels", "labels-again"} {
			if values, err := s.ListIndexFuncValues(name); err != nil || !slices.Equal(values, []string{"a", "b"}) {
				t.Errorf("values of %s: %q, %v", name, values, err)
			}
		}
		err = i.AddIndexers(map[string]informer.IndexFunc[*thing]{"new": byLabel, "labels": byLabel})
		if !errors.Is(err, informer.ErrIndexConflict) || !slices.Equal(s.Indexers(), []string{"labels", "labels-again"}) {
			t.Errorf("a name twice: %v, indexes %q; want a conflict and nothing added", err, s.Indexers())
		}
	})
}

// TestMultiIndexKeys and TestGetIndexFuncValues upstream, and thread_safe_store_test.go.
func TestAnObjectIsFiledUnderEachOfItsValues(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource()
		i := create(t, src, func(c *informer.Config[*thing]) {
			c.Indexers = map[string]informer.IndexFunc[*thing]{"users": byValue}
		}).run(t)
		s := i.Store()
		after(0)
		for n, step := range []struct {
			do   func()
			want map[string][]string
		}{
			{func() { src.set("key1", "|foo") }, map[string][]string{"foo": {"key1"}}},
			{func() { src.set("key2", "|bar") }, map[string][]string{"foo": {"key1"}, "bar": {"key2"}}},
			{func() { src.set("key2", "|foo bar") }, map[string][]string{"foo": {"key1", "key2"}, "bar": {"key2"}}},
			{func() { src.set("key1", "|foo bar bar") }, map[string][]string{"foo": {"key1", "key2"}, "bar": {"key1", "key2"}}},
			{func() { src.set("key3", "|foo bar baz") }, map[string][]string{"foo": {"key1", "key2", "key3"}, "bar": {"key1", "key2", "key3"}, "baz": {"key3"}}},
			{func() { src.set("key1", "|foo") }, map[string][]string{"foo": {"key1", "key2", "key3"}, "bar": {"key2", "key3"}, "baz": {"key3"}}},
			{func() { src.set("key2", "|bar") }, map[string][]string{"foo": {"key1", "key3"}, "bar": {"key2", "key3"}, "baz": {"key3"}}},
			{func() { src.delete("key1", client.DeleteObserved) }, map[string][]string{"foo": {"key3"}, "bar": {"key2", "key3"}, "baz": {"key3"}}},
			{func() { src.delete("key3", client.DeleteObserved) }, map[string][]string{"bar": {"key2"}}},
		} {
			step.do()
			after(0)
			values, err := s.ListIndexFuncValues("users")
			if err != nil {
				t.Fatal(err)
			}
			got := map[string][]string{}
			for _, v := range values {
				got[v], _ = s.IndexKeys("users", v)
			}
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Errorf("step %d (-want +got)\n%s", n, diff)
			}
		}
		src.set("key4", "|bar qux")
		after(0)
		got, err := s.Index("users", &thing{value: "bar qux none"})
		keys(t, "by example", got, err, "key2", "key4")
		got, err = s.ByIndex("users", "nobody")
		keys(t, "an unknown value", got, err)
	})
}

func TestAFailingIndexFunctionFailsItsIndexOnly(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"error", "panic"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				src := newSource()
				src.set("ok", "l=1|word")
				src.set("bad", "l=1|"+fault)
				i := create(t, src, func(c *informer.Config[*thing]) {
					c.Indexers = map[string]informer.IndexFunc[*thing]{"users": byValue, "labels": byLabel}
				}).run(t)
				after(0)
				s := i.Store()
				_, err := s.ByIndex("users", "word")
				if e, ok := errors.AsType[*informer.IndexError](err); !ok || e.Key != "bad" || e.Keys != 1 || e.Index != "users" {
					t.Errorf("ByIndex: %v, want an IndexError of bad", err)
				}
				if _, err := s.Index("labels", &thing{}); err != nil {
					t.Errorf("the other index: %v", err)
				}
				for what, err := range map[string]error{
					"ByIndex": second(s.ByIndex("none", "x")), "Index": second(s.Index("none", &thing{})),
					"IndexKeys": second(s.IndexKeys("none", "x")), "ListIndexFuncValues": second(s.ListIndexFuncValues("none")),
				} {
					if !errors.Is(err, client.ErrIndexNotFound) {
						t.Errorf("%s of an unknown index: %v, want ErrIndexNotFound", what, err)
					}
				}
				if _, err := s.Index("labels", nil); err == nil {
					t.Error("an example that the function panics on is accepted")
				}
				src.set("bad", "|word")
				after(0)
				got, err := s.ByIndex("users", "word")
				keys(t, "after it was repaired", got, err, "bad", "ok")
			})
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestListersSelectByNamespaceAndLabels(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource()
		src.set("ns1/a", "app=web|")
		src.set("ns1/b", "app=db|")
		src.set("ns2/a", "app=web,tier=x|")
		src.set("node", "|")
		i := create(t, src, nil)
		s := i.Store()
		if _, err := s.List(); !errors.Is(err, client.ErrNotSynced) {
			t.Errorf("List before the sync: %v, want ErrNotSynced", err)
		}
		if _, _, err := s.Get("ns1/a"); !errors.Is(err, client.ErrNotSynced) {
			t.Errorf("Get before the sync: %v, want ErrNotSynced", err)
		}
		i.run(t)
		after(0)
		all, err := s.List()
		keys(t, "all", all, err, "node", "ns1/a", "ns1/b", "ns2/a")
		for ns, want := range map[string][]string{"": {"node", "ns1/a", "ns1/b", "ns2/a"}, "ns1": {"ns1/a", "ns1/b"}, "ns2": {"ns2/a"}, "ns3": nil} {
			got, err := s.ByNamespace(ns)
			keys(t, "namespace "+ns, got, err, want...)
		}
		for _, c := range []struct {
			ns  string
			sel labels.Selector
			// want in order
			want []string
		}{
			{"", labels.Everything(), []string{"node", "ns1/a", "ns1/b", "ns2/a"}},
			{"", labels.Nothing(), nil},
			{"", labels.SelectorFromSet(labels.Set{"app": "web"}), []string{"ns1/a", "ns2/a"}},
			{"ns2", labels.SelectorFromSet(labels.Set{"app": "web"}), []string{"ns2/a"}},
			{"ns1", labels.SelectorFromSet(labels.Set{"tier": "x"}), nil},
		} {
			got, err := s.Select(c.ns, c.sel)
			keys(t, fmt.Sprintf("%q with %q", c.ns, c.sel), got, err, c.want...)
		}
		if _, ok, err := s.Get("ns1/none"); ok || err != nil {
			t.Errorf("Get of nothing: %v, %v", ok, err)
		}
		if got, err := s.Keys(); err != nil || !slices.Equal(got, []string{"node", "ns1/a", "ns1/b", "ns2/a"}) {
			t.Errorf("Keys: %q, %v", got, err)
		}
		src.delete("ns2/a", client.DeleteObserved)
		after(0)
		got, err := s.ByNamespace("ns2")
		keys(t, "a namespace that is empty again", got, err)
	})
}

func TestAReadWaitsForTheRevisionOfAWrite(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a")
		i := create(t, src, nil)
		s := i.Store()
		early := make(chan error, 1)
		go func() { early <- s.AtLeast(t.Context(), client.Revision{}) }()
		after(time.Minute)
		select {
		case err := <-early:
			t.Errorf("AtLeast before the sync returned %v", err)
		default:
		}
		i.run(t)
		if err := <-early; err != nil {
			t.Error(err)
		}
		for _, want := range []client.Revision{{}, {RV: "1"}, {Epoch: 1, RV: "1"}} {
			if err := s.AtLeast(t.Context(), want); err != nil {
				t.Errorf("AtLeast %v: %v", want, err)
			}
		}
		wait := func(rev client.Revision) chan error {
			done := make(chan error, 1)
			go func() { done <- s.AtLeast(t.Context(), rev) }()
			after(0)
			return done
		}
		write := wait(client.Revision{RV: "2"}) // a write that the watch has not told of yet
		select {
		case err := <-write:
			t.Fatalf("returned %v before the write was seen", err)
		default:
		}
		src.set("a", "")
		if err := <-write; err != nil {
			t.Error(err)
		}
		if o, _, _ := s.Get("a"); o.rv != "2" {
			t.Errorf("read version %s after AtLeast 2", o.rv)
		}
		elsewhere := wait(client.Revision{Epoch: 1, RV: "3"}) // a write outside of the scope
		src.bookmark()
		if err := <-elsewhere; err != nil {
			t.Errorf("after a bookmark: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.AtLeast(ctx, client.Revision{RV: "99"}); !errors.Is(err, client.ErrRevisionNotReached) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("AtLeast that is not reached: %v", err)
		}
		stopped := wait(client.Revision{RV: "99"})
		i.stop()
		if err := <-stopped; !errors.Is(err, informer.ErrStopped) {
			t.Errorf("AtLeast when the informer stops: %v, want ErrStopped", err)
		}
	})
}
