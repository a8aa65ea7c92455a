package informer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

func wantTold(t *testing.T, what string, r *recorder, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.take()); diff != "" {
		t.Errorf("%s (-want +got)\n%s", what, diff)
	}
}

// wantAny is wantTold in any order.
func wantAny(t *testing.T, what string, r *recorder, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, sortedCopy(r.take())); diff != "" {
		t.Errorf("%s (-want +got)\n%s", what, diff)
	}
}

func sortedCopy(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

func TestASlowHandlerDelaysNoOther(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a")
		i := create(t, src, nil)
		hold := make(chan struct{})
		slow := &recorder{during: func(string) { <-hold }}
		fast := &recorder{}
		reg := i.handle(t, slow, informer.HandlerOptions{})
		i.handle(t, fast, informer.HandlerOptions{})
		i.run(t)
		for range 3 {
			src.set("a", "")
		}
		after(time.Minute)
		wantTold(t, "the fast one", fast, "add a@1 initial", "update a@1->2", "update a@2->3", "update a@3->4")
		if lag := reg.Lag(); lag.Pending != 3 || lag.Behind < time.Minute || lag.Coalesced != 0 {
			t.Errorf("lag of the slow one: %+v, want 3 pending for a minute", lag)
		}
		close(hold)
		after(0)
		wantTold(t, "the slow one", slow, "add a@1 initial", "update a@1->2", "update a@2->3", "update a@3->4")
		if lag := reg.Lag(); lag.Pending != 0 || lag.Behind != 0 || lag.Handled != 4 {
			t.Errorf("lag at the end: %+v", lag)
		}
	})
}

func TestABufferIsBoundedAndKeepsTheLatestOfEachKey(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a", "b", "c")
		i := create(t, src, nil)
		hold := make(chan struct{})
		r := &recorder{during: func(string) { <-hold }}
		reg := i.handle(t, r, informer.HandlerOptions{Buffer: 4})
		i.run(t)
		after(0) // one initial add is in hand, two wait
		for range 100 {
			src.set("a", "")
			src.set("b", "")
		}
		src.set("d", "") // comes and goes unseen
		src.delete("d", client.DeleteObserved)
		src.delete("c", client.DeleteObserved)
		src.setUID("c", "another", "")
		src.delete("b", client.DeleteFiltered)
		after(0)
		lag := reg.Lag()
		if lag.Pending > 4+2*3 || lag.Coalesced < 180 {
			t.Errorf("lag %+v, want at most the buffer and two for each key", lag)
		}
		if reg.HasSynced() {
			t.Error("synced before its initial adds were finished")
		}
		close(hold)
		after(0)
		// The order of notifications does not matter, but for each key; and each ends as the store does.
		told := r.take()
		byKey := map[string][]string{}
		for _, line := range told {
			_, what, _ := strings.Cut(line, " ")
			key := what[:1]
			byKey[key] = append(byKey[key], line)
		}
		a, b, c := byKey["a"], byKey["b"], byKey["c"]
		if !strings.HasSuffix(a[len(a)-1], "->202") && !strings.HasPrefix(a[len(a)-1], "add a@202") {
			t.Errorf("received %q of a, want it to end at 202", a)
		}
		if len(b) > 0 && !strings.HasPrefix(b[len(b)-1], "delete b@") {
			t.Errorf("received %q of b, want it to end deleted", b)
		}
		if !strings.HasPrefix(c[len(c)-1], "add c@207") {
			t.Errorf("received %q of c, want it to end with the new object", c)
		}
		if len(byKey["d"]) != 0 {
			t.Errorf("received %q of d, want nothing", byKey["d"])
		}
		if !reg.HasSynced() {
			t.Error("not synced in the end")
		}
		src.set("a", "")
		after(0)
		wantTold(t, "after it kept up again", r, "update a@202->209")
	})
}

