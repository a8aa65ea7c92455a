package clientgo_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a queue service and connects to it.
func serve(t *testing.T, cfg queue.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := client.Dial(queuetest.Address(t, cfg, "warn"), client.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// onEach runs a test on every kind of queue service.
func onEach(t *testing.T, f func(t *testing.T, conn *grpc.ClientConn)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		f(t, serve(t, queue.Config{}))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		f(t, serve(t, queue.Config{RedisURL: embeddedtest.Redis(t).URL()}))
	})
}

// eventually waits for what another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}
