package stream_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// What a record of 5 KB costs from the stage to its acknowledgement, client and server of NATS
// together unless DELTAPLANE_TEST_NATS names a server.
func BenchmarkAppend(b *testing.B) {
	url := os.Getenv("DELTAPLANE_TEST_NATS")
	if url == "" {
		url = embeddedtest.NATS(b).URL()
	}
	c, err := stream.Connect(b.Context(), stream.Config{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	col := delta.Collection{Cluster: "bench", Version: "v1", Resource: fmt.Sprintf("pods%d", time.Now().UnixNano())}
	w, err := c.Writer(b.Context(), col, stream.WriterConfig{Term: 1, Holder: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	payload := make([]byte, 5000)
	batch := make([]delta.Record, 512)
	b.ReportAllocs()
	before := cpuTime(b)
	for n := 0; b.Loop(); n++ {
		at := n % len(batch)
		batch[at] = delta.Record{
			Kind: delta.KindDelta, Type: delta.Replaced, Key: delta.Key(fmt.Sprintf("team-%d/mailer-cron-7-7znb9cmw25-%06d", n%40, n)),
			UID: "c00cbd93-d2ea-4344-9a77-f14f3fa74642", RV: "1000000007", Watermark: "1000000001", Hash: 77, Payload: payload, Encoding: delta.EncodingJSON,
			ObservedAt: time.Now(), Owners: []delta.Owner{{Kind: "ReplicaSet", Name: "mailer-cron-7-7znb9cmw25", UID: "660dffbb-9ae7-4a76-9310-0587bb7887e1", Controller: true}},
			Hints: map[string][]string{"node": {"ip-10-0-2-17.eu-central-1.compute.internal"}},
		}
		if at == len(batch)-1 {
			if err := w.Append(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := w.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}

// cpuTime is what the process has used.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