func TestAHandlerIsCalledInOrderOneChangeAtATime(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource()
		i := create(t, src, nil).run(t)
		busy := make(chan struct{}, 1)
		r := &recorder{during: func(string) {
			select {
			case busy <- struct{}{}:
			default:
				t.Error("called while it is called")
			}
			<-time.After(time.Millisecond)
			<-busy
		}}
		i.handle(t, r, informer.HandlerOptions{})
		var want []string
		src.set("k", "")
		want = append(want, "add k@1")
		for n := 2; n < 50; n++ {
			src.set("k", "")
			want = append(want, fmt.Sprintf("update k@%d->%d", n-1, n))
		}
		after(time.Second)
		wantTold(t, "told", r, want...)
	})
}

func TestUnchangedObjectsReachOnlyHandlersWhoseResyncIsDue(t *testing.T) {
	t.Parallel()
	for _, resync := range []time.Duration{0, time.Minute} {
		t.Run(resync.String(), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				src := newSource("a", "b")
				i := create(t, src, func(c *informer.Config[*thing]) { c.Resync = resync })
				plain, asks := &recorder{}, &recorder{}
				i.handle(t, plain, informer.HandlerOptions{Resync: informer.NoResync})
				i.handle(t, asks, informer.HandlerOptions{})
				i.run(t)
				after(0)
				plain.take()
				asks.take()
				for _, whole := range []bool{false, true} {
					src.lose(whole)
					src.send(client.Event{Type: client.EventUpdated, Object: src.objects["a"], Position: src.position()})
					after(0)
				}
				wantTold(t, "a repeated state, to the one that did not ask", plain)
				wantTold(t, "a repeated state, to the one that is not due", asks)
				after(time.Minute)
				wantTold(t, "a minute later, to the one that did not ask", plain)
				if resync > 0 {
					wantAny(t, "a minute later, to the one that is due", asks, "update a@1->1", "update b@2->2")
				} else {
					wantTold(t, "a minute later, with no resync", asks)
				}
			})
		})
	}
}

// TestListenerResyncPeriods and TestListenerResyncPeriodsDelayed upstream.
func TestResyncsComeWhenTheyAreDue(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("pod1", "pod2")
		i := create(t, src, func(c *informer.Config[*thing]) { c.Resync = time.Second })
		var all []*recorder
		for _, period := range []time.Duration{informer.NoResync, 2 * time.Second, 3 * time.Second} {
			r := &recorder{}
			i.handle(t, r, informer.HandlerOptions{Resync: period})
			all = append(all, r)
		}
		i.run(t)
		after(0)
		for n, r := range all {
			wantTold(t, fmt.Sprintf("handler %d at 0 s", n+1), r, "add pod1@1 initial", "add pod2@2 initial")
		}
		resync := []string{"update pod1@1->1", "update pod2@2->2"}
		after(2 * time.Second)
		wantTold(t, "handler 1 at 2 s", all[0])
		wantAny(t, "handler 2 at 2 s", all[1], resync...)
		wantTold(t, "handler 3 at 2 s", all[2])
		after(time.Second)
		wantTold(t, "handler 1 at 3 s", all[0])
		wantTold(t, "handler 2 at 3 s", all[1])
		wantAny(t, "handler 3 at 3 s", all[2], resync...)
	})
}

