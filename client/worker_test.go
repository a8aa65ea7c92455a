package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

func TestALeaseThatWasLongOnItsWayEndsNoLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{}, func(ctx context.Context, _ client.Item) (client.Result, error) {
			<-ctx.Done()
			return client.Result{}, context.Cause(ctx)
		})
		sc := b.open()
		time.Sleep(time.Second)
		l, granted := lease("ns/a", 1), time.Now()
		l.EndsUs = serverClock() + testLease.Microseconds()
		time.Sleep(testLease / 2) // the message is on its way; no ping is answered
		sc.assign(l)
		sc.answer(sc.settle())
		if got, most := time.Since(granted), testLease-2*time.Second; got > most || got < most-100*time.Millisecond {
			t.Errorf("ended %v after it was granted, want just below %v", got, most)
		}
	})
}

func TestAPingKeepsLeasesLongOnAStreamThatIsOld(t *testing.T) {
	t.Parallel()
	for name, answered := range map[string]bool{"answered": true, "not answered": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := work(t, client.WorkerConfig{}, func(ctx context.Context, _ client.Item) (client.Result, error) {
					<-ctx.Done()
					return client.Result{}, context.Cause(ctx)
				})
				sc := b.open()
				asked := sc.ping()
				if answered {
					sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Pong{Pong: &queuev1.Pong{Id: asked, ClockUs: serverClock()}}}
				}
				time.Sleep(testLease/3 - time.Millisecond)
				began, known := time.Now(), testLease/3 // how long ago the server's clock was told
				if !answered {
					known = 2 * testLease / 3
				}
				sc.assign(lease("ns/a", 1))
				sc.answer(sc.settle())
				want := testLease - 2*time.Second - (testLease+known)/200
				if got := time.Since(began); got < want-time.Millisecond || got > want+time.Millisecond {
					t.Errorf("ended after %v, want %v", got, want)
				}
			})
		})
	}
}

func TestALeaseOfAServerThatDoesNotTellItsClockIsExtendedBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var began, ended atomic.Int64
		b := work(t, client.WorkerConfig{}, func(ctx context.Context, _ client.Item) (client.Result, error) {
			began.Store(time.Now().UnixNano())
			<-ctx.Done()
			ended.Store(time.Now().UnixNano())
			return client.Result{}, context.Cause(ctx)
		})
		sc := <-b.streams
		sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Welcome{Welcome: &queuev1.Welcome{LeaseDuration: durationpb.New(testLease)}}}
		l := lease("ns/a", 1)
		l.Remaining = durationpb.New(testLease)
		sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Assign{Assign: &queuev1.Assign{Leases: []*queuev1.Lease{l}}}}
		sc.extend()
		asked := time.Now().UnixNano()
		time.Sleep(time.Second) // on its way
		synctest.Wait()
		if began.Load() != 0 {
			t.Fatal("the reconcile began before the lease was known to last")
		}
		sc.extended(&queuev1.Extended{Extended: 1, Remaining: durationpb.New(testLease)})
		sc.answer(sc.settle())
		if got, want := time.Duration(ended.Load()-asked), testLease-2*time.Second; began.Load() == 0 || got != want {
			t.Errorf("ended %v after the extension was asked for, want %v", got, want)
		}
	})
}

func TestTheContextEndsByOurOwnClockBeforeTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b := work(t, client.WorkerConfig{}, func(ctx context.Context, item client.Item) (client.Result, error) {
			if err := item.Alive(); err != nil {
				t.Errorf("Alive() = %v at the start", err)
			}
			<-ctx.Done()
			if err := item.Alive(); !errors.Is(err, client.ErrLeaseLost) {
				t.Errorf("Alive() = %v at the end, want ErrLeaseLost", err)
			}
			return client.Result{}, context.Cause(ctx)
		})
		sc := b.open()
		sc.assign(lease("ns/a", 1)) // and no extension is ever answered
		batch := sc.settle()
		if got, want := time.Since(began), testLease-testLease/200-2*time.Second; got != want {
			t.Errorf("ended after %v, want %v: a margin and a share for drift before the lease", got, want)
		}
		if got := batch.GetSettlements()[0].GetOutcome(); got != queuev1.Outcome_OUTCOME_RELEASE {
			t.Errorf("outcome %v, want an uncounted release", got)
		}
		sc.answer(batch)
	})
}

