package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/workqueue"
)

// What client-go's own tests of util/workqueue hold it to (informer.md section
// 7), on this queue. Names say which rule, and which of the tests there.

// many is the crowd of TestBasic and TestAddWhileProcessing: 50 producers of 50
// adds each, 10 workers; no key is held twice at a time.
func many(t *testing.T, q *workqueue.Queue, left func() client.Counts, shutDown func(), work func(key string, seen int)) map[string]int {
	t.Helper()
	var producers, workers sync.WaitGroup
	var mu sync.Mutex
	runs, held := map[string]int{}, map[string]bool{}
	for i := range 50 {
		producers.Go(func() {
			for range 50 {
				q.Add(fmt.Sprint(i))
			}
		})
	}
	for range 10 {
		workers.Go(func() {
			for {
				key, shutdown := q.Get()
				if shutdown {
					return
				}
				mu.Lock()
				if key == "after the shutdown" {
					t.Error("a key added after the shutdown was handed out")
				}
				if held[key] {
					t.Errorf("%s is held twice", key)
				}
				held[key] = true
				runs[key]++
				seen := runs[key]
				mu.Unlock()
				work(key, seen)
				mu.Lock()
				held[key] = false
				mu.Unlock()
				q.Done(key)
			}
		})
	}
	producers.Wait()
	shutDown()
	q.Add("after the shutdown")
	workers.Wait()
	q.Wait()
	if n := left(); n.Ready+n.Processing != 0 {
		t.Errorf("left are %v, want none", n)
	}
	return runs
}

func TestBasic(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		for name, shutDown := range map[string]func(*workqueue.Queue){
			"ShutDown": (*workqueue.Queue).ShutDown, "ShutDownWithDrain": (*workqueue.Queue).ShutDownWithDrain,
		} {
			t.Run("every key added before "+name+" runs, none added after it", func(t *testing.T) {
				t.Parallel()
				q := s.openNamed(t, "basic/"+name, nil)
				runs := many(t, q, func() client.Counts { return s.left(t, "basic/"+name) }, func() { shutDown(q) }, func(string, int) {})
				if len(runs) != 50 {
					t.Errorf("%d keys ran, want 50", len(runs))
				}
			})
		}
	})
}

func TestAddWhileProcessing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		for name, shutDown := range map[string]func(*workqueue.Queue){
			"ShutDown": (*workqueue.Queue).ShutDown, "ShutDownWithDrain": (*workqueue.Queue).ShutDownWithDrain,
		} {
			t.Run("a key added while it is held runs once more, "+name, func(t *testing.T) {
				t.Parallel()
				q := s.openNamed(t, "while/"+name, nil)
				var again atomic.Int64
				runs := many(t, q, func() client.Counts { return s.left(t, "while/"+name) }, func() {
					eventually(t, 10*time.Second, "every key was added again", func() bool { return again.Load() == 50 })
					shutDown(q)
				}, func(key string, seen int) {
					if seen == 1 {
						q.Add(key)
						again.Add(1)
					}
				})
				for key, n := range runs {
					if n < 2 {
						t.Errorf("%s ran %d times, want at least 2", key, n)
					}
				}
			})
		}
	})
}

func TestLen(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		for i, x := range []struct {
			add  string
			want int
		}{{"foo", 1}, {"bar", 2}, {"foo", 2}} {
			q.Add(x.add)
			if n := q.Len(); n != x.want {
				t.Errorf("Len after add %d of %s is %d, want %d", i+1, x.add, n, x.want)
			}
		}
	})
}

func TestReinsert(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		q.Add("foo")
		key := get(t, q)
		q.Add(key)
		if n := q.Len(); n != 0 {
			t.Errorf("Len counts %d keys that are held", n)
		}
		q.Done(key)
		if again := get(t, q); again != "foo" {
			t.Errorf("after Done came %q, want foo", again)
		}
		q.Done("foo")
		if n := q.Len(); n != 0 {
			t.Errorf("Len is %d, want 0", n)
		}
	})
}

