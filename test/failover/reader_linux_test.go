package failover

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// reading is a read of the log through a server: the last resource version that came once the
// replay had ended.
type reading struct {
	came atomic.Int64
	stop func()
}

func (s *servers) read(through string) *reading {
	s.t.Helper()
	conn, err := stream.Connect(s.t.Context(), stream.Config{URL: "nats://" + s.configs[through].Listen, Log: role{Name: "reader"}.log()})
	if err != nil {
		s.t.Fatal(err)
	}
	r := &reading{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var last int64
	replayed := false
	go func() {
		done <- conn.Read(ctx, pods, stream.ReadConfig{}, func(_ context.Context, b delta.Batch) error {
			for _, record := range b.Records {
				if rv, err := strconv.ParseInt(record.RV, 10, 64); err == nil && record.Kind == delta.KindDelta {
					last = rv
				}
			}
			if replayed = replayed || b.Replayed; replayed {
				r.came.Store(last)
			}
			return nil
		})
	}()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("Read() = %v", err)
		}
		conn.Close()
	}
	return r
}

func (r *reading) until(t *testing.T, rv int64) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); r.came.Load() != rv; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the record at %d did not come in time", rv)
		}
	}
}

// host is the server that has the log's only consumer.
func (s *servers) host() (name string) {
	s.t.Helper()
	js, end := s.jetStream()
	defer end()
	log, err := js.Stream(s.t.Context(), pods.StreamName())
	if err != nil {
		s.t.Fatal(err)
	}
	for info := range log.ListConsumers(s.t.Context()).Info() {
		name = info.Cluster.Leader
	}
	return name
}

// The server that the reader is connected to lives, and so does the log: only the one that has its
// consumer is gone.
func TestAReaderGoesOnWhenTheServerOfItsConsumerIsKilled(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	conn, err := stream.Connect(t.Context(), stream.Config{URL: s.url, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	w, err := conn.Writer(t.Context(), pods, stream.WriterConfig{Term: 1})
	for deadline := time.Now().Add(2 * time.Minute); errors.Is(err, stream.ErrUnavailable) && time.Now().Before(deadline); {
		w, err = conn.Writer(t.Context(), pods, stream.WriterConfig{Term: 1}) // the log's group has no leader yet
	}
	if err != nil {
		t.Fatal(err)
	}
	write := func(rv string) {
		t.Helper()
		record := delta.Record{Kind: delta.KindDelta, Type: delta.Updated, Key: "ns0/p0", UID: "u", RV: rv, Payload: []byte("{}"), Encoding: delta.EncodingJSON}
		if err := w.Append(t.Context(), []delta.Record{record}); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	for range 100 { // until the server chose another one than the reader's
		r := s.read("n1")
		r.until(t, 1)
		host := s.host()
		if host == "n1" || host == "" {
			r.stop()
			continue
		}
		s.run[host].Kill()
		write("2") // by the two that are left
		r.until(t, 2)
		r.stop()
		return
	}
	t.Fatal("every consumer was made on the reader's own server")
}
