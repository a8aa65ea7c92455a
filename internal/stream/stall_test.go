package stream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// A server that takes nothing holds what uses its connection until the client gives it up, which by
// itself is after a minute.
func TestAServerThatTakesNothingHoldsNobodyUpBeyondTheWriteTimeout(t *testing.T) {
	t.Parallel()
	clogged, release := clog(t, embeddedtest.NATS(t).URL(), 1<<20)
	defer release()
	c := connect(t, clogged, func(cfg *stream.Config) { cfg.WriteTimeout = 500 * time.Millisecond })
	w := write(t, c, stream.WriterConfig{Term: 1, Holder: "a"})
	away := c.Reconnected()
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	go func() {
		body := make([]byte, 100<<10)
		for {
			r := delta.Record{Kind: delta.KindDelta, Key: "default/p", Type: delta.Updated, RV: "1", Payload: body, Encoding: delta.EncodingJSON}
			if err := w.Append(ctx, []delta.Record{r}); err != nil {
				w.Close()
				_, _ = c.Tail(ctx, pods)
				done <- err
				return
			}
		}
	}()
	const soon = 20 * time.Second // less than the client's own pings take
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Append() = %v, want the context's end", err)
		}
	case <-time.After(soon):
		t.Fatal("an append outlives its context")
	}
	select {
	case <-away:
	case <-time.After(soon):
		t.Error("the connection is not made again")
	}
}
