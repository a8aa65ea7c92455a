package reflector_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// A watch that has nothing to say, not even bookmarks, and is closed by a proxy in the end, was a
// well source all the same. A list that is answered, or a watch that only opens, is not yet.
func TestAHealthyButSilentSourceEndsAnOutage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		quiet bool
		after string
	}{
		"a quiet watch":                      {true, "after=20ms"},
		"lists answered and watches refused": {false, "after=500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t)
			a.onList = func(n int, _ url.Values) (int, string) {
				if n <= 8 {
					return 500, status(500, "InternalError", "broken")
				}
				return 200, list("10", "", item("a", 1))
			}
			a.onWatch = func(n int, _ url.Values, w *wire) {
				if n == 1 && tc.quiet {
					w.send()
					time.Sleep(1200 * time.Millisecond) // longer than the cap, and than a very short watch
					return
				}
				w.refuse(403, status(403, "Forbidden", "no"))
			}
			cfg := quick()
			cfg.Backoff = reflector.Backoff{Base: 20 * time.Millisecond, Cap: 500 * time.Millisecond, Jitter: -1}
			var log lines
			startSeen(t, cfg, clientOf(t, a.URL), embeddedtest.NATS(t).URL(), &log)
			eventually(t, "the refusal", func() bool { return len(log.warnings("reason=FORBIDDEN")) > 0 })
			if got := log.warnings("reason=FORBIDDEN")[0]; !strings.Contains(got, tc.after+" ") {
				t.Errorf("%s, want %s", got, tc.after)
			}
		})
	}
}
