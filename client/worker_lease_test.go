package client_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

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
				began, known := time.Now(), testLease/3 // since the server's clock was last known
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
				b := work(t, client.WorkerConfig{OnLost: func(string) { lost.Add(1) }}, func(ctx context.Context, item client.Item) (client.Result, error) {
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
