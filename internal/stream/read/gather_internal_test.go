package read

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// blank is a message without anything.
type blank struct{ jetstream.Msg }

func (blank) Data() []byte { return nil }

func TestRecordsAreGatheredUntilTheirTimeOrTheBatchIsFull(t *testing.T) {
	t.Parallel()
	const wait, most = 100 * time.Millisecond, 3
	for name, c := range map[string]struct {
		every time.Duration // between two records
		want  int           // records in the first batch
		after time.Duration
	}{
		"few":  {60 * time.Millisecond, 2, wait},
		"many": {10 * time.Millisecond, most, 20 * time.Millisecond},
		"one":  {time.Second, 1, wait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDeliveries(most, nil)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range most {
						d.put(blank{})
						time.Sleep(c.every)
					}
				}()
				<-d.ready
				began := time.Now()
				d.gather(t.Context(), wait)
				if took := time.Since(began); took != c.after {
					t.Errorf("gathered for %v, want %v", took, c.after)
				}
				if got := len(d.take(nil, most)); got != c.want {
					t.Errorf("a batch of %d, want %d", got, c.want)
				}
				<-done
			})
		})
	}
}
