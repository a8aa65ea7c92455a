package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

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