func TestALeaseIsExtendedWhileItsReconcileRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{}, func(ctx context.Context, _ client.Item) (client.Result, error) {
			select {
			case <-time.After(time.Minute):
				return client.Result{}, nil
			case <-ctx.Done():
				return client.Result{}, context.Cause(ctx)
			}
		})
		sc := b.open()
		sc.assign(lease("ns/a", 1))
		for {
			req, ok := <-sc.in
			if !ok {
				t.Fatal("stream ended")
			}
			if e := req.GetExtend(); e != nil {
				if len(e.GetLeases()) != 0 {
					t.Errorf("extends %v, want all by naming none", e.GetLeases())
				}
				sc.extended(&queuev1.Extended{Extended: 1, Remaining: durationpb.New(testLease)})
			}
			if batch := req.GetSettle(); batch != nil {
				if got := batch.GetSettlements()[0].GetOutcome(); got != queuev1.Outcome_OUTCOME_FORGET {
					t.Errorf("outcome %v after a minute of extensions, want forget", got)
				}
				sc.answer(batch)
				return
			}
		}
	})
}

func TestALostLeaseCancelsItsReconcileAndIsNotSettled(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*script){
		"told by an extension": func(sc *script) {
			sc.extend()
			sc.extended(&queuev1.Extended{Lost: []*queuev1.LeaseRef{ref("ns/a", 1)}, Remaining: durationpb.New(testLease)})
		},
		"told by the server": func(sc *script) { sc.control(queuev1.Action_ACTION_CANCEL, ref("ns/a", 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var lost atomic.Int32
				ended := make(chan error, 1)
				b := work(t, client.WorkerConfig{Hooks: client.Hooks{Lost: func(string) { lost.Add(1) }}}, func(ctx context.Context, item client.Item) (client.Result, error) {
					if item.Key == "ns/a" {
						<-ctx.Done()
						ended <- context.Cause(ctx)
					}
					return client.Result{}, nil
				})
				sc := b.open()
				sc.assign(lease("ns/a", 1))
				synctest.Wait()
				lose(sc)
				if err := <-ended; !errors.Is(err, client.ErrLeaseLost) {
					t.Errorf("cause %v, want ErrLeaseLost", err)
				}
				sc.assign(lease("ns/b", 2))
				batch := sc.settle()
				if len(batch.GetSettlements()) != 1 || batch.GetSettlements()[0].GetKey() != "ns/b" {
					t.Errorf("settled %v, want only ns/b", batch)
				}
				sc.answer(batch)
				if lost.Load() != 1 {
					t.Errorf("told %d losses, want 1", lost.Load())
				}
			})
		})
	}
}

func TestAKeyIsNeverReconciledTwiceAtATimeAlsoAfterALoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, most, runs atomic.Int32
		b := work(t, client.WorkerConfig{Concurrency: 4}, func(ctx context.Context, item client.Item) (client.Result, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			runs.Add(1)
			if item.Token == 1 {
				time.Sleep(3 * time.Second) // does not listen to its context
			}
			return client.Result{}, nil
		})
		sc := b.open()
		sc.assign(lease("ns/a", 1))
		synctest.Wait()
		sc.control(queuev1.Action_ACTION_CANCEL, ref("ns/a", 1))
		sc.assign(lease("ns/a", 2))
		batch := sc.settle()
		sc.answer(batch)
		if got := batch.GetSettlements()[0].GetToken(); got != 2 || most.Load() != 1 || runs.Load() != 2 {
			t.Errorf("settled token %d after %d runs, %d at a time; want token 2, 2 runs, 1 at a time", got, runs.Load(), most.Load())
		}
	})
}

func TestABrokenStreamIsResumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := work(t, client.WorkerConfig{Concurrency: 3}, func(ctx context.Context, item client.Item) (client.Result, error) {
			if item.Key == "ns/slow" {
				select {
				case <-release:
				case <-ctx.Done():
					return client.Result{}, context.Cause(ctx)
				}
			}
			return client.Result{}, nil
		})
		sc := b.open()
		session := sc.hello.GetSessionId()
		sc.assign(lease("ns/slow", 1), lease("ns/fast", 2))
		first := sc.settle()
		sc.end <- status.Error(codes.Unavailable, "gone") // the answer is lost

		sc = b.open()
		if got := sc.hello.GetSessionId(); got != session {
			t.Errorf("session %q, want the same %q", got, session)
		}
		if len(sc.hello.GetResume()) != 2 {
			t.Errorf("resumes %v, want both leases", sc.hello.GetResume())
		}
		again := sc.settle()
		if !again.GetHoldCredit() {
			t.Error("credit of what is sent again may come back twice")
		}
		if diff := cmp.Diff(first, again, protocmp.Transform(), protocmp.IgnoreFields(first, "hold_credit")); diff != "" {
			t.Errorf("sent again (-first +again)\n%s", diff)
		}
		sc.answer(again)
		sc.extend()
		sc.extended(&queuev1.Extended{Extended: 1, Remaining: durationpb.New(testLease)})
		time.Sleep(5 * time.Second) // longer than the orphaned lease, shorter than the extended one
		close(release)
		batch := sc.settle()
		if s := batch.GetSettlements()[0]; s.GetKey() != "ns/slow" || s.GetOutcome() != queuev1.Outcome_OUTCOME_FORGET || batch.GetRequestId() <= first.GetRequestId() {
			t.Errorf("then settled %v, want ns/slow forgotten under a later request id", batch)
		}
		sc.answer(batch)
	})
}

func TestWithoutAStreamALeaseEndsWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Time, 1)
		b := work(t, client.WorkerConfig{}, func(ctx context.Context, _ client.Item) (client.Result, error) {
			<-ctx.Done()
			ended <- time.Now()
			return client.Result{}, context.Cause(ctx)
		})
		sc := b.open()
		sc.assign(lease("ns/a", 1))
		synctest.Wait()
		broke := time.Now()
		sc.end <- status.Error(codes.Unavailable, "gone")
		sc = <-b.streams // and no welcome for a while
		if took := (<-ended).Sub(broke); took >= time.Second {
			t.Errorf("cancelled after %v, want less than the second the server leaves", took)
		}
		sc.welcome(&queuev1.Welcome{Lost: []*queuev1.LeaseRef{ref("ns/a", 1)}})
		sc.answer(sc.settle())
	})
}

func TestALeaseEndsWithinASecondOfAStreamThatNoneFollows(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(old, next *script){
		"the next is refused":                 func(_, next *script) { next.end <- status.Error(codes.Internal, "no") },
		"the old ends before the next begins": func(old, _ *script) { old.end <- status.Error(codes.Unavailable, "gone") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan time.Time, 1)
				b := work(t, client.WorkerConfig{}, func(ctx context.Context, _ client.Item) (client.Result, error) {
					<-ctx.Done()
					ended <- time.Now()
					return client.Result{}, context.Cause(ctx)
				})
				old := b.open()
				old.assign(lease("ns/a", 1))
				synctest.Wait()
				old.control(queuev1.Action_ACTION_RECONNECT)
				next := <-b.streams
				broke := time.Now()
				fail(old, next)
				if took := (<-ended).Sub(broke); took >= time.Second {
					t.Errorf("cancelled after %v, want less than the second the server leaves", took)
				}
			})
		})
	}
}

func TestACollectionThatIsNotServedYetIsNoWarningAtTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(slog.NewTextHandler(&out, nil))
		b := work(t, client.WorkerConfig{Log: log}, func(context.Context, client.Item) (client.Result, error) {
			return client.Result{}, fmt.Errorf("read: %w", client.ErrCollectionNotFound)
		})
		sc := b.open()
		said := func(token uint64) string {
			out.Reset()
			sc.assign(lease("ns/a", token))
			sc.answer(sc.settle())
			synctest.Wait()
			return out.String()
		}
		if got := said(1); !strings.Contains(got, "level=INFO") {
			t.Errorf("at the start it says %q, want information", got)
		}
		time.Sleep(time.Minute) // the bubble's clock
		if got := said(2); !strings.Contains(got, "level=WARN") {
			t.Errorf("a minute later it says %q, want a warning", got)
		}
	})
}

func TestAServerThatGoesAwayIsLeftWithoutALoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := work(t, client.WorkerConfig{}, func(ctx context.Context, _ client.Item) (client.Result, error) {
			<-release
			return client.Result{}, ctx.Err()
		})
		old := b.open()
		old.assign(lease("ns/a", 1))
		synctest.Wait()
		old.control(queuev1.Action_ACTION_RECONNECT)
		next := <-b.streams
		select {
		case <-old.closed:
			t.Error("the old stream ended before the new one took over")
		default:
		}
		next.welcome(&queuev1.Welcome{Kept: next.hello.GetResume()})
		<-old.closed
		next.extend()
		next.extended(&queuev1.Extended{Extended: 1, Remaining: durationpb.New(testLease)})
		close(release)
		batch := next.settle()
		if got := batch.GetSettlements()[0].GetOutcome(); got != queuev1.Outcome_OUTCOME_FORGET {
			t.Errorf("outcome %v, want forget", got)
		}
		next.answer(batch)
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

