package client_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const (
	settledOK   = queuev1.SettleStatus_SETTLE_STATUS_SETTLED
	unavailable = queuev1.SettleStatus_SETTLE_STATUS_UNAVAILABLE
	underWay    = queuev1.SettleStatus_SETTLE_STATUS_UNSPECIFIED
)

func (sc *script) statuses(b *queuev1.SettleBatch, more bool, all ...queuev1.SettleStatus) {
	sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Settled{Settled: &queuev1.Settled{RequestId: b.GetRequestId(), Statuses: all, More: more}}}
}

// both returns the next batch, which must settle a and b.
func both(t *testing.T, sc *script) *queuev1.SettleBatch {
	t.Helper()
	b := sc.settle()
	if s := b.GetSettlements(); len(s) != 2 {
		t.Fatalf("settled %v, want two together", s)
	}
	return b
}

// together runs a worker that settles two keys, a and b, in one batch: while three
// batches are not answered, what else is to be settled waits for one that is.
func together(t *testing.T, lost *atomic.Int32) (*bench, *script) {
	t.Helper()
	w := work(t, client.WorkerConfig{Concurrency: 5, OnLost: func(string) { lost.Add(1) }},
		func(context.Context, client.Item) (client.Result, error) { return client.Result{}, nil })
	sc := w.open()
	if !sc.hello.GetPartial() {
		t.Error("hello does not ask for partial answers")
	}
	var open []*queuev1.SettleBatch
	for i, key := range []string{"x", "y", "z"} {
		sc.assign(&queuev1.Lease{Key: key, Token: uint64(10 + i)})
		open = append(open, sc.settle())
	}
	sc.assign(&queuev1.Lease{Key: "a", Token: 1}, &queuev1.Lease{Key: "b", Token: 2})
	synctest.Wait()
	for _, b := range open {
		sc.answer(b)
	}
	return w, sc
}

func TestASettlementOfAPartThatIsAwayIsSentAgainUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int32
		w, sc := together(t, &lost)
		first := both(t, sc)
		sc.statuses(first, true, settledOK, underWay) // the other part has not answered
		time.Sleep(time.Second)
		sc.assign(&queuev1.Lease{Key: "c", Token: 3}) // meanwhile work goes on
		if b := sc.settle(); len(b.GetSettlements()) != 1 || b.GetSettlements()[0].GetKey() != "c" {
			t.Fatalf("settled %v, want c alone", b)
		} else {
			sc.answer(b)
		}
		sc.statuses(first, false, underWay, unavailable)
		var last uint64
		for range 3 {
			b := sc.settle()
			if s := b.GetSettlements(); len(s) != 1 || s[0].GetToken() == 3 || b.GetRequestId() <= last || b.GetRequestId() == first.GetRequestId() || !b.GetHoldCredit() {
				t.Fatalf("settled %v, want the one that was not answered under a new number", b)
			}
			last = b.GetRequestId()
			sc.statuses(b, false, unavailable)
		}
		sc.statuses(sc.settle(), false, settledOK)
		time.Sleep(time.Minute)
		if n := lost.Load(); n != 0 {
			t.Errorf("%d keys lost", n)
		}
		_ = w.stop()
		for req := range sc.in {
			if req.GetSettle() != nil {
				t.Errorf("settled again: %v", req)
			}
		}
	})
}

func TestASettlementThatIsNeverAnsweredIsGivenUpWhenItsLeaseHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int32
		began := time.Now()
		w, sc := together(t, &lost)
		sc.statuses(both(t, sc), false, settledOK, unavailable)
		go func() {
			for req := range sc.in {
				if b := req.GetSettle(); b != nil {
					sc.statuses(b, false, unavailable)
				}
				if e := req.GetExtend(); e != nil && len(e.GetLeases()) == 0 {
					t.Error("all leases are extended, also the one that is to end")
				}
			}
		}()
		for lost.Load() == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took < testLease || took > testLease+3*time.Second {
			t.Errorf("given up after %v, want the lease's %v", took, testLease)
		}
		time.Sleep(time.Minute)
		if n := lost.Load(); n != 1 {
			t.Errorf("%d keys lost, want one", n)
		}
		_ = w.stop()
	})
}

func TestWhatWasUnderWayWhenTheStreamBrokeIsSettledOnTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int32
		w, sc := together(t, &lost)
		first := both(t, sc)
		sc.statuses(first, true, underWay, settledOK)
		synctest.Wait()
		sc.end <- context.Canceled
		next := <-w.streams
		if r := next.hello.GetResume(); len(r) != 1 {
			t.Fatalf("resumed %v, want the one that is not settled", r)
		}
		next.welcome(&queuev1.Welcome{Generation: "g1", Unreachable: next.hello.GetResume()})
		b := next.settle()
		if s := b.GetSettlements(); len(s) != 1 || s[0].GetToken() != next.hello.GetResume()[0].GetToken() || b.GetRequestId() == first.GetRequestId() {
			t.Fatalf("settled %v", b)
		}
		next.answer(b)
		synctest.Wait()
		if n := lost.Load(); n != 0 {
			t.Errorf("%d keys lost", n)
		}
		_ = w.stop()
	})
}

func TestALeaseThatTheStoreDidNotAnswerForEndsWhenItDid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan string, 2)
		w := work(t, client.WorkerConfig{Concurrency: 2}, func(ctx context.Context, item client.Item) (client.Result, error) {
			<-ctx.Done()
			ended <- item.Key
			return client.Result{}, ctx.Err()
		})
		sc := w.open()
		sc.assign(&queuev1.Lease{Key: "away", Token: 1}, &queuev1.Lease{Key: "there", Token: 2})
		go func() {
			for req := range sc.in {
				if req.GetExtend() != nil {
					sc.extended(&queuev1.Extended{Extended: 1, Remaining: durationpb.New(testLease), Unreachable: []*queuev1.LeaseRef{{Key: "away", Token: 1}}})
				}
			}
		}()
		began := time.Now()
		if key := <-ended; key != "away" || time.Since(began) > testLease {
			t.Errorf("%s ended after %v", key, time.Since(began))
		}
		time.Sleep(2 * testLease)
		if len(ended) != 0 {
			t.Error("the lease that was extended ended as well")
		}
		_ = w.stop()
	})
}
