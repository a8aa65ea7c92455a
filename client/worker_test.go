package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

func lease(key string, token uint64) *queuev1.Lease {
	return &queuev1.Lease{Queue: "dev/test", Key: key, Token: token, Attempt: 1}
}

func ref(key string, token uint64) *queuev1.LeaseRef {
	return &queuev1.LeaseRef{Queue: "dev/test", Key: key, Token: token}
}

func TestWhatAReconcileReturnsBecomesASettlement(t *testing.T) {
	t.Parallel()
	failure := errors.New("no quota")
	for name, c := range map[string]struct {
		res  client.Result
		err  error
		want *queuev1.Settlement
	}{
		"success forgets":                   {client.Result{}, nil, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_FORGET}},
		"an error is rate limited":          {client.Result{}, failure, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED, Reason: "no quota"}},
		"an error ignores After":            {client.Result{After: time.Hour}, failure, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED, Reason: "no quota"}},
		"After forgets and adds later":      {client.Result{After: time.Minute}, nil, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_RETRY_AFTER, Delay: durationpb.New(time.Minute)}},
		"a terminal error is not run again": {client.Result{}, client.Terminal(fmt.Errorf("x: %w", failure)), &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_DEAD, Reason: "terminal: x: no quota"}},
		"requeue is rate limited":           {client.Result{Outcome: client.OutcomeRateLimited}, nil, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED}},
		"done keeps the limiter's memory":   {client.Result{Outcome: client.OutcomeDone}, nil, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_DONE}},
		"a release may wait":                {client.Result{Outcome: client.OutcomeRelease, After: time.Second}, nil, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_RELEASE, Delay: durationpb.New(time.Second)}},
		"an unmet barrier is an uncounted release": {client.Result{}, fmt.Errorf("read pods: %w", client.ErrRevisionNotReached), &queuev1.Settlement{
			Outcome: queuev1.Outcome_OUTCOME_RELEASE, Delay: durationpb.New(500 * time.Millisecond), Reason: "read pods: client: REVISION_NOT_REACHED",
		}},
		"an unknown collection is an error": {client.Result{}, client.ErrCollectionNotFound, &queuev1.Settlement{Outcome: queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED, Reason: "client: COLLECTION_NOT_FOUND"}},
		"revisions travel": {
			client.Result{ReadAt: client.Reading{"dev/pods.v1": bounds("7", "7")}, Wrote: client.Barrier{"dev/jobs.v1.batch": {Epoch: 3, RV: "9"}}, Priority: new(2)},
			nil,
			&queuev1.Settlement{
				Outcome: queuev1.Outcome_OUTCOME_FORGET, Priority: wrapperspb.Int32(2),
				ReadAt: []*deltav1.CollectionRevision{{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "7"}}},
				Wrote: []*deltav1.CollectionRevision{
					{Collection: "dev/jobs.v1.batch", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "9"}},
					{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "7"}},
				},
			},
		},
		"the next run reads no older than this one, and sees its writes": {
			client.Result{
				ReadAt: client.Reading{"dev/jobs.v1.batch": bounds("8", "8"), "dev/pods.v1": bounds("10", "12")},
				Wrote:  client.Barrier{"dev/jobs.v1.batch": {Epoch: 3, RV: "9"}, "dev/pods.v1": {RV: "9"}},
			},
			nil,
			&queuev1.Settlement{
				Outcome: queuev1.Outcome_OUTCOME_FORGET,
				ReadAt: []*deltav1.CollectionRevision{
					{Collection: "dev/jobs.v1.batch", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "8"}},
					{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "10"}},
				},
				Wrote: []*deltav1.CollectionRevision{
					{Collection: "dev/jobs.v1.batch", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "9"}},
					{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "12"}},
				},
			},
		},
		"a long reason is cut between characters": {client.Result{}, errors.New(strings.Repeat("ä", 1000)), &queuev1.Settlement{
			Outcome: queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED, Reason: strings.Repeat("ä", 512),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := work(t, client.WorkerConfig{}, func(context.Context, client.Item) (client.Result, error) { return c.res, c.err })
				sc := b.open()
				sc.assign(lease("ns/a", 5))
				batch := sc.settle()
				c.want.Queue, c.want.Key, c.want.Token = "dev/test", "ns/a", 5
				if diff := cmp.Diff([]*queuev1.Settlement{c.want}, batch.GetSettlements(), protocmp.Transform()); diff != "" {
					t.Errorf("settlement (-want +got)\n%s", diff)
				}
				sc.answer(batch)
				if err := b.stop(); err != nil {
					t.Errorf("Run = %v, want nil", err)
				}
			})
		})
	}
}

func TestAPanicIsAnErrorOfItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{}, func(_ context.Context, item client.Item) (client.Result, error) {
			if item.Key == "ns/bad" {
				panic("boom")
			}
			return client.Result{}, nil
		})
		sc := b.open()
		sc.assign(lease("ns/bad", 1))
		batch := sc.settle()
		if s := batch.GetSettlements()[0]; s.GetOutcome() != queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED || !strings.Contains(s.GetReason(), "boom") {
			t.Errorf("settled %v, want a retry that names the panic", s)
		}
		sc.answer(batch)
		sc.assign(lease("ns/good", 2))
		batch = sc.settle()
		sc.answer(batch)
		if got := batch.GetSettlements()[0].GetOutcome(); got != queuev1.Outcome_OUTCOME_FORGET {
			t.Errorf("the next key ended with %v", got)
		}
	})
}

func TestAStopFirstFinishesThenCancels(t *testing.T) {
	t.Parallel()
	t.Run("within the grace period everything is finished", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := work(t, client.WorkerConfig{Prefetch: 1, Grace: 5 * time.Second}, func(ctx context.Context, _ client.Item) (client.Result, error) {
				time.Sleep(3 * time.Second)
				return client.Result{}, ctx.Err()
			})
			sc := b.open()
			sc.assign(lease("ns/a", 1), lease("ns/waiting", 2))
			synctest.Wait()
			done := make(chan error, 1)
			go func() { done <- b.stop() }()
			released := sc.settle()
			if s := released.GetSettlements()[0]; s.GetKey() != "ns/waiting" || s.GetOutcome() != queuev1.Outcome_OUTCOME_RELEASE {
				t.Errorf("at once settled %v, want what waited given back", released)
			}
			sc.answer(released)
			finished := sc.settle()
			if s := finished.GetSettlements()[0]; s.GetKey() != "ns/a" || s.GetOutcome() != queuev1.Outcome_OUTCOME_FORGET {
				t.Errorf("then settled %v, want the running one finished", finished)
			}
			sc.answer(finished)
			if err := <-done; err != nil {
				t.Errorf("Run = %v, want nil", err)
			}
		})
	})
	t.Run("after it the rest is cancelled and given back", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := work(t, client.WorkerConfig{Grace: 2 * time.Second}, func(ctx context.Context, _ client.Item) (client.Result, error) {
				<-ctx.Done()
				return client.Result{}, context.Cause(ctx)
			})
			sc := b.open()
			sc.assign(lease("ns/a", 1))
			synctest.Wait()
			began := time.Now()
			done := make(chan error, 1)
			go func() { done <- b.stop() }()
			if !sc.goodbye() {
				t.Error("no goodbye: the server would assign more")
			}
			batch := sc.settle()
			if s := batch.GetSettlements()[0]; s.GetOutcome() != queuev1.Outcome_OUTCOME_RELEASE || time.Since(began) != 2*time.Second {
				t.Errorf("settled %v after %v, want a release after the grace period", s, time.Since(began))
			}
			sc.answer(batch)
			if err := <-done; err != nil {
				t.Errorf("Run = %v, want nil", err)
			}
		})
	})
	t.Run("a reconcile that never returns is named", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			forever := make(chan struct{})
			b := work(t, client.WorkerConfig{Grace: time.Second}, func(context.Context, client.Item) (client.Result, error) {
				<-forever
				return client.Result{}, nil
			})
			sc := b.open()
			sc.assign(lease("ns/stuck", 1))
			synctest.Wait()
			if err := b.stop(); err == nil || !strings.Contains(err.Error(), "ns/stuck") {
				t.Errorf("Run = %v, want an error that names the key", err)
			}
			close(forever)
		})
	})
}

func TestAShutDownSessionEndsTheWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{}, func(context.Context, client.Item) (client.Result, error) {
			time.Sleep(time.Second)
			return client.Result{}, nil
		})
		sc := b.open()
		sc.assign(lease("ns/a", 1))
		synctest.Wait()
		sc.control(queuev1.Action_ACTION_SHUT_DOWN)
		sc.answer(sc.settle())
		if err := b.wait(); !errors.Is(err, client.ErrShutDown) {
			t.Errorf("Run = %v, want ErrShutDown", err)
		}
	})
}

func TestARefusedHelloEndsTheWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{}, func(context.Context, client.Item) (client.Result, error) { return client.Result{}, nil })
		(<-b.streams).end <- rpc.Status(rpc.InvalidArgument("hello.queues[0]", "not a queue name"), nil)
		if err := b.wait(); err == nil || !strings.Contains(err.Error(), "hello.queues[0]") {
			t.Errorf("Run = %v, want the refusal", err)
		}
	})
}

func bounds(revision, upper string) client.Bounds {
	return client.Bounds{Revision: client.Revision{Epoch: 3, RV: revision}, Upper: client.Revision{Epoch: 3, RV: upper}}
}
