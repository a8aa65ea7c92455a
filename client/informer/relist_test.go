package informer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

// begin is an informer with a recorder that has received the initial state.
func begin(t *testing.T, src *source, change func(*informer.Config[*thing])) (*running, *recorder) {
	t.Helper()
	i, r := create(t, src, change), &recorder{}
	i.handle(t, r, informer.HandlerOptions{})
	i.run(t)
	after(0)
	r.take()
	return i, r
}

// TestReplaceEvents upstream: {1,2,3} becomes {1',2',4}.
func TestAStateReplacesTheStoreInOneStep(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprintf("whole %v", whole), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				src := newSource("1", "2", "3")
				i, r := begin(t, src, nil)
				src.lose(false) // what is known was sent once: that says nothing of the next state
				after(0)
				var during []string
				r.during = func(string) {
					during, _ = i.Store().Keys()
				}
				src.unheard(func() {
					src.set("1", "")
					src.set("2", "")
					src.delete("3", client.DeleteObserved)
					src.set("4", "")
				})
				after(0)
				wantTold(t, "before", r)
				src.lose(whole)
				after(0)
				wantTold(t, "told", r, "delete 3@3 inferred", "update 1@1->4", "update 2@2->5", "add 4@7")
				if diff := cmp.Diff([]string{"1", "2", "4"}, during); diff != "" {
					t.Errorf("the store during the callbacks (-want +got)\n%s", diff)
				}
				if s := i.Status(); s.Gaps != 2 || s.Keys != 3 || s.Revision.RV != "7" {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

// TestSharedInformerWatchDisruption upstream.
func TestADisruptionDeliversChangesAndResyncsDueHandlers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("pod1", "pod2")
		i := create(t, src, func(c *informer.Config[*thing]) { c.Resync = time.Second })
		none, resyncs := &recorder{}, &recorder{}
		i.handle(t, none, informer.HandlerOptions{Resync: informer.NoResync})
		i.handle(t, resyncs, informer.HandlerOptions{Resync: time.Second})
		i.run(t)
		none.take()
		resyncs.take()
		src.unheard(func() {
			src.set("pod3", "")
			src.set("pod2", "")
		})
		after(time.Second)
		wantTold(t, "before the state, with no resync", none)
		wantAny(t, "before the state, with a resync", resyncs, "update pod1@1->1", "update pod2@2->2")
		src.lose(true)
		after(0)
		wantTold(t, "with no resync", none, "update pod2@2->4", "add pod3@3")
		wantTold(t, "with a resync", resyncs, "update pod2@2->4", "add pod3@3")
	})
}

func TestEventsAreJudgedByWhatTheStoreHas(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a")
		i, r := begin(t, src, nil)
		pos := client.Position{Epoch: 1, Sequence: 50, Term: 1}
		obj := func(key, uid, rv string) client.Object {
			return client.Object{Key: key, UID: uid, ResourceVersion: rv, Payload: []byte("|" + rv)}
		}
		uid := src.objects["a"].UID
		for _, step := range []struct {
			what string
			e    client.Event
			want []string
		}{
			{"an update of an unknown key", client.Event{Type: client.EventUpdated, Object: obj("b", "u1", "5")}, []string{"add b@5"}},
			{"an add of a known key", client.Event{Type: client.EventAdded, Object: obj("b", "u1", "6")}, []string{"update b@5->6"}},
			{"the same once more", client.Event{Type: client.EventUpdated, Object: obj("b", "u1", "6")}, nil},
			{"an older version", client.Event{Type: client.EventUpdated, Object: obj("b", "u1", "4")}, nil},
			{"a longer number is a larger one", client.Event{Type: client.EventUpdated, Object: obj("b", "u1", "10")}, []string{"update b@6->10"}},
			{"another object of the name", client.Event{Type: client.EventUpdated, Object: obj("b", "u2", "3")}, []string{"delete b@10 recreated", "add b@3"}},
			{"a deletion of an unknown key", client.Event{Type: client.EventDeleted, Object: obj("c", "", "9"), Coalesced: true}, nil},
			{"a deletion by the filter", client.Event{Type: client.EventDeleted, Object: obj("b", "u2", "11"), DeleteReason: client.DeleteFiltered}, []string{"delete b@3 filtered"}},
			{"an inferred deletion", client.Event{Type: client.EventDeleted, Object: obj("a", uid, "12"), DeleteReason: client.DeleteInferred}, []string{"delete a@1 inferred"}},
		} {
			step.e.Position = pos
			src.send(step.e)
			after(0)
			wantTold(t, step.what, r, step.want...)
		}
		if s := i.Status(); s.Stale != 1 {
			t.Errorf("%d stale events, want 1", s.Stale)
		}
	})
}