func TestCollapse(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		q.Add("bar")
		q.Add("bar")
		q.Done(get(t, q))
		if n := q.Len(); n != 0 {
			t.Errorf("two adds of a key make %d further runs, want none", n)
		}
	})
}

func TestCollapseWhileProcessing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		q.Add("bar")
		key := get(t, q)
		q.Add("bar")
		q.Add("bar")
		second := make(chan string)
		go func() {
			key, _ := q.Get()
			second <- key
		}()
		never(t, 100*time.Millisecond, "a second worker got the key that is held", func() bool {
			select {
			case <-second:
				return true
			default:
				return false
			}
		})
		q.Done(key)
		if again := <-second; again != "bar" {
			t.Errorf("the second worker got %q after Done, want bar", again)
		}
		q.Done("bar")
		if n := q.Len(); n != 0 {
			t.Errorf("two adds while it was held make %d further runs, want none", n)
		}
	})
}

// background runs f and tells when it has returned.
func background(f func()) (returned func() bool, wait chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}, done
}

func TestQueueDrainageUsingShutDownWithDrain(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		q.Add("foo")
		q.Add("bar")
		first, second := get(t, q), get(t, q)
		returned, done := background(q.ShutDownWithDrain)
		never(t, 50*time.Millisecond, "a drain ended with two keys held", returned)
		if !q.ShuttingDown() {
			t.Error("a queue that drains is not shutting down")
		}
		q.Done(first)
		never(t, 50*time.Millisecond, "a drain ended with one key held", returned)
		q.Done(second)
		<-done
		if _, shutdown := q.Get(); !shutdown {
			t.Error("Get of a drained queue tells of no shutdown")
		}
	})
}

func TestNoQueueDrainageUsingShutDown(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		q.Add("foo")
		q.Add("bar")
		get(t, q)
		get(t, q)
		q.ShutDown() // does not wait
		if !q.ShuttingDown() {
			t.Error("the queue is not shutting down")
		}
	})
}

func TestForceQueueShutdownUsingShutDown(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		q.Add("foo")
		q.Add("bar")
		get(t, q)
		get(t, q)
		returned, done := background(q.ShutDownWithDrain)
		never(t, 50*time.Millisecond, "a drain ended with keys held", returned)
		q.ShutDown() // ends a drain
		<-done
	})
}

func TestQueueDrainageUsingShutDownWithDrainWithDirtyItem(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		q.Add("foo")
		key := get(t, q)
		q.Add("foo")
		_, done := background(q.ShutDownWithDrain)
		// A worker's loop: it ends, although a key is in hand that will come again.
		for shutdown := false; !shutdown; {
			var other string
			if other, shutdown = q.Get(); !shutdown {
				t.Fatalf("%q came while it was held", other)
			}
		}
		q.Done(key)
		again, shutdown := q.Get()
		if shutdown || again != "foo" {
			t.Fatalf("after Done of a key that is dirty came %q, shutdown %t; want foo", again, shutdown)
		}
		q.Done(again)
		if key, shutdown := q.Get(); !shutdown {
			t.Errorf("then there is %q", key)
		}
		<-done
		q.Wait()
		if n := s.left(t, "test"); n.Ready+n.Processing != 0 {
			t.Errorf("left are %v, want none", n)
		}
	})
}

func TestAKeyDirtyAtTheEndThatAnotherReplicaTakesEndsTheShutdown(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q, replica := s.openNamed(t, "taken", nil), s.openNamed(t, "taken", nil)
		q.Add("foo")
		key := get(t, q)
		q.Add("foo")
		q.ShutDown()
		if _, shutdown := q.Get(); !shutdown {
			t.Fatal("there is more than the key in hand")
		}
		taken := make(chan string)
		go func() {
			key, _ := replica.Get()
			taken <- key
		}()
		q.Done(key)
		if key, shutdown := q.Get(); !shutdown { // it may have come first
			q.Done(key)
			replica.Add("foo")
		}
		if got := <-taken; got != "foo" {
			t.Errorf("the other replica got %q", got)
		}
		replica.Done("foo")
		if _, shutdown := q.Get(); !shutdown {
			t.Error("Get says of no shutdown")
		}
		q.Wait()
	})
}