// Upstream's TestResyncCheckPeriod, and what the package's description adds.
func TestTheCheckPeriodIsTheShortestResyncPeriodBeforeTheStart(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		i := create(t, newSource(), func(c *informer.Config[*thing]) { c.Resync = 12 * time.Hour })
		var regs []*informer.Registration
		for _, step := range []struct{ asked, check, period time.Duration }{
			{informer.NoResync, 12 * time.Hour, 0},
			{time.Minute, time.Minute, time.Minute},
			{55 * time.Second, 55 * time.Second, 55 * time.Second},
			{5 * time.Second, 5 * time.Second, 5 * time.Second},
			{0, 5 * time.Second, 12 * time.Hour}, // the informer's
			{time.Millisecond, time.Second, time.Second},
		} {
			reg := i.handle(t, &recorder{}, informer.HandlerOptions{Resync: step.asked})
			regs = append(regs, reg)
			if got := i.Status().ResyncCheck; got != step.check {
				t.Errorf("asked for %v: check period %v, want %v", step.asked, got, step.check)
			}
			if got := reg.ResyncPeriod(); got != step.period {
				t.Errorf("asked for %v: period %v, want %v", step.asked, got, step.period)
			}
		}
		for n, want := range []time.Duration{0, time.Minute, 55 * time.Second, 5 * time.Second} {
			if got := regs[n].ResyncPeriod(); got != want {
				t.Errorf("handler %d in the end: %v, want %v", n, got, want)
			}
		}
	})
	bubble(t, func(t *testing.T) {
		i := create(t, newSource(), func(c *informer.Config[*thing]) { c.Resync = time.Minute }).run(t)
		after(0)
		if got := i.handle(t, &recorder{}, informer.HandlerOptions{Resync: time.Second}).ResyncPeriod(); got != time.Minute {
			t.Errorf("a period after the start: %v, want it raised to the check period", got)
		}
	})
	bubble(t, func(t *testing.T) {
		i := create(t, newSource(), nil).run(t)
		after(0)
		if got := i.handle(t, &recorder{}, informer.HandlerOptions{Resync: time.Hour}).ResyncPeriod(); got != 0 {
			t.Errorf("a period to an informer that resyncs nobody: %v, want 0", got)
		}
	})
}

func TestALateHandlerGetsEveryStoredObjectOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a", "b")
		i := create(t, src, nil).run(t)
		after(0)
		src.set("c", "")
		src.set("a", "")
		after(0)
		r := &recorder{}
		reg := i.handle(t, r, informer.HandlerOptions{})
		if reg.HasSynced() {
			t.Error("synced before it received anything")
		}
		src.delete("b", client.DeleteObserved)
		after(0)
		told := r.take()
		if diff := cmp.Diff([]string{"add a@4 initial", "add b@2 initial", "add c@3 initial"}, sortedCopy(told[:3])); diff != "" {
			t.Errorf("initial adds (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff([]string{"delete b@2 observed"}, told[3:]); diff != "" {
			t.Errorf("after them (-want +got)\n%s", diff)
		}
		if !reg.HasSynced() {
			t.Error("not synced after its initial adds")
		}
	})
}

// Handlers join while events go on: each must see exactly the versions from the one it began with.
func TestALateHandlerHasNoGapWhileEventsGoOn(t *testing.T) {
	t.Parallel()
	src := newSource("k")
	i := create(t, src, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = i.Run(ctx) }()
	if err := informer.WaitFor(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	const last = 1000
	var writer, joiners sync.WaitGroup
	writer.Go(func() {
		for range last - 1 {
			src.set("k", "")
		}
	})
	for range 50 {
		joiners.Go(func() {
			end := make(chan struct{})
			at := ""
			reg, err := i.AddHandler(informer.HandlerFuncs[*thing]{
				AddFunc: func(o *thing, initial bool) {
					if at != "" || !initial {
						t.Errorf("add at %s after %q, initial %v", o.rv, at, initial)
					}
					at = o.rv
					if at == fmt.Sprint(last) {
						close(end)
					}
				},
				UpdateFunc: func(old, o *thing) {
					if old.rv != at {
						t.Errorf("update %s->%s after %s", old.rv, o.rv, at)
					}
					at = o.rv
					if at == fmt.Sprint(last) {
						close(end)
					}
				},
			}, informer.HandlerOptions{Buffer: 10 * last})
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case <-end:
			case <-time.After(time.Minute):
				t.Error("was not told the last version")
			}
			i.RemoveHandler(reg, informer.Drop)
		})
	}
	writer.Wait()
	joiners.Wait()
	cancel()
	<-i.Stopped()
}

