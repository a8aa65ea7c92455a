package queue_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestAWaitingGetEndsWhenItsSessionIsShutDown(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	got := make(chan *queuev1.GetResponse, 1)
	go func() {
		res, err := r.Get(context.Background(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(time.Minute)})
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	for waits := false; !waits; {
		if ss := r.Svc.Sessions().Find("w"); ss != nil {
			waits = ss.Waits()
		}
	}
	r.ShutDown(t.Context(), &queuev1.ShutDownRequest{SessionId: "w"})
	if res := queuetest.Wait(t, got); !res.GetShutDown() {
		t.Errorf("Get = %v, want shut_down", res)
	}
}
