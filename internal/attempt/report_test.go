package attempt

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAFailureThatGoesOnIsReportedAtFirstWhenItChangesAndOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Report
		for i, c := range []struct {
			after  time.Duration
			reason string
			want   bool
		}{
			{0, "", true},
			{0, "", false},
			{0, "a", true},
			{59 * time.Second, "a", false},
			{0, "b", true},
			{0, "a", true},
			{time.Minute, "a", true},
			{time.Second, "a", false},
		} {
			time.Sleep(c.after)
			if got := r.Due(c.reason); got != c.want {
				t.Errorf("%d: %q after %v is reported: %t", i, c.reason, c.after, got)
			}
		}
	})
}