func TestDoneOfAKeyThatIsNotHeldChangesNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		var told atomic.Int64
		q := s.openNamed(t, "q03", func(op, key string, err error) {
			if op != "done" || key != "a" {
				t.Errorf("%s %q: %v", op, key, err)
			}
			told.Add(1)
		})
		q.Add("a")
		q.Len()
		q.Done("a") // client-go would queue a second copy of it
		if n := q.Len(); n != 1 || told.Load() != 1 {
			t.Errorf("%d keys are queued and %d errors told, want 1 and 1", n, told.Load())
		}
	})
}

func TestTwoReplicasShareTheKeysAndHoldEachOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		a, b := s.openNamed(t, "shared", nil), s.openNamed(t, "shared", nil)
		a.Add("one")
		key := get(t, a)
		b.Add("one")
		b.Add("two")
		if got := get(t, b); got != "two" {
			t.Errorf("the other replica got %q, want two: one is held", got)
		}
		if item, ok := a.Item(key); !ok || item.Token == 0 || a.Context(key).Err() != nil {
			t.Errorf("a key in hand has item %v and context %v", item, a.Context(key).Err())
		}
		a.Done(key)
		if got := get(t, b); got != "one" {
			t.Errorf("then it got %q, want one", got)
		}
		if a.Context(key).Err() == nil {
			t.Error("the context of a key that is not held is alive")
		}
	})
}

func TestAKeyThatCannotBeAddedIsToldAndDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		errs := make(chan string, 10)
		q := s.openNamed(t, "bad", func(op, _ string, err error) { errs <- op + ": " + err.Error() })
		q.Add(strings.Repeat("x", 2000))
		q.Add("good")
		if got := get(t, q); got != "good" {
			t.Errorf("got %q", got)
		}
		if text := <-errs; !strings.HasPrefix(text, "add: ") || !strings.Contains(text, "1024") {
			t.Errorf("told %q", text)
		}
	})
}

func TestTheEndOfTheContextIsAShutdownAndLetsWhatIsHeldBeDone(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		q, err := workqueue.New(ctx, s.conn, workqueue.Config{Queue: "end"})
		if err != nil {
			t.Fatal(err)
		}
		q.Add("a")
		key := get(t, q)
		cancel()
		if _, shutdown := q.Get(); !shutdown {
			t.Error("Get after the end tells of no shutdown")
		}
		q.Done(key)
		q.Wait()
		if n := s.left(t, "end"); n.Ready+n.Processing != 0 {
			t.Errorf("left are %v, want none: it was done in the grace", n)
		}
	})
}

// What an add carries reaches the worker, also of adds that are folded before they are sent.
func TestAKeyKeepsTheHighestPriorityAndBarrierOfItsAdds(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		q := s.open(t)
		for priority, rv := range map[int]string{-2: "5", 3: "4", 1: "7"} {
			b := client.Barrier{"dev/pods.v1": {Epoch: 1, RV: rv}}
			q.AddItem(client.AddItem{Key: "a", Priority: priority, Barrier: b}, workqueue.AddOptions{})
			b["dev/pods.v1"] = client.Revision{Epoch: 1, RV: "99"} // it is the caller's
		}
		if err := q.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		item, err := q.GetItem(t.Context())
		if err != nil || item.Priority != 3 || item.Barrier["dev/pods.v1"].RV != "7" {
			t.Errorf("%+v, %v", item, err)
		}
		one := 1
		q.Settle("a", client.Result{Outcome: client.OutcomeAfter, After: time.Millisecond, Priority: &one, Wrote: client.Barrier{"dev/nodes.v1": {Epoch: 1, RV: "3"}}})
		if item, err = q.GetItem(t.Context()); err != nil || item.Priority != 1 || item.Barrier["dev/nodes.v1"].RV != "3" {
			t.Errorf("settled with a result, %+v, %v", item, err)
		}
		q.Done("a")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.GetItem(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("GetItem ended with its context: %v", err)
		}
	})
}