func TestAReconcileOutOfTimeIsCancelledAndNoLongerExtended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{Concurrency: 2, Timeout: 4 * time.Second}, func(ctx context.Context, item client.Item) (client.Result, error) {
			if item.Key == "ns/stuck" {
				time.Sleep(10 * time.Second)
			}
			if item.Key == "ns/late" {
				time.Sleep(3 * time.Second)
			}
			return client.Result{}, context.Cause(ctx)
		})
		sc := b.open()
		sc.assign(lease("ns/stuck", 1))
		synctest.Wait()
		time.Sleep(5 * time.Second)
		sc.assign(lease("ns/late", 2))
		sc.extend() // at a third of the lease: the first
		batch := sc.extend()
		if len(batch.GetLeases()) != 1 || batch.GetLeases()[0].GetKey() != "ns/late" {
			t.Errorf("extends %v, want only the one within its time", batch.GetLeases())
		}
		sc.extended(&queuev1.Extended{Extended: 1, Remaining: durationpb.New(testLease)})
		sc.answer(sc.settle())
		stuck := sc.settle()
		if s := stuck.GetSettlements()[0]; s.GetKey() != "ns/stuck" || s.GetReason() != client.ErrTimeout.Error() && s.GetOutcome() != queuev1.Outcome_OUTCOME_RELEASE {
			t.Errorf("settled %v", s)
		}
		sc.answer(stuck)
	})
}

func TestAnAbandonedLeaseRunsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{Concurrency: 2}, func(ctx context.Context, item client.Item) (client.Result, error) {
			if item.Key == "ns/a" {
				return client.Result{Outcome: client.OutcomeAbandon}, nil
			}
			time.Sleep(4 * time.Second)
			return client.Result{}, ctx.Err()
		})
		sc := b.open()
		sc.assign(lease("ns/a", 1), lease("ns/b", 2))
		batch := sc.extend()
		if len(batch.GetLeases()) != 1 || batch.GetLeases()[0].GetKey() != "ns/b" {
			t.Errorf("extends %v, want only the lease that was not abandoned", batch.GetLeases())
		}
		settled := sc.settle()
		if len(settled.GetSettlements()) != 1 || settled.GetSettlements()[0].GetKey() != "ns/b" {
			t.Errorf("settled %v, want only ns/b", settled)
		}
		sc.answer(settled)
	})
}

func TestCreditIsWhatIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{Concurrency: 3, Prefetch: 2}, func(context.Context, client.Item) (client.Result, error) { return client.Result{}, nil })
		sc := b.open()
		credit, inHand, key, most := 0, 0, 0, 5
		lost, back := false, false
		assign := func() {
			if credit+inHand > most {
				t.Fatalf("%d keys of credit with %d in hand, want at most %d together", credit, inHand, most)
			}
			back = back || lost && credit+inHand <= 5
			var leases []*queuev1.Lease
			for ; credit > 0; credit-- {
				key++
				inHand++
				leases = append(leases, lease(fmt.Sprintf("ns/%d", key), uint64(key)))
			}
			if len(leases) > 0 {
				sc.assign(leases...)
			}
		}
		held := 0
		for settled := 0; settled < 100; {
			switch req := <-sc.in; {
			case req.GetCredit() != nil:
				credit += int(req.GetCredit().GetItems())
			case req.GetSettle() != nil:
				n := len(req.GetSettle().GetSettlements())
				settled, inHand = settled+n, inHand-n
				if req.GetSettle().GetHoldCredit() {
					held += n
				} else {
					credit += n
				}
				sc.answer(req.GetSettle())
			}
			assign()
			// As a lease that was lost without our knowing gives its credit back. While keys are on their
			// way the worker cannot know of them, and may exceed by as many again.
			if key >= 50 && !lost {
				credit, most, lost = credit+3, 8, true
				var extra []*queuev1.Lease
				for ; credit > 0; credit-- {
					key++
					inHand++
					extra = append(extra, lease(fmt.Sprintf("ns/%d", key), uint64(key)))
				}
				sc.assign(extra...)
			}
		}
		if held == 0 || !back {
			t.Errorf("%d settlements kept their credit: too much credit stays too much", held)
		}
		go func() {
			for req := range sc.in {
				if req.GetSettle() != nil {
					sc.answer(req.GetSettle())
				}
			}
		}()
		if err := b.stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func TestSettlementsWaitForAnswersInLargerBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := work(t, client.WorkerConfig{Concurrency: 100}, func(_ context.Context, item client.Item) (client.Result, error) {
			time.Sleep(time.Duration(item.Token) * time.Millisecond)
			return client.Result{}, nil
		})
		sc := b.open()
		for i := range 100 {
			sc.assign(lease(fmt.Sprintf("ns/%d", i), uint64(i+1)))
		}
		var batches []*queuev1.SettleBatch
		total := 0
		for range 4 {
			batches = append(batches, sc.settle())
			total += len(batches[len(batches)-1].GetSettlements())
		}
		if n := len(batches[3].GetSettlements()); n < 50 {
			t.Errorf("the fourth unanswered batch holds %d settlements", n)
		}
		time.Sleep(200 * time.Millisecond) // everything has ended, nothing was answered
		for len(sc.in) > 0 {
			if req := <-sc.in; req.GetCredit() == nil {
				t.Fatalf("%v before an answer", req)
			}
		}
		sc.answer(batches[0])
		sc.answer(batches[1])
		if last := sc.settle(); len(last.GetSettlements()) != 100-total {
			t.Errorf("the next batch holds %d settlements, want the other %d", len(last.GetSettlements()), 100-total)
		} else {
			batches = append(batches, last)
		}
		for _, batch := range batches[2:] {
			sc.answer(batch)
		}
	})
}

