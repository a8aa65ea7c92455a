package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/client"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func TestCallsOfManyMakeFewBatchesInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{Name: "me"})
		defer stop()
		sc := <-s.streams
		if sc.hello.GetSessionId() != p.Session() || sc.hello.GetClient() != "me" {
			t.Errorf("hello is %v", sc.hello)
		}
		sc.welcome(1)
		var answers []string
		send := func(op client.Op) {
			if err := p.Send(t.Context(), op, func(r client.OpResult, err error) {
				answers = append(answers, fmt.Sprint(op.Key, " ", r.Status, " ", r.NumRequeues, " ", err))
			}); err != nil {
				t.Fatal(err)
			}
		}
		send(client.Op{Key: "first"})
		first := <-sc.in
		send(client.Op{Key: "a", Priority: 1, Trace: "t1", Barrier: client.Barrier{"c": {Epoch: 1, RV: "5"}}})
		send(client.Op{Key: "b", Kind: client.OpAddAfter, Delay: time.Minute, Last: true})
		send(client.Op{Key: "a", Priority: 2, Barrier: client.Barrier{"c": {Epoch: 1, RV: "4"}, "d": {Epoch: 1, RV: "1"}}})
		send(client.Op{Key: "b", Kind: client.OpAddRateLimited})
		send(client.Op{Key: "b", Kind: client.OpForget})
		send(client.Op{Key: "b", Kind: client.OpNumRequeues})
		synctest.Wait()
		if len(sc.in) != 0 {
			t.Fatal("a window of one let a second batch pass")
		}
		sc.queued(first)
		second := <-sc.in
		want := &queuev1.ProduceBatch{RequestId: first.GetRequestId() + 1, Queue: "dev/test", Ops: []*queuev1.ProduceOp{
			{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD, Priority: 2, Traceparent: "t1", Barrier: []*deltav1.CollectionRevision{
				{Collection: "c", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "5"}},
				{Collection: "d", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1"}},
			}},
			{Key: "b", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, Delay: durationpb.New(time.Minute), Policy: queuev1.DelayPolicy_DELAY_POLICY_LAST},
			{Key: "b", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED},
			{Key: "b", Kind: queuev1.ProduceKind_PRODUCE_KIND_FORGET},
			{Key: "b", Kind: queuev1.ProduceKind_PRODUCE_KIND_NUM_REQUEUES},
		}}
		if d := cmp.Diff(want, second, protocmp.Transform()); d != "" {
			t.Errorf("second batch (-want +got):\n%s", d)
		}
		sc.answer(&queuev1.Produced{
			RequestId: second.GetRequestId(), Statuses: []queuev1.AddStatus{1, 4, 4, 0, 0},
			Details: []*queuev1.ProduceDetail{
				{Index: 1, ReadyAt: timestamppb.New(time.Unix(60, 0))},
				{Index: 2, NumRequeues: 3, ReadyAt: timestamppb.New(time.Unix(61, 0))},
				{Index: 4, Error: &queuev1.ProduceError{Code: int32(codes.FailedPrecondition), Reason: "QUEUE_CLOSED", Message: "closed"}},
			},
		})
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if d := cmp.Diff([]string{
			"first queued 0 <nil>", "a queued 0 <nil>", "b delayed 0 <nil>",
			"a already_queued 0 <nil>", "b delayed 3 <nil>", "b unspecified 0 <nil>",
			"b unspecified 0 client: add to queue dev/test: rpc error: code = FailedPrecondition desc = closed",
		}, answers); d != "" {
			t.Errorf("answers (-want +got):\n%s", d)
		}
	})
}

