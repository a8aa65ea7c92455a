package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveDir); dir != "" {
		fmt.Fprintln(os.Stderr, serveUntilKilled(dir))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestAKeyGoesRoundByUnaryCalls(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		ctx := t.Context()
		got := make(chan *queuev1.GetResponse, 1)
		go func() {
			res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(30 * time.Second)})
			if err != nil {
				t.Error(err)
			}
			got <- res
		}()
		added, err := r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "default/a"}}})
		if err != nil || added.GetResults()[0].GetStatus() != queuev1.AddStatus_ADD_STATUS_QUEUED || added.GetGeneration() == "" {
			t.Fatalf("Add = %v, %v", added, err)
		}
		res := <-got
		if len(res.GetLeases()) != 1 || res.GetLeases()[0].GetKey() != "default/a" {
			t.Fatalf("Get = %v", res)
		}
		l := res.GetLeases()[0]
		done, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", RequestId: 1, Settlements: []*queuev1.Settlement{{
			Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET,
		}}})
		if err != nil || done.GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Fatalf("Settle = %v, %v", done, err)
		}
	})
}

func TestAKeyGoesRoundByAWorkStream(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, err := r.Work(ctx)
		if err != nil {
			t.Fatal(err)
		}
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{queuetest.Q}}}})
		m, err := w.Recv()
		if err != nil || m.GetWelcome() == nil {
			t.Fatalf("first message = %v, %v", m, err)
		}
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: 1}}})
		r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "a"}, {Key: "b"}}})
		for i, want := range []string{"a", "b"} {
			m, err = w.Recv()
			if err != nil || len(m.GetAssign().GetLeases()) != 1 || m.GetAssign().GetLeases()[0].GetKey() != want {
				t.Fatalf("message = %v, %v, want %q assigned", m, err, want)
			}
			l := m.GetAssign().GetLeases()[0]
			w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: uint64(i + 1), Settlements: []*queuev1.Settlement{{
				Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_DONE,
			}}}}})
			m, err = w.Recv()
			if err != nil || m.GetSettled().GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				t.Fatalf("message = %v, %v, want settled", m, err)
			}
		}
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}})
		if m, err := w.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("after goodbye = %v, %v, want the end", m, err)
		}
	})
}
