package client_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

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
		go sc.answerAll()
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
			Concurrency: 2, OnLost: func(key string) { lost = append(lost, key) },
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