func TestWhatABrokenStreamDidNotAnswerIsSentAgainUnderItsNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{})
		defer stop()
		old := <-s.streams
		old.welcome(8)
		results := make(chan error, 3)
		add := func(key string) {
			go func() {
				_, err := p.Add(t.Context(), client.AddItem{Key: key})
				results <- err
			}()
			synctest.Wait()
		}
		add("a")
		add("b")
		a, b := <-old.in, <-old.in
		old.queued(a)
		if err := <-results; err != nil {
			t.Error(err)
		}
		old.end <- errors.New("broken")
		again := <-s.streams
		add("c")
		again.welcome(8)
		b2, c := <-again.in, <-again.in
		if b2.GetRequestId() != b.GetRequestId() || keysOf(b2)[0] != "b" || again.hello.GetSessionId() != old.hello.GetSessionId() {
			t.Errorf("after the break came %v, want %v in the same session", b2, b)
		}
		if c.GetRequestId() != b.GetRequestId()+1 || keysOf(c)[0] != "c" {
			t.Errorf("then came %v", c)
		}
		again.queued(b2)
		again.queued(c)
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAServerThatGoesAwayAnswersWhatItHasAndNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{})
		defer stop()
		old := <-s.streams
		old.welcome(8)
		results := make(chan error, 2)
		go func() { _, err := p.Add(t.Context(), client.AddItem{Key: "a"}); results <- err }()
		a := <-old.in
		old.reconnect()
		if _, more := <-old.in; more {
			t.Error("something was sent to a server that goes away")
		}
		go func() { _, err := p.Add(t.Context(), client.AddItem{Key: "b"}); results <- err }()
		synctest.Wait()
		old.queued(a)
		synctest.Wait()
		old.end <- nil
		again := <-s.streams
		again.welcome(8)
		b := <-again.in
		if d := cmp.Diff([]string{"b"}, keysOf(b)); d != "" || b.GetRequestId() != a.GetRequestId()+1 {
			t.Errorf("the next stream got %v", b)
		}
		again.queued(b)
		for range 2 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestARefusedBatchFailsOnlyTheOperationAtFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{})
		defer stop()
		errs := map[string]error{}
		for _, key := range []string{"a", "bad", "c"} {
			if err := p.Send(t.Context(), client.Op{Key: key}, func(_ client.OpResult, err error) { errs[key] = err }); err != nil {
				t.Fatal(err)
			}
		}
		sc := <-s.streams
		sc.welcome(8)
		invalid := &queuev1.ProduceError{Code: int32(codes.InvalidArgument), Message: "ops[1]: bad"}
		sc.refuse(<-sc.in, invalid)
		for range 3 {
			b := <-sc.in
			if len(b.GetOps()) != 1 {
				t.Fatalf("not alone: %v", b)
			}
			if keysOf(b)[0] == "bad" {
				sc.refuse(b, invalid)
			} else {
				sc.queued(b)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if e, ok := errors.AsType[*client.Error](errs["bad"]); !ok || e.Code != codes.InvalidArgument {
			t.Errorf("the one at fault: %v", errs["bad"])
		}
		if len(errs) != 3 || errs["a"] != nil || errs["c"] != nil {
			t.Errorf("errors: %v", errs)
		}
	})
}

func TestErrorsOfABatchAreTypedAsThoseOfACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{})
		defer stop()
		sc := <-s.streams
		sc.welcome(8)
		try := func() error {
			_, err := p.Do(t.Context(), client.Op{Key: "a"})
			return err
		}
		got := make(chan error, 1)
		go func() { got <- try() }()
		sc.refuse(<-sc.in, &queuev1.ProduceError{Code: int32(codes.ResourceExhausted), Reason: "STORE_FULL", RetryAfter: durationpb.New(time.Second)})
		e, ok := errors.AsType[*client.Error](<-got)
		if !ok || e.Reason != "STORE_FULL" || e.RetryAfter != time.Second || e.Code != codes.ResourceExhausted {
			t.Errorf("store full: %#v", e)
		}
		go func() { got <- try() }()
		sc.refuse(<-sc.in, &queuev1.ProduceError{Code: int32(codes.FailedPrecondition), Reason: "QUEUE_CLOSED"})
		if err := <-got; !errors.Is(err, client.ErrQueueClosed) {
			t.Errorf("closed: %v", err)
		}

		// What was surely not done, or may have been, is tried again under its number.
		for _, code := range []codes.Code{codes.Unavailable, codes.Unknown} {
			go func() { got <- try() }()
			b := <-sc.in
			began := time.Now()
			sc.refuse(b, &queuev1.ProduceError{Code: int32(code), RetryAfter: durationpb.New(3 * time.Second)})
			b2 := <-sc.in
			if b2.GetRequestId() != b.GetRequestId() || time.Since(began) < 3*time.Second {
				t.Errorf("%v: tried again after %v as %v", code, time.Since(began), b2)
			}
			sc.queued(b2)
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestACallersContextIsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{})
		defer stop()
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := p.Do(brief, client.Op{Key: "a"}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the brief one: %v", err)
			}
		})
		sc := <-s.streams
		sc.welcome(8)
		b := <-sc.in // of the brief one alone
		wg.Go(func() {
			if r, err := p.Do(t.Context(), client.Op{Key: "b"}); err != nil || r.Status != client.AddQueued {
				t.Errorf("the other one: %v, %v", r, err)
			}
		})
		go func() { sc.queued(<-sc.in) }()
		time.Sleep(2 * time.Second)
		sc.queued(b)
		wg.Wait()

		// Nobody waits for it any more: it is not tried again.
		brief, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wg.Go(func() { _, _ = p.Do(brief, client.Op{Key: "gone"}) })
		sc.refuse(<-sc.in, &queuev1.ProduceError{Code: int32(codes.Unavailable), Message: "store is away", RetryAfter: durationpb.New(2 * time.Second)})
		time.Sleep(3 * time.Second)
		wg.Wait()
		if len(sc.in) != 0 {
			t.Errorf("sent again: %v", <-sc.in)
		}
	})
}