func TestAnObjectRecreatedInAGapIsADeletionAndAnAdd(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			src := newSource("a")
			_, r := begin(t, src, nil)
			src.unheard(func() {
				src.delete("a", client.DeleteObserved)
				src.set("a", "")
			})
			src.lose(whole)
			after(0)
			wantTold(t, "told", r, "delete a@1 recreated", "add a@3")
		})
	}
}

// A handler gets the object as it was deleted. Where that state is unknown it gets the last
// version that it has seen, marked.
func TestADeletionCarriesTheFinalStateOrTheLastKnown(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource()
		src.set("ns/a", "|last")
		src.set("ns/b", "|last")
		i := create(t, src, nil)
		var got []informer.Deletion[*thing]
		handler := informer.HandlerFuncs[*thing]{DeleteFunc: func(d informer.Deletion[*thing]) { got = append(got, d) }}
		i.handle(t, handler, informer.HandlerOptions{})
		filtered := &recorder{}
		i.handle(t, informer.FilteringHandler[*thing]{Filter: func(o *thing) bool { return o.value != "final" }, Handler: filtered}, informer.HandlerOptions{})
		i.run(t)
		after(0)
		filtered.take()
		a, b := src.objects["ns/a"].UID, src.objects["ns/b"].UID
		src.delete("ns/a", client.DeleteObserved)
		src.end("ns/b", "|final")
		after(0)
		if len(got) != 2 {
			t.Fatalf("told %+v", got)
		}
		if d := got[0]; d.Key != "ns/a" || d.UID != a || d.ResourceVersion != "3" || d.Object.rv != "1" || !d.FinalStateUnknown() {
			t.Errorf("without the object: told %+v", d)
		}
		if d := got[1]; d.Key != "ns/b" || d.UID != b || d.ResourceVersion != "4" || d.Object.rv != "4" || d.Object.value != "final" || d.FinalStateUnknown() {
			t.Errorf("with the object: told %+v", d)
		}
		if n := len(filtered.take()); n != 2 {
			t.Errorf("a filter that the final state does not pass keeps the handler from %d of 2 deletions", 2-n)
		}
	})
}

// In a new epoch versions say nothing: equal ones are the same only with equal payloads, and lower
// ones are news.
func TestANewEpochIsWhole(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource()
		src.set("same", "|same")
		src.set("other", "|before")
		src.set("gone", "")
		i, r := begin(t, src, nil)
		src.mu.Lock()
		src.epoch, src.n = 2, 5
		o := src.objects["other"]
		o.Payload = []byte("|after")
		src.objects["other"] = o
		delete(src.objects, "gone")
		src.mu.Unlock()
		src.lose(false)
		after(0)
		wantTold(t, "told", r, "delete gone@3 inferred", "update other@2->2")
		if rev := i.Store().Revision(); rev.Epoch != 2 {
			t.Errorf("revision %v", rev)
		}
		src.send(client.Event{Type: client.EventUpdated, Position: src.position(), Object: client.Object{Key: "same", UID: src.objects["same"].UID, ResourceVersion: "6"}})
		after(0)
		wantTold(t, "then", r, "update same@1->6")
	})
}

