package watch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
)

// scoped is a watch of what is visible, whose reader adds up what it takes.
type scoped struct {
	t     *testing.T
	w     *watcher
	s     *tape
	next  uint64            // sequence of the next record
	state map[string]string // versions by key
	gone  map[string]string // versions of what became invisible, by key
	gaps  int
	stop  func()
}

// newScoped watches namespace "a" of a collection with objects in two. The reader has taken the
// state. Messages have at most three events.
func newScoped(t *testing.T, cfg testConfig) *scoped {
	t.Helper()
	c := newWatchedWith(t, cfg)
	hubOf(c).most = chunkSize{3, chunkBytes}
	v := &scoped{t: t, next: 1, state: map[string]string{}, gone: map[string]string{}}
	var all []delta.Record
	for _, ns := range []string{"a", "b"} {
		for i := range 7 {
			all = append(all, v.record(fmt.Sprintf("%s/%d", ns, i)))
		}
	}
	all = append(all, indexertest.Synced(v.next))
	v.next++
	mustFeed(t, c, delta.Batch{Reset: true, Records: all, Replayed: true, Next: v.next})
	ctx, cancel := context.WithCancel(t.Context())
	v.s = &tape{t: t, ctx: ctx, heard: make(chan *indexv1.WatchResponse)}
	_, srv := newTestWatches(t, testConfig{})
	v.w = &watcher{s: srv, c: c, hub: hubOf(c), stream: v.s, every: bookmarkEvery, own: make(chan struct{}, 1)}
	req := &indexv1.WatchRequest{VisibleOnly: true}
	f, err := watchFilter(c, req)
	if err != nil {
		t.Fatal(err)
	}
	v.w.filter = f.see(access.Scope{Namespaces: []string{"a"}})
	done := make(chan error, 1)
	go func() { done <- v.w.run(ctx, req) }()
	v.stop = func() { cancel(); <-done }
	for v.take().GetInitialStateEnd() == nil {
	}
	return v
}

func (v *scoped) record(key string) delta.Record {
	r := indexertest.Record(v.next, 0)
	r.Key, r.UID = delta.Key(key), "uid-"+key
	r.Payload = fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":"%d"}}`, key[2:], key[:1], r.UID, v.next)
	r.Hash = delta.Hash(r.Payload)
	v.next++
	return r
}

// feed applies a version of an object, in a pass of its own.
func (v *scoped) feed(keys ...string) {
	for _, key := range keys {
		r := v.record(key)
		mustFeed(v.t, v.w.c, delta.Batch{Records: []delta.Record{r}, Next: v.next})
		synctest.Wait()
	}
}

// see is what the caller may see from now on.
func (v *scoped) see(namespaces ...string) {
	v.w.next.Store(&access.Scope{Namespaces: namespaces})
	v.w.wake()
	synctest.Wait()
}

func (v *scoped) take() *indexv1.WatchResponse {
	m := <-v.s.heard
	if m.GetGap() != nil {
		v.gaps++
		clear(v.state)
	}
	for _, e := range m.GetEvents().GetEvents() {
		key, rv := e.GetObject().GetKey(), e.GetObject().GetResourceVersion()
		if e.GetType() != deltav1.DeltaType_DELTA_TYPE_DELETED {
			v.state[key] = rv
			continue
		}
		if e.GetDeleteReason() == deltav1.DeleteReason_DELETE_REASON_NOT_VISIBLE {
			v.gone[key] = rv
		}
		if _, had := v.state[key]; !had {
			v.t.Errorf("deleted %s, which the reader never had", key)
		}
		delete(v.state, key)
	}
	return m
}

// settle takes messages until one tells that the reader has everything.
func (v *scoped) settle() {
	v.t.Helper()
	for last := v.next - 1; v.take().GetPosition().GetSequence() != last; {
	}
}

func (v *scoped) want(namespace string) {
	v.t.Helper()
	want := map[string]string{}
	for o := range v.w.c.Snapshot().All("") {
		if o.Namespace() == namespace {
			want[o.Key()] = o.RV()
		}
	}
	if !maps.Equal(v.state, want) {
		v.t.Errorf("the reader has %v, want %v", v.state, want)
	}
}

func TestWhatBecomesInvisibleIsDeletedAsTheReaderHadIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newScoped(t, testConfig{})
		defer v.stop()
		v.feed("a/1") // its message is held up by the reader; the others are not sent
		told := v.next - 1
		v.feed("a/1", "a/1", "a/new", "a/new", "b/3", "b/new")
		v.see("b")
		v.settle()
		v.want("b")
		if keys := slices.Sorted(maps.Keys(v.gone)); !slices.Equal(keys, []string{"a/0", "a/1", "a/2", "a/3", "a/4", "a/5", "a/6"}) || v.gone["a/1"] != fmt.Sprint(told) {
			t.Errorf("became invisible: %v, want all that the reader had, a/1 as of %d", v.gone, told)
		}
		v.feed("a/1", "b/1")
		v.settle()
		v.want("b")
		if v.gaps != 0 {
			t.Errorf("%d gaps", v.gaps)
		}
	})
}

func TestAChangeOfWhatIsVisibleInTheMiddleOfAnotherBeginsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newScoped(t, testConfig{})
		defer v.stop()
		v.see("b")
		v.take() // the first part of several
		v.see()
		v.settle()
		if len(v.state) != 0 || v.gaps != 1 {
			t.Errorf("the reader has %v after %d gaps, want nothing after one", v.state, v.gaps)
		}
	})
}

func TestAChangeOfWhatIsVisibleBehindLostChangesIsAGap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newScoped(t, testConfig{ringChanges: 4})
		defer v.stop()
		v.feed("a/1")
		for range 6 {
			v.feed("a/new", "b/1")
		}
		v.see("b")
		v.settle()
		v.want("b")
		if v.gaps != 1 || len(v.gone) != 0 {
			t.Errorf("%d gaps and %v, want one gap that says it all", v.gaps, v.gone)
		}
	})
}