func TestAHandlerIsSyncedWhenItsInitialAddsAreFinished(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a", "b")
		i := create(t, src, nil)
		step := make(chan struct{})
		r := &recorder{during: func(string) { <-step }}
		reg := i.handle(t, r, informer.HandlerOptions{})
		none := create(t, newSource(), nil)
		empty := none.handle(t, &recorder{}, informer.HandlerOptions{})
		if reg.HasSynced() || empty.HasSynced() || i.HasSynced() {
			t.Error("synced before Run")
		}
		none.run(t)
		i.run(t)
		after(0)
		if !i.HasSynced() || reg.HasSynced() {
			t.Errorf("informer %v, handler %v; want the informer synced and the handler not", i.HasSynced(), reg.HasSynced())
		}
		if !empty.HasSynced() {
			t.Error("a handler with nothing to receive is not synced")
		}
		step <- struct{}{}
		after(0)
		if reg.HasSynced() {
			t.Error("synced while the last initial add is not finished")
		}
		step <- struct{}{}
		<-reg.Done()
		close(step)
		src.set("c", "")
		after(0)
		wantTold(t, "told", r, "add a@1 initial", "add b@2 initial", "add c@3")
	})
}

// TestEventPanics upstream, where the handler never becomes synced.
func TestAPanicIsCountedAndTheHandlerStillSyncs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("pod1", "pod2", "pod3", "pod4", "pod5")
		i := create(t, src, nil)
		reg := i.handle(t, &recorder{during: func(string) { panic("fake panic") }}, informer.HandlerOptions{Name: "bad"})
		good := &recorder{}
		i.handle(t, good, informer.HandlerOptions{})
		began := time.Now()
		i.run(t)
		<-reg.Done()
		if took := time.Since(began); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("synced after %v, want a pause of 1 s between 5 panics", took)
		}
		if lag := reg.Lag(); lag.Panics != 5 || lag.Handled != 5 {
			t.Errorf("lag %+v, want 5 panics", lag)
		}
		if n := len(good.take()); n != 5 {
			t.Errorf("the other handler received %d notifications, want 5", n)
		}
		errs := i.errors.list()
		if len(errs) != 5 {
			t.Fatalf("%d errors reported, want 5: %v", len(errs), errs)
		}
		var p *informer.PanicError
		if !errors.As(errs[0], &p) || p.Key != "pod1" || p.Value != "fake panic" || !strings.Contains(p.Handler, "bad") || len(p.Stack) == 0 {
			t.Errorf("reported %+v", errs[0])
		}
	})
}

func TestAPanicEndsTheProcessWhenConfigured(t *testing.T) {
	t.Parallel()
	if os.Getenv("INFORMER_TEST_CRASH") != "" {
		i := create(t, newSource("a"), func(c *informer.Config[*thing]) { c.CrashOnPanic = true })
		i.handle(t, &recorder{during: func(string) { panic("as was wanted") }}, informer.HandlerOptions{})
		_ = i.Run(t.Context())
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$") //nolint:gosec // itself
	cmd.Env = append(os.Environ(), "INFORMER_TEST_CRASH=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: as was wanted") {
		t.Errorf("the process ended with %v:\n%s", err, out)
	}
}

func TestRemovingAHandler(t *testing.T) {
	t.Parallel()
	for how, want := range map[informer.Removal][]string{
		informer.Drop:  {"add a@1 initial"},
		informer.Drain: {"add a@1 initial", "update a@1->2", "update a@2->3"},
	} {
		t.Run(fmt.Sprint(how), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				src := newSource("a")
				i := create(t, src, nil)
				hold := make(chan struct{})
				r := &recorder{during: func(string) { <-hold }}
				reg := i.handle(t, r, informer.HandlerOptions{})
				again := &recorder{}
				i.handle(t, again, informer.HandlerOptions{})
				i.run(t)
				src.set("a", "")
				src.set("a", "")
				after(0)
				other := create(t, newSource(), nil)
				other.RemoveHandler(reg, how) // a foreign one
				if n := i.Status().Handlers; n != 2 {
					t.Errorf("%d handlers, want 2", n)
				}
				for range 2 { // idempotent
					i.RemoveHandler(reg, how)
				}
				if n := i.Status().Handlers; n != 1 {
					t.Errorf("%d handlers after the removal, want 1", n)
				}
				src.set("a", "") // is not told any more
				after(0)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := reg.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Wait while it is called: %v, want the context's end", err)
				}
				select {
				case <-reg.Stopped():
					t.Error("a handler that is being called says that it has stopped")
				default:
				}
				close(hold)
				<-reg.Stopped()
				if err := reg.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				wantTold(t, "told", r, want...)
				wantTold(t, "the other one", again, "add a@1 initial", "update a@1->2", "update a@2->3", "update a@3->4")
			})
		})
	}
}