// A server that does not trust what is known sends everything, and need not name what is gone.
func TestAStateOfAnotherEpochIsWholeAlthoughDifferencesWereAsked(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a", "b")
		_, r := begin(t, src, nil)
		a := src.objects["a"]
		a.ResourceVersion, a.Payload = "9", []byte("|new")
		src.send(client.Event{Type: client.EventGap, Differences: true})
		src.send(client.Event{Type: client.EventAdded, Object: a})
		src.send(client.Event{Type: client.EventInitialEnd, Position: client.Position{Epoch: 7, Sequence: 1}, Revision: client.Revision{Epoch: 7, RV: "9"}})
		after(0)
		wantTold(t, "told", r, "delete b@2 inferred", "update a@1->9")
	})
}

func TestAStateThatBreaksOffChangesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a", "b")
		i, r := begin(t, src, nil)
		src.send(client.Event{Type: client.EventGap, Reason: "lost"})
		src.send(client.Event{Type: client.EventAdded, Object: client.Object{Key: "c", UID: "u", ResourceVersion: "9"}})
		after(0)
		if got, err := i.Store().Keys(); err != nil || len(got) != 2 {
			t.Errorf("keys %q, %v within a state", got, err)
		}
		src.fail(&client.Error{Op: "watch", Code: codes.NotFound})
		after(time.Minute)
		wantTold(t, "told", r)
		src.mu.Lock()
		last := src.asked[len(src.asked)-1]
		src.mu.Unlock()
		if last.Resume != (client.Position{}) || last.AtLeast != (client.Revision{Epoch: 1, RV: "2"}) {
			t.Errorf("asked from %v at least %v, want the state, not older than the last", last.Resume, last.AtLeast)
		}
		src.set("a", "")
		after(0)
		wantTold(t, "after it came back", r, "update a@1->3")
	})
}

func TestARefusedWatchIsReportedAndTriedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a")
		src.refuseWith(&client.Error{Op: "watch", Code: codes.NotFound, Reason: "COLLECTION_NOT_FOUND"})
		i := create(t, src, nil).run(t)
		after(10 * time.Minute)
		s := i.Status()
		if s.Connected || s.Synced || !errors.Is(s.Err, client.ErrCollectionNotFound) {
			t.Errorf("status %+v, want the refusal", s)
		}
		errs := i.errors.list()
		if len(errs) < 15 || len(errs) > 60 {
			t.Errorf("%d attempts in 10 minutes, want a wait that grows to about 30 s", len(errs))
		}
		var d *informer.DisconnectedError
		if !errors.As(errs[2], &d) || d.Attempt != 3 || d.Wait <= 0 {
			t.Errorf("third report: %+v", errs[2])
		}
		if err := informer.WaitFor(timeout(t, time.Second), i); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitFor: %v", err)
		}
		src.refuseWith(nil)
		<-i.Done()
		after(0)
		if s := i.Status(); !s.Connected || s.Err != nil || s.Keys != 1 {
			t.Errorf("status when it is served: %+v", s)
		}
		// One that ends later is resumed by its position.
		src.fail(&client.Error{Op: "watch", Code: codes.NotFound})
		after(time.Minute)
		src.mu.Lock()
		defer src.mu.Unlock()
		if last := src.asked[len(src.asked)-1]; last.Resume != src.position() {
			t.Errorf("resumed at %v, want %v", last.Resume, src.position())
		}
	})
}

