package read

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// refusing is a JetStream that answers nothing but an error, and remembers when it was asked.
type refusing struct {
	jetstream.JetStream
	asked []time.Time
}

func (r *refusing) Stream(context.Context, string) (jetstream.Stream, error) {
	r.asked = append(r.asked, time.Now())
	return nil, nats.ErrTimeout
}

// Readers that lost the log at one moment do not come back at one moment.
func TestEveryAttemptIsLaterThanItsBackOffByARandomTime(t *testing.T) {
	t.Parallel()
	col := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	for name, run := range map[string]func(context.Context, *link.Conn) error{
		"reader": func(ctx context.Context, c *link.Conn) error {
			return Log(ctx, c, col, Config{}, func(context.Context, delta.Batch) error { return nil })
		},
		"consumer": func(ctx context.Context, c *link.Conn) error {
			return Consume(ctx, c, ConsumeConfig{Name: "n", Collections: []delta.Collection{col}}, func(context.Context, Work) error { return nil })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			js := &refusing{}
			c := &link.Conn{Config: link.Config{}.WithDefaults(), JetStream: js, Events: link.NewSignal()}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := run(ctx, c); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if len(js.asked) < 10 {
				t.Fatalf("%s: %d attempts in a minute", name, len(js.asked))
			}
			backoff := minBackoff
			for i := range len(js.asked) - 1 {
				if gap := js.asked[i+1].Sub(js.asked[i]); gap <= backoff || gap >= 2*backoff {
					t.Errorf("%s: attempt %d came %v after the one before, want more than %v and less than twice that", name, i+2, gap, backoff)
				}
				backoff = min(2*backoff, maxBackoff)
			}
		})
	}
	c, err := link.Dial(t.Context(), link.Config{URL: embeddedtest.NATS(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if o := c.NATS.Opts; o.ReconnectJitter < o.ReconnectWait || o.ReconnectJitterTLS < o.ReconnectWait || o.CustomReconnectDelayCB != nil {
		t.Errorf("connections come back after %v and up to %v, or %v with TLS, want at least as much chance as wait", o.ReconnectWait, o.ReconnectJitter, o.ReconnectJitterTLS)
	}
}
