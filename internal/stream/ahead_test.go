package stream_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// durable looks at the consumer "job" of pods from outside.
func durable(t testing.TB, url string) jetstream.Consumer {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var cons jetstream.Consumer
	eventually(t, "the consumer", func() bool {
		cons, err = js.Consumer(t.Context(), pods.StreamName(), "job")
		return err == nil
	})
	return cons
}

func TestWhatIsSentAheadOfASlowHandlerIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	const records, size = 60, 200 << 10
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, func(cfg *stream.Config) { cfg.MaxPayload = 1 << 20 })
	w := write(t, c, stream.WriterConfig{Term: 1, Holder: "a"})
	for i := range records {
		if err := w.Append(t.Context(), object(fmt.Sprint(i), i+1, size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen, most := map[delta.Key]bool{}, 0
	var cons jetstream.Consumer
	err := c.Consume(ctx, stream.ConsumeConfig{Name: "job", Collections: []delta.Collection{pods}, PullBytes: 1}, func(ctx context.Context, work stream.Work) error {
		if cons == nil {
			cons = durable(t, url)
		}
		info, err := cons.Info(ctx)
		if err != nil {
			return err
		}
		most = max(most, info.NumAckPending)
		for _, r := range work.Records {
			if len(r.Payload) != size {
				t.Errorf("%s has %d bytes", r.Key, len(r.Payload))
			}
			seen[r.Key] = true
		}
		if len(seen) == records {
			cancel()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if most == 0 || most*size > 6<<20 { // two records of the largest size, as much again in the handler, and what is just being acknowledged
		t.Errorf("up to %d records of %d KB were under way, of %d", most, size>>10, records)
	}
}

// text is a log's output.
type text struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *text) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

func TestAConsumerThatStandsStillIsTold(t *testing.T) {
	t.Parallel()
	var out text
	url := embeddedtest.NATS(t).URL()
	c := connect(t, url, func(cfg *stream.Config) {
		cfg.TombstoneTTL = 4 * time.Second // it is looked at each quarter of that
		cfg.Log = slog.New(slog.NewTextHandler(&out, nil))
	})
	w := write(t, c, stream.WriterConfig{Term: 1, Holder: "a"})
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	defer g.Wait()
	defer cancel()
	g.Go(func() {
		cfg := stream.ConsumeConfig{Name: "job", Collections: []delta.Collection{pods}, HeadersOnly: true, MaxBatch: 1}
		if err := c.Consume(ctx, cfg, func(ctx context.Context, work stream.Work) error {
			if work.Gap == "" {
				return context.Canceled // comes again, to the next request
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	held := durable(t, url)
	for i := range 40 {
		if err := w.Append(t.Context(), object(fmt.Sprint(i), i+1, 10)); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	eventually(t, "a warning", func() bool {
		batch, err := held.FetchNoWait(16) // a replica that takes and never acknowledges
		if err != nil {
			t.Fatal(err)
		}
		for range batch.Messages() {
			got++
		}
		return got > 0 && out.count("stands still") > 0 // the other replica may take all of it first
	})
}
