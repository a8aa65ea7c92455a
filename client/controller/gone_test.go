package controller_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// stateBytes is how much the queue keeps with a key.
func (r *rig) stateBytes(key string) int {
	conn, err := client.Dial(r.queueAddr, client.DialConfig{})
	if err != nil {
		r.t.Error(err)
		return 0
	}
	defer conn.Close()
	item, err := queuev1.NewQueueAdminServiceClient(conn).Inspect(r.t.Context(), &queuev1.InspectRequest{Queue: "dev/test", Key: key})
	if err != nil {
		r.t.Error(err)
	}
	return int(item.GetItem().GetStateBytes())
}

// The deletion is one that no index has yet. It has no resource version that a read could name.
func TestARunAfterADeletionWaitsUntilTheIndexHasSeenIt(t *testing.T) {
	t.Parallel()
	for _, again := range []string{"gone", "made again"} {
		t.Run(again, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "pods", "configmaps")
			r.put("configmaps", "ns/note", "old")
			r.put("pods", "ns/p", "1")
			deleted := make(chan error, 1)
			a := r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
				note, err := p.Find(ctx, "configmaps", "ns/note")
				if err == nil {
					err = p.Deleted(ctx, "configmaps", note.Key, note.UID)
				}
				deleted <- err
				return controller.Result{}, err
			}, nil)
			if err := <-deleted; err != nil {
				t.Fatal(err)
			}
			r.ready(a)
			a.stop()
			var there atomic.Bool
			decided := make(chan string, 1)
			b := r.replica("b", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
				notes, err := controller.List[object](ctx, p.Controller, "configmaps", client.ListOptions{})
				if err != nil {
					return controller.Result{}, err
				}
				seen := make([]string, 0, 2)
				for _, note := range notes {
					seen = append(seen, note.Value)
				}
				if !there.Load() {
					seen = append(seen, "before the deletion was there")
				}
				decided <- strings.Join(seen, ", ")
				return controller.Result{}, nil
			}, nil)
			r.put("pods", "ns/p", "2")
			r.eventually("b is held back", func() string {
				if e := b.unreached(); e.Err == nil || !strings.Contains(e.Err.Error(), "dev/configmaps.v1 ns/note with uid") {
					return fmt.Sprintf("%+v", b.first(controller.EventReconcileFailed))
				}
				return ""
			})
			there.Store(true)
			want := ""
			r.delete("configmaps", "ns/note")
			if again == "made again" {
				want = "new"
				r.put("configmaps", "ns/note", want)
			}
			got := <-decided
			if got != want && got != "" { // it may read between the two
				t.Errorf("b decided on %q, want %q", got, want)
			}
		})
	}
}

func TestWhatWasDeletedIsNotWaitedForTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods", "configmaps")
	r.put("configmaps", "ns/note", "old")
	r.put("pods", "ns/p", "1")
	states := make(chan int, 10)
	r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		note, err := p.Find(ctx, "configmaps", "ns/note")
		if err == nil && note != nil {
			r.delete("configmaps", "ns/note")
			err = p.Deleted(ctx, "configmaps", note.Key, note.UID)
		}
		states <- r.stateBytes("ns/p")
		return controller.Result{}, err
	}, nil)
	if n := <-states; n == 0 {
		t.Error("the queue does not keep the deletion")
	}
	r.put("pods", "ns/p", "2")
	<-states
	r.eventually("the queue forgets the deletion", func() string {
		if n := r.stateBytes("ns/p"); n > 0 {
			return fmt.Sprintf("%d bytes are kept", n)
		}
		return ""
	})
}

func TestDeletionsThatCannotBePromisedAreErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods")
	r.put("pods", "ns/p", "1")
	type attempt struct{ collection, key, uid string }
	faults := make(chan string, 10)
	p := r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		for _, a := range []attempt{{"pods", "a/b/c", "1"}, {"pods", "ns/p", ""}, {"cats", "ns/p", "1"}} {
			err := p.Deleted(ctx, a.collection, a.key, a.uid)
			faults <- fmt.Sprint(err)
		}
		return controller.Result{}, nil
	}, nil)
	for _, want := range []string{"a/b/c", "the UID is empty", "collection cats"} {
		if got := <-faults; !strings.Contains(got, want) {
			t.Errorf("Deleted: %s, want %q in it", got, want)
		}
	}
	if err := p.Deleted(t.Context(), "pods", "ns/p", "1"); err == nil || !strings.Contains(err.Error(), "not that of a reconcile") {
		t.Errorf("Deleted outside of a reconcile: %v", err)
	}
}

func TestMoreDeletionsThanAStateHoldsAreWaitedForAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods", "configmaps")
	r.put("pods", "ns/p", "1")
	done := make(chan error, 1)
	r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		var err error
		for i := 0; i < 200 && err == nil; i++ { // none of them is there
			err = p.Deleted(ctx, "configmaps", fmt.Sprintf("ns/note-%d", i), "uid-"+strings.Repeat("x", 30))
		}
		done <- err
		return controller.Result{}, err
	}, nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
