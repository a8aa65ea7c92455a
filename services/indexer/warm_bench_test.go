package indexer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// BenchmarkWarmRestart is the time from New until the replica answers at the log's end, from a file
// of 100,000 pods of 5 KB (figure of the slice: at most 0.7 s on two cores).
func BenchmarkWarmRestart(b *testing.B) {
	const n, chunk = 100_000, 5000
	w := newWorld(b)
	w.start(b)
	for from := 0; from < n; from += chunk {
		records := make([]delta.Record, chunk)
		for i := range records {
			at := from + i
			records[i] = pod(fmt.Sprintf("ns-%d/pod-%06d", at%50, at), options{
				uid: fmt.Sprintf("%08x-0000-4000-8000-%012x", at, at), node: fmt.Sprint("node-", at%3333), owner: fmt.Sprintf("%08x-0000-4000-8000-aaaaaaaaaaaa", at%600),
				labels: fmt.Sprintf("app=a%d,tier=web,pod-template-hash=%x", at%600, at%600*7919), phase: "Running", pad: 4600,
			})
		}
		w.put(b, records...)
	}
	dir := b.TempDir()
	keep := func(c *indexer.Config) { c.DataDir, c.CheckpointEvery, c.Tier = dir, time.Hour, indexer.TierRaw }
	r := w.index(b, keep)
	w.caughtUp(b, r)
	r.stop()
	for b.Loop() {
		r := w.index(b, keep)
		w.caughtUp(b, r)
		b.StopTimer()
		if !r.warm(b) {
			b.Fatal("the start was not warm")
		}
		r.stop()
		b.StartTimer()
	}
}