func TestAnIndexThatCannotBeReachedIsReported(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a")
		i := create(t, src, nil).run(t)
		retry := src.asked[0].OnRetry
		retry(client.WatchRetry{Err: client.ErrStreamEnded, Attempt: 1})
		if s := i.Status(); !s.Connected || len(i.errors.list()) != 0 {
			t.Errorf("a server that spreads its connections is reported: %+v", s)
		}
		retry(client.WatchRetry{Err: client.ErrStreamEnded, Attempt: 2, Wait: time.Second})
		errs := i.errors.list()
		if s := i.Status(); s.Connected || len(errs) != 1 || !errors.Is(s.Err, client.ErrStreamEnded) {
			t.Errorf("status %+v, reported %v", s, errs)
		}
		src.bookmark()
		after(0)
		if s := i.Status(); !s.Connected || s.Err != nil {
			t.Errorf("status when it is heard again: %+v", s)
		}
	})
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestAnUnreadableObjectIsQuarantinedAndBlocksNothing(t *testing.T) {
	t.Parallel()
	for _, poison := range []string{"|poison", "|bomb", "|quarantined"} {
		t.Run(poison, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				src := newSource()
				src.set("bad", "l=1"+poison)
				src.set("good", "l=1|")
				i := create(t, src, func(c *informer.Config[*thing]) {
					c.Indexers = map[string]informer.IndexFunc[*thing]{"labels": byLabel}
				})
				r := &recorder{}
				reg := i.handle(t, r, informer.HandlerOptions{})
				i.run(t)
				s := i.Store()
				faulty := func(when string, want int) {
					t.Helper()
					after(0)
					_, _, err := s.Get("bad")
					_, is := errors.AsType[*informer.DecodeError](err)
					if is != (want > 0) || len(s.Faulty()) != want || i.Status().Faulty != want {
						t.Errorf("%s: Get says %v, faulty %v, status %d; want %d", when, err, s.Faulty(), i.Status().Faulty, want)
					}
					got, err := s.List()
					keys(t, when+": list", got, err, map[bool][]string{true: {"good"}, false: {"bad", "good"}}[want > 0]...)
					got, err = s.ByIndex("labels", "l")
					keys(t, when+": by index", got, err, map[bool][]string{true: {"good"}, false: {"bad", "good"}}[want > 0]...)
				}
				faulty("from the start", 1)
				if !reg.HasSynced() {
					t.Error("a poisoned object blocks the sync")
				}
				if len(i.errors.list()) != 1 {
					t.Errorf("reported %v", i.errors.list())
				}
				wantTold(t, "at first", r, "add good@2 initial")
				src.set("bad", "l=1|fine")
				faulty("when it is readable", 0)
				src.set("bad", "l=1"+poison)
				faulty("when it is poisoned again", 1)
				late := &recorder{}
				i.handle(t, late, informer.HandlerOptions{})
				after(0)
				wantAny(t, "a late handler knows what the others do", late, "add bad@3 initial", "add good@2 initial")
				src.set("bad", "l=1|fine")
				faulty("in the end", 0)
				wantTold(t, "then", r, "add bad@3", "update bad@3->5")
				wantTold(t, "and late", late, "update bad@3->5")
				src.set("bad", poison)
				src.delete("bad", client.DeleteObserved)
				after(0)
				wantTold(t, "a deletion", r, "delete bad@5 observed")
				if i.Status().Faulty != 0 {
					t.Error("a deleted key is faulty")
				}
				src.set("new", poison)
				src.delete("new", client.DeleteObserved)
				src.set("bad", "|fine")
				src.setUID("bad", "another", poison)
				after(0)
				wantTold(t, "one that was never readable, and one made again unreadable", r, "add bad@10", "delete bad@10 recreated")
			})
		})
	}
}

func TestAFilteringHandlerSeesAddsAndDeletionsAtItsEdge(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource()
		src.set("in", "|x")
		src.set("out", "|y")
		i, r := create(t, src, nil), &recorder{}
		i.handle(t, informer.FilteringHandler[*thing]{
			Filter: func(o *thing) bool { return o.value == "x" }, Handler: r,
			Key: func(o *thing) string { return o.key }, UID: func(o *thing) string { return o.uid },
		}, informer.HandlerOptions{})
		i.run(t)
		wantTold(t, "initial", r, "add in@1 initial")
		src.set("in", "|x")
		src.set("out", "|x")
		src.set("in", "|y")
		src.set("in", "|z")
		src.delete("in", client.DeleteObserved)
		src.delete("out", client.DeleteObserved)
		after(0)
		wantTold(t, "told", r, "update in@1->3", "add out@4", "delete in@3 filtered", "delete out@4 observed")
	})
}
