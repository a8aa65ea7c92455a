package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// The server's clock was read at once and its answer took long: a lease is
// counted from when the clock was asked for, not from when the answer came.
func TestAnAnswerThatWasLongOnItsWayMakesNoLeaseLonger(t *testing.T) {
	t.Parallel()
	const late = testLease / 4
	for name, c := range map[string]struct{ welcome, pong time.Duration }{
		"welcome": {welcome: late},
		"pong":    {pong: late},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := work(t, client.WorkerConfig{}, func(ctx context.Context, _ client.Item) (client.Result, error) {
					<-ctx.Done()
					return client.Result{}, context.Cause(ctx)
				})
				sc := <-b.streams
				read := serverClock()
				time.Sleep(c.welcome)
				sc.welcome(&queuev1.Welcome{ClockUs: read})
				if c.pong > 0 {
					asked := sc.ping()
					read := serverClock()
					time.Sleep(c.pong)
					sc.out <- &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Pong{Pong: &queuev1.Pong{Id: asked, ClockUs: read}}}
				}
				granted := time.Now()
				sc.assign(lease("ns/a", 1))
				sc.answer(sc.settle())
				want := testLease - 2*time.Second - (testLease+late)/200 // less the margin and a share for drift
				if got := time.Since(granted); got < want-time.Millisecond || got > want+time.Millisecond {
					t.Errorf("ended %v after it was granted, want %v", got, want)
				}
			})
		})
	}
}
