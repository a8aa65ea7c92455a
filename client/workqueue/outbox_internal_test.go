package workqueue

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
)

const (
	add     = client.OpAdd
	after   = client.OpAddAfter
	limited = client.OpAddRateLimited
	forget  = client.OpForget
)

// kinds are the operations that calls on one key come to.
func kinds(w *pending, now time.Time) (got []client.OpKind) {
	for _, op := range w.operations("k", 100, now) {
		kind := op.Kind
		if kind == 0 {
			kind = add
		}
		got = append(got, kind)
	}
	return got
}

func TestCallsOnAKeyAreFoldedToWhatTheyComeTo(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for name, x := range map[string]struct{ calls, want []client.OpKind }{
		"adds are one":                         {[]client.OpKind{0, add, add}, []client.OpKind{add}},
		"every rate-limited add counts":        {[]client.OpKind{limited, limited}, []client.OpKind{limited, limited}},
		"forget clears the count, not the run": {[]client.OpKind{limited, limited, forget}, []client.OpKind{limited, forget}},
		"the count begins after forget":        {[]client.OpKind{limited, forget, limited, limited}, []client.OpKind{limited, forget, limited, limited}},
		"forgets are one":                      {[]client.OpKind{forget, forget}, []client.OpKind{forget}},
		"an add takes no delay away":           {[]client.OpKind{after, add}, []client.OpKind{add, after}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w pending
			for _, kind := range x.calls {
				w.fold(client.Op{Key: "k", Kind: kind, Delay: time.Second}, now)
			}
			if d := cmp.Diff(x.want, kinds(&w, now)); d != "" {
				t.Errorf("operations (-want +got):\n%s", d)
			}
			if !w.empty() {
				t.Errorf("left is %+v", w)
			}
		})
	}
}

func TestADelayCountsFromItsCallAndTheEarliestWins(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var w pending
	for _, d := range []time.Duration{9 * time.Second, 5 * time.Second, 7 * time.Second} {
		w.fold(client.Op{Key: "k", Kind: after, Delay: d}, now)
	}
	again := w
	if ops := w.operations("k", 100, now.Add(2*time.Second)); len(ops) != 1 || ops[0].Delay != 3*time.Second {
		t.Errorf("after 2 of 5 seconds it is %+v, want one delay of 3s", ops)
	}
	if d := cmp.Diff([]client.OpKind{add}, kinds(&again, now.Add(6*time.Second))); d != "" {
		t.Errorf("once it is due (-want +got):\n%s", d)
	}
}

func TestWhatFailedComesBeforeWhatWasCalledForSince(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for name, x := range map[string]struct {
		failed client.OpKind
		since  []client.OpKind
		want   []client.OpKind
	}{
		"an add":                         {add, []client.OpKind{add}, []client.OpKind{add}},
		"a count that is forgotten now":  {limited, []client.OpKind{forget}, []client.OpKind{limited, forget}},
		"a count that goes on":           {limited, []client.OpKind{limited}, []client.OpKind{limited, limited}},
		"a forget, counted since":        {forget, []client.OpKind{limited}, []client.OpKind{forget, limited}},
		"a forget that was called again": {forget, []client.OpKind{limited, forget}, []client.OpKind{limited, forget}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w pending
			for _, kind := range x.since {
				w.fold(client.Op{Kind: kind}, now)
			}
			w.before(client.Op{Kind: x.failed}, now)
			if d := cmp.Diff(x.want, kinds(&w, now)); d != "" {
				t.Errorf("operations (-want +got):\n%s", d)
			}
		})
	}
}

// service is a service that answers when it is asked to.
type service struct {
	mu   sync.Mutex
	sent []client.Op
	done []func(error)
	came chan struct{}
}

func (s *service) send(op client.Op, done func(error)) {
	s.mu.Lock()
	s.sent, s.done = append(s.sent, op), append(s.done, done)
	s.mu.Unlock()
	s.came <- struct{}{}
}

// answer answers everything that was sent so far.
func (s *service) answer(err error) {
	s.mu.Lock()
	done := s.done
	s.done = nil
	s.mu.Unlock()
	for _, f := range done {
		f(err)
	}
}

