package indexer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// health is what the replica says by gRPC and by /readyz, and the detail of a check.
func health(t *testing.T, r *replica, check string) (serving, ready bool, detail string) {
	t.Helper()
	conn, err := rpc.Dial(r.addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: indexv1.IndexService_ServiceDesc.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	all := r.svc.Ready(t.Context())
	for _, c := range all.Checks {
		if c.Name == check {
			detail = c.Detail
		}
	}
	return answer.GetStatus() == healthpb.HealthCheckResponse_SERVING, all.Ready, detail
}

func TestAReplicaWithoutTheLogServesAndHealthSaysSo(t *testing.T) {
	t.Parallel()
	n, err := embedded.StartNATS(embedded.NATSConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	w := &world{dial: func() (*stream.Conn, error) {
		return stream.Connect(t.Context(), stream.Config{URL: n.URL(), TombstoneTTL: time.Minute})
	}}
	w.conn = w.connect(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	eventually(t, func() string {
		if serving, ready, detail := health(t, r, "log"); !serving || !ready || detail != "" {
			return fmt.Sprint("with the log: ", serving, ready, detail)
		}
		return ""
	})
	n.Stop()
	eventually(t, func() string {
		if serving, ready, detail := health(t, r, "log"); !serving || !ready || detail == "" {
			return fmt.Sprint("without the log: ", serving, ready, detail)
		}
		return ""
	})
	if got := list(t, r); len(got) != 4 {
		t.Errorf("without the log = %q", got)
	}
}

// awayLog is a log that was never reached.
type awayLog struct{ deltaLog }

func (awayLog) Away() error { return errors.New("not reached") }
func (awayLog) Collections(context.Context) ([]delta.Collection, error) {
	return nil, errors.New("not reached")
}

func TestAReplicaThatNeverReachedTheLogIsNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.indexOn(t, awayLog{w.connect(t)}, nil, &bytes.Buffer{})
	if serving, ready, _ := health(t, r, "log"); serving || ready {
		t.Errorf("serving %t, ready %t, want neither", serving, ready)
	}
}

// messages is a log that may be read while it is written.
type messages struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (m *messages) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buf.Write(p)
}

func (m *messages) count(text string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Count(m.buf.String(), text)
}

func TestCheckpointsThatCannotBeWrittenAreNamedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	dir, log := t.TempDir(), &messages{}
	r := w.indexOn(t, w.connect(t), func(c *indexer.Config) { keeping(dir)(c) }, log)
	w.caughtUp(t, r)
	failing := func() float64 {
		families, err := r.tel.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "deltaplane_indexer_checkpoint_failing" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	// In one step: a checkpoint may be being written.
	if err := os.Rename(dir, filepath.Join(t.TempDir(), "gone")); err != nil {
		t.Fatal(err)
	}
	failures := func() float64 {
		families, _ := r.tel.Registry.Gather()
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "deltaplane_indexer_checkpoints_total" && m.GetLabel()[0].GetValue() == "failed" {
					return m.GetCounter().GetValue()
				}
			}
		}
		return 0
	}
	epochs := 0
	eventually(t, func() string { // several attempts
		epochs++
		w.put(t, pod(fmt.Sprintf("a/x%d", epochs), options{}))
		if failures() < 3 {
			return fmt.Sprint("attempts that failed: ", failures())
		}
		return ""
	})
	serving, ready, detail := health(t, r, "checkpoints")
	if !serving || !ready || !strings.Contains(detail, "cannot be written") || failing() != 1 || log.count("cannot write checkpoints") != 1 {
		t.Errorf("serving %t, ready %t, detail %q, metric %v, %d lines", serving, ready, detail, failing(), log.count("cannot write checkpoints"))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if _, _, detail := health(t, r, "checkpoints"); detail != "" || failing() != 0 || log.count("can be written again") != 1 {
			return fmt.Sprintf("after the repair: %q, metric %v, %d lines", detail, failing(), log.count("can be written again"))
		}
		return ""
	})
}