func TestACallbackRemovesItsOwnHandler(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a", "b")
		i := create(t, src, nil)
		var reg *informer.Registration
		var waited error
		r := &recorder{}
		r.during = func(string) {
			i.RemoveHandler(reg, informer.Drop)
			waited = reg.Wait(t.Context())
		}
		reg = i.handle(t, r, informer.HandlerOptions{})
		i.run(t)
		if err := reg.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if !errors.Is(waited, informer.ErrInCallback) {
			t.Errorf("Wait in the callback: %v, want ErrInCallback", waited)
		}
		wantTold(t, "told", r, "add a@1 initial")
		if reg.HasSynced() {
			t.Error("a handler that was removed before it was synced says it is")
		}
	})
}

func TestAHandlerOfAnInformerThatNeverRanIsRemoved(t *testing.T) {
	t.Parallel()
	i := create(t, newSource("a"), nil)
	reg := i.handle(t, &recorder{}, informer.HandlerOptions{})
	i.RemoveHandler(reg, informer.Drain)
	if err := reg.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTheSameHandlerTwiceIsTwoRegistrations(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a")
		i := create(t, src, nil)
		r := &recorder{}
		first := i.handle(t, r, informer.HandlerOptions{})
		i.handle(t, r, informer.HandlerOptions{})
		i.run(t)
		after(0)
		wantTold(t, "both", r, "add a@1 initial", "add a@1 initial")
		i.RemoveHandler(first, informer.Drop)
		src.set("a", "")
		after(0)
		wantTold(t, "the one that is left", r, "update a@1->2")
	})
}

func TestAnInformerRunsOnceAndStopsItsHandlersLast(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		src := newSource("a")
		i := create(t, src, nil)
		hold := make(chan struct{})
		reg := i.handle(t, &recorder{during: func(string) { <-hold }}, informer.HandlerOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- i.Run(ctx) }()
		after(0)
		if err := i.Run(ctx); !errors.Is(err, informer.ErrStarted) {
			t.Errorf("a second Run: %v, want ErrStarted", err)
		}
		cancel()
		after(0)
		src.mu.Lock()
		open := len(src.streams)
		src.mu.Unlock()
		select {
		case <-done:
			t.Error("Run returned while a callback is under way")
		default:
		}
		if open != 0 {
			t.Error("the watch goes on while the handlers end")
		}
		if _, err := i.AddHandler(&recorder{}, informer.HandlerOptions{}); !errors.Is(err, informer.ErrStopped) {
			t.Errorf("AddHandler after the stop: %v, want ErrStopped", err)
		}
		i.RemoveHandler(reg, informer.Drop) // is no error
		close(hold)
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if err := i.AddIndexers(map[string]informer.IndexFunc[*thing]{"x": byValue}); !errors.Is(err, informer.ErrStopped) {
			t.Errorf("AddIndexers after the stop: %v, want ErrStopped", err)
		}
		if err := i.Run(t.Context()); !errors.Is(err, informer.ErrStarted) {
			t.Errorf("Run after a stop: %v, want ErrStarted", err)
		}
		if _, ok, err := i.Store().Get("a"); !ok || err != nil {
			t.Errorf("the store cannot be read after the stop: %v, %v", ok, err)
		}
	})
}

func TestAConfigWithFaultsIsRefusedWithAllOfThem(t *testing.T) {
	t.Parallel()
	_, err := informer.New[*thing](newSource(), informer.Config[*thing]{
		View: client.ViewKeys, Fields: []string{"x"}, Scope: informer.Scope{Index: "node"}, Resync: -1,
	})
	for _, want := range []string{"collection", "decode", "keys", "fields", "node", "resync"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	if _, err := informer.New[client.Object](newSource(), informer.Config[client.Object]{Collection: "c"}); err != nil {
		t.Errorf("an informer of raw objects needs no Decode: %v", err)
	}
}
