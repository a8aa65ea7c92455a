package reflector

import (
	"testing"
	"time"
)

func TestTheBackoffDoublesToItsCapWithJitter(t *testing.T) {
	t.Parallel()
	b := Backoff{}.withDefaults()
	for n, want := range []time.Duration{800, 1600, 3200, 6400, 12800, 25600, 30000, 30000} {
		want *= time.Millisecond
		if got := b.delay(n, 0); got != want {
			t.Errorf("delay %d is %v, want %v", n, got, want)
		}
		if got := b.delay(n, 0.5); got != want+want/2 {
			t.Errorf("delay %d with half the jitter is %v, want %v", n, got, want+want/2)
		}
	}
	if got := b.delay(1_000_000, 0.999); got >= 60*time.Second || got < 30*time.Second {
		t.Errorf("a late delay is %v, want [30s, 60s)", got)
	}
}

// client-go starts again at 0.8 s every two minutes of one outage; this one does not.
func TestTheBackoffRestartsOnlyAfterAHealthySource(t *testing.T) {
	t.Parallel()
	r := retry{Backoff: Backoff{Jitter: -1}.withDefaults()}
	now := time.Unix(0, 0)
	for now.Before(time.Unix(600, 0)) {
		now = now.Add(r.fail(0))
	}
	if got := r.fail(0); got != 30*time.Second {
		t.Errorf("delay %v after ten minutes of one outage, want the cap", got)
	}
	for _, tc := range []struct {
		well, blind time.Duration
		want        time.Duration
	}{
		{5 * time.Second, 0, 30 * time.Second},
		{0, time.Hour, 30 * time.Second}, // one success, and then nothing for long
		{31 * time.Second, 0, 800 * time.Millisecond},
	} {
		r.succeed(now)
		now = now.Add(tc.well)
		r.succeed(now)
		now = now.Add(tc.blind)
		if got := r.fail(0); got != tc.want {
			t.Errorf("delay %v after a source that was well for %v and not heard for %v, want %v", got, tc.well, tc.blind, tc.want)
		}
	}
	if got := r.fail(7 * time.Minute); got != 7*time.Minute {
		t.Errorf("delay %v, want what the server asked for", got)
	}
}