func TestBadOperationsAreRefusedBeforeTheyTravel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, _, stop := produce(t, client.ProducerConfig{})
		defer stop()
		for field, op := range map[string]client.Op{
			"key":         {},
			"key ":        {Key: strings.Repeat("x", 1025)},
			"key  ":       {Key: "\xff"},
			"priority":    {Key: "a", Priority: 4},
			"delay":       {Key: "a", Kind: client.OpAddAfter, Delay: -1},
			"delay ":      {Key: "a", Delay: 1},
			"traceparent": {Key: "a", Trace: "\xff"},
		} {
			_, err := p.Do(t.Context(), op)
			e, ok := errors.AsType[*client.Error](err)
			if !ok || e.Code != codes.InvalidArgument || e.Fields[strings.TrimSpace(field)] == "" {
				t.Errorf("%q: %v does not name the field", field, err)
			}
		}
	})
}

func TestAStopWaitsForAnswersAndNotForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{Grace: 5 * time.Second})
		sc := <-s.streams
		sc.welcome(8)
		errs := make(chan error, 2)
		send := func(key string) {
			if err := p.Send(t.Context(), client.Op{Key: key}, func(_ client.OpResult, err error) { errs <- err }); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		send("a")
		send("b")
		go func() {
			a := <-sc.in
			time.Sleep(time.Second)
			sc.queued(a)
		}()
		began := time.Now()
		stop()
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("the stop took %v, want the grace of 5s", took)
		}
		if err := <-errs; err != nil {
			t.Errorf("answered in the grace: %v", err)
		}
		if err := <-errs; !errors.Is(err, client.ErrStopped) {
			t.Errorf("not answered: %v, want ErrStopped", err)
		}
		if _, err := p.Do(t.Context(), client.Op{Key: "c"}); !errors.Is(err, client.ErrStopped) {
			t.Errorf("after the stop: %v, want ErrStopped", err)
		}
	})
}

func TestAServiceWithoutProduceRefusesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{})
		defer stop()
		sc := <-s.streams
		sc.end <- errUnimplemented
		synctest.Wait()
		_, err := p.Do(t.Context(), client.Op{Key: "a"})
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != codes.Unimplemented {
			t.Errorf("Do = %v, want an unimplemented one", err)
		}
	})
}

func TestSendWaitsWhenTooMuchIsPending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, stop := produce(t, client.ProducerConfig{MaxPending: 2})
		defer stop()
		sc := <-s.streams
		for _, key := range []string{"a", "b"} {
			if err := p.Send(t.Context(), client.Op{Key: key}, nil); err != nil {
				t.Fatal(err)
			}
		}
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Send(brief, client.Op{Key: "c"}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Send beyond the bound: %v", err)
		}
		sc.welcome(8)
		go func() {
			for b := range sc.in {
				sc.queued(b)
			}
		}()
		if err := p.Send(t.Context(), client.Op{Key: "c"}, nil); err != nil {
			t.Error(err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestARestartedProducerGoesOnAboveTheNumbersItUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		run := func() uint64 {
			p, s, stop := produce(t, client.ProducerConfig{Session: "kept over the restart"})
			defer stop()
			sc := <-s.streams
			sc.welcome(8)
			done := make(chan error, 1)
			go func() {
				_, err := p.Add(t.Context(), client.AddItem{Key: "a"})
				done <- err
			}()
			b := <-sc.in
			sc.queued(b)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			return b.GetRequestId()
		}
		first := run()
		time.Sleep(time.Second)
		if again := run(); again <= first {
			t.Errorf("after a restart the first number is %d, want above %d", again, first)
		}
	})
}
