package criruntime_test

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/criruntime/critest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, cfg criruntime.Config) *criruntime.Server {
	t.Helper()
	s, err := criruntime.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestTheSimulatedRuntimeConforms(t *testing.T) {
	t.Parallel()
	cfg := criruntime.Config{Dir: t.TempDir()}
	s := open(t, cfg)
	critest.Run(t, critest.Target{
		Conn: s.Conn(), Image: "registry.example/box:1", Missing: "registry.example/missing/box:1",
		Restart: func(inner *testing.T) grpc.ClientConnInterface {
			inner.Helper()
			if err := s.Close(); err != nil {
				inner.Fatal(err)
			}
			s = open(t, cfg)
			return s.Conn()
		},
	})
}
