package reflector

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// TestAdditionsSurviveABucketThatIsLostUnderACall: a call that comes first recreates the bucket
// with what was added, and does not take it for an empty one.
func TestAdditionsSurviveABucketThatIsLostUnderACall(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	type replica struct {
		*registry
		mu    sync.Mutex
		value string // guarded by mu
	}
	replicas := make([]*replica, 2)
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	defer runs.Wait()
	defer cancel()
	for i := range replicas {
		conn, err := stream.Connect(t.Context(), stream.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		r := &replica{}
		r.registry = newRegistry(conn, slog.New(slog.DiscardHandler), func(_, _ string, value []byte, _ uint64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.value = string(value)
		})
		runs.Go(func() { r.bucket.Run(ctx) })
		replicas[i] = r
	}
	var want []string
	for round := range 5 {
		if round > 0 {
			if err := js.DeleteKeyValue(ctx, reflectionsBucket); err != nil {
				t.Fatal(err)
			}
		}
		var calls sync.WaitGroup
		for i, r := range replicas {
			word := fmt.Sprintf("%d.%d ", round, i)
			want = append(want, word)
			calls.Go(func() {
				err := r.change(ctx, "added/dev", func(value []byte) ([]byte, bool, error) {
					return append(value, word...), true, nil
				})
				if err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		calls.Wait()
		for i, r := range replicas {
			var lacks []string
			for range 3 { // each takes 3 s at most, on a machine that starves
				_, e, err := r.bucket.Get(ctx, "added/dev")
				if err != nil {
					t.Fatal(err)
				}
				r.follow(ctx, e.Revision)
				r.mu.Lock()
				value := r.value
				r.mu.Unlock()
				lacks = nil
				for _, word := range want {
					if !strings.Contains(value, word) {
						lacks = append(lacks, word)
					}
				}
				if lacks == nil {
					break
				}
			}
			if lacks != nil {
				t.Fatalf("round %d: replica %d knows nothing of %s", round, i, lacks)
			}
		}
	}
}