func TestTheOutboxNeedsMemoryByKeyAndSendsOneKeyOnceAtATime(t *testing.T) {
	t.Parallel()
	s := &service{came: make(chan struct{}, 10)}
	o := newOutbox(1, s.send, func(client.Op, error) bool { return false })
	for range 100_000 {
		o.put(client.Op{Key: "a"})
		o.put(client.Op{Key: "b"})
	}
	if len(o.entries) != 2 || len(o.ready) != 2 {
		t.Fatalf("200,000 adds of two keys make %d entries and %d to send", len(o.entries), len(o.ready))
	}
	var running sync.WaitGroup
	running.Go(o.run)
	<-s.came
	for range 100_000 {
		o.put(client.Op{Key: "a"}) // after the one that was sent
	}
	s.answer(nil)
	<-s.came // b: the window is one
	s.answer(nil)
	<-s.came // a, once more
	s.answer(nil)
	if err := o.flush(t.Context(), ""); err != nil {
		t.Error(err)
	}
	var keys []string
	for _, op := range s.sent {
		keys = append(keys, op.Key)
	}
	if d := cmp.Diff([]string{"a", "b", "a"}, keys); d != "" {
		t.Errorf("sent (-want +got):\n%s", d)
	}
	if len(o.entries) != 0 {
		t.Errorf("%d entries are left of answered keys", len(o.entries))
	}
	o.close()
	running.Wait()
}

func TestAFlushEndsWithAFailureAndTheEndNamesWhatWasNotSent(t *testing.T) {
	t.Parallel()
	s := &service{came: make(chan struct{}, 10)}
	full := errors.New("the store is full")
	var failures []error
	o := newOutbox(10, s.send, func(_ client.Op, err error) bool {
		failures = append(failures, err)
		return errors.Is(err, full)
	})
	o.put(client.Op{Key: "a"})
	var running sync.WaitGroup
	running.Go(o.run)
	<-s.came
	flushed := make(chan error, 1)
	go func() { flushed <- o.flush(t.Context(), "a") }()
	s.answer(full)
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	o.again()
	<-s.came // it is sent once more
	s.answer(full)
	o.close()
	running.Wait()
	if len(failures) != 3 || !errors.Is(failures[2], errNotSent) {
		t.Errorf("failures are %v, want two of the store and one at the end", failures)
	}
	if o.put(client.Op{Key: "a"}) {
		t.Error("a closed outbox takes calls")
	}
}

func TestAFlushOfWhatIsNotSentEndsWithItsContext(t *testing.T) {
	t.Parallel()
	o := newOutbox(1, nil, nil)
	o.put(client.Op{Key: "a"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for _, key := range []string{"", "a"} {
		if err := o.flush(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("flush of %q: %v", key, err)
		}
	}
}

func TestWhatIsUselessToSendAgainIsKnown(t *testing.T) {
	t.Parallel()
	for code, want := range map[codes.Code]bool{codes.InvalidArgument: false, codes.Unimplemented: false, codes.ResourceExhausted: true} {
		if got := useful(&client.Error{Code: code}); got != want {
			t.Errorf("useful of %v is %t", code, got)
		}
	}
}

// Flush must not return on the strength of an answer that says no: a leader saves its position
// then.
func TestAFailureIsAnsweredAndNotAcknowledged(t *testing.T) {
	var fail atomic.Bool
	fail.Store(true)
	o := newOutbox(10, func(_ client.Op, done func(error)) {
		if fail.Load() {
			done(errors.New("it is away"))
			return
		}
		done(nil)
	}, func(client.Op, error) bool { return true })
	var running sync.WaitGroup
	running.Go(o.run)
	defer running.Wait()
	defer o.close()
	o.put(client.Op{Key: "a"})
	if err := o.flush(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.acknowledged(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("what failed is acknowledged: %v", err)
	}
	fail.Store(false)
	o.again()
	if err := o.acknowledged(t.Context()); err != nil {
		t.Error(err)
	}
}