func TestACompactStreamSaysTheSameInFewerWords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		items := make(chan client.Item, 1)
		var lost []string
		b := work(t, client.WorkerConfig{
			Concurrency: 2, Hooks: client.Hooks{Lost: func(key string) { lost = append(lost, key) }},
		}, func(ctx context.Context, item client.Item) (client.Result, error) {
			if item.Key == "ns/slow" {
				items <- item
				<-ctx.Done()
				return client.Result{}, context.Cause(ctx)
			}
			return client.Result{}, nil
		})
		sc := b.open()
		if !sc.hello.GetCompact() {
			t.Error("hello does not ask for compact messages")
		}
		added, ready := time.UnixMicro(1_000_001).UTC(), time.UnixMicro(2_000_002).UTC()
		began := time.Now()
		sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Assign{Assign: &queuev1.Assign{Queue: "dev/test", Leases: []*queuev1.Lease{
			{Key: "ns/slow", Token: 1, EndsUs: serverClock() + testLease.Microseconds(), RemainingUs: testLease.Microseconds(), AddedUs: added.UnixMicro(), ReadyUs: ready.UnixMicro()},
			{Key: "ns/fast", Token: 2, EndsUs: serverClock() + testLease.Microseconds(), RemainingUs: testLease.Microseconds()},
		}}}}
		item := <-items
		if item.Queue != "dev/test" || !item.AddedAt.Equal(added) || !item.ReadyAt.Equal(ready) {
			t.Errorf("the item is %+v", item)
		}
		batch := sc.settle()
		if s := batch.GetSettlements()[0]; s.GetQueue() != "dev/test" || s.GetKey() != "ns/fast" {
			t.Errorf("settled %v", s)
		}
		sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Settled{Settled: &queuev1.Settled{
			RequestId: batch.GetRequestId(), Statuses: []queuev1.SettleStatus{queuev1.SettleStatus_SETTLE_STATUS_LOST},
		}}}
		late := sc.settle() // nobody extends: it is cancelled by our own clock, and given back
		if took := time.Since(began); took >= testLease || took < testLease/2 {
			t.Errorf("the context ended after %v of a lease of %v", took, testLease)
		}
		if s := late.GetSettlements()[0]; s.GetKey() != "ns/slow" || s.GetOutcome() != queuev1.Outcome_OUTCOME_RELEASE {
			t.Errorf("then settled %v", s)
		}
		sc.answer(late)
		synctest.Wait()
		if len(lost) != 1 || lost[0] != "ns/fast" {
			t.Errorf("lost %q, want ns/fast", lost)
		}
	})
}

func bounds(revision, upper string) client.Bounds {
	return client.Bounds{Revision: client.Revision{Epoch: 3, RV: revision}, Upper: client.Revision{Epoch: 3, RV: upper}}
}
