package reflector_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// lines keeps a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// warnings are the warnings so far that hold a text.
func (l *lines) warnings(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for s := bufio.NewScanner(bytes.NewReader(l.buf.Bytes())); s.Scan(); {
		if line := s.Text(); strings.Contains(line, "WARN") && strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

func TestAnOutageIsOneWarningHoweverOftenItIsTried(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(n int, _ url.Values) (int, string) {
		switch {
		case n <= 10:
			return 403, status(403, "Forbidden", fmt.Sprintf("attempt %d", n))
		case n <= 20:
			return 500, status(500, "InternalError", fmt.Sprintf("attempt %d", n))
		}
		return 200, list("10", "", item("a", 1))
	}
	var log lines
	svc, _, _ := startSeen(t, quick(), clientOf(t, a.URL), embeddedtest.NATS(t).URL(), &log)
	c := dial(t, svc)
	well(t, c, "pods")
	for _, x := range []struct{ reason, attempt string }{{"FORBIDDEN", "attempt=1"}, {"SOURCE_FAILED", "attempt=11"}} {
		if got := log.warnings("reason=" + x.reason); len(got) != 1 || !strings.Contains(got[0], x.attempt) {
			t.Errorf("%s is told %d times, want once with %s:\n%s", x.reason, len(got), x.attempt, strings.Join(got, "\n"))
		}
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if !strings.Contains(log.buf.String(), `"reflection is well again"`) {
		t.Error("nothing says that it is over")
	}
}

func TestEqualFaultsOfManyCollectionsAreToldTogether(t *testing.T) {
	t.Parallel()
	const many = 30
	f := newFleet(t)
	f.Close() // nobody is there
	cfg := quick()
	cfg.Resources = nil
	for i := range many {
		cfg.Resources = append(cfg.Resources, reflector.Resource{Name: fmt.Sprintf("kind%ds.v1", i)})
	}
	var log lines
	svc, _, stop := startSeen(t, cfg, clientOf(t, f.URL), embeddedtest.NATS(t).URL(), &log)
	c := dial(t, svc)
	eventually(t, "all of them failing", func() bool {
		resp, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{})
		return err == nil && len(resp.GetReflections()) == many &&
			!slices.ContainsFunc(resp.GetReflections(), func(r *reflectorv1.Reflection) bool { return r.GetReason() != "UNREACHABLE" || r.GetLastError() == "" })
	})
	stop()
	together := log.warnings("reflections failed alike")
	if all := log.warnings("UNREACHABLE"); len(together) == 0 || len(all) >= many/2 {
		t.Errorf("%d warnings, %d of them for several, want few:\n%s", len(all), len(together), strings.Join(all, "\n"))
	}
	if s := strings.Join(together, ""); !strings.Contains(s, "dev/kind") || !strings.Contains(s, " more") {
		t.Errorf("names and number are missing in %s", s)
	}
}
