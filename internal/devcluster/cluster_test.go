package devcluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
)

func TestConfigReportsEveryFaultTogether(t *testing.T) {
	t.Parallel()
	_, err := devcluster.New(devcluster.Config{Listen: "nowhere", HistoryEvents: -1, BookmarkEvery: -time.Second}, nil)
	for _, want := range []string{"listen", "history events", "bookmark interval"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want an error about %s", err, want)
		}
	}
}

func TestOtherMachinesAreKeptOutUnlessAllowed(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{":7448", "0.0.0.0:0", "192.0.2.1:7448", "[::]:0"} {
		if _, err := devcluster.New(devcluster.Config{Listen: listen}, nil); err == nil || !strings.Contains(err.Error(), "insecure") {
			t.Errorf("New() on %s = %v, want a refusal", listen, err)
		}
		idle(t, devcluster.Config{Listen: listen, Insecure: true})
	}
}

func TestABusyAddressIsAnErrorOfRun(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{})
	other := idle(t, devcluster.Config{Listen: strings.TrimPrefix(c.URL(), "http://")})
	if err := other.Run(t.Context()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Run() = %v, want that the address is in use", err)
	}
}

func TestStoppingEndsWatchesAndReturnsNil(t *testing.T) {
	t.Parallel()
	c := idle(t, devcluster.Config{Listen: "127.0.0.1:0"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-c.Ready()
	lines := watch(t, c, configMaps+"?watch=1&resourceVersion="+strconv.FormatUint(c.ResourceVersion(), 10))
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil on a clean stop", err)
	}
	for l := range lines {
		if l.Type == "ERROR" {
			t.Errorf("line %s, want a clean end", l.raw)
		}
	}
}

func TestStartingManyTimes(t *testing.T) {
	t.Parallel()
	for range 10 {
		c := idle(t, devcluster.Config{Listen: "127.0.0.1:0"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		<-c.Ready()
		cancel()
		if err := <-done; err != nil {
			t.Fatalf("Run() = %v", err)
		}
	}
}

func TestForbiddenResourcesAnswer403AndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	c := idle(t, devcluster.Config{Forbidden: []string{"secrets", "jobs.batch"}})
	for _, path := range []string{"/api/v1/secrets", "/apis/batch/v1/jobs", "/api/v1/namespaces/default/secrets/x"} {
		if code, out := call(t, c, http.MethodGet, path, nil); code != http.StatusForbidden || out.text("reason") != "Forbidden" {
			t.Errorf("%s = %d %v, want 403", path, code, out)
		}
	}
	must(t, c, http.MethodGet, "/api/v1/pods", nil)
}

func TestFaultsAreAnsweredInsteadOfTheRequest(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	c := idle(t, devcluster.Config{Fault: func(r *http.Request) *metav1.Status {
		if !armed.Load() || r.URL.Query().Get("watch") != "" {
			return nil
		}
		return &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
			Message: "slow down", Details: &metav1.StatusDetails{RetryAfterSeconds: 3},
		}
	}})
	must(t, c, http.MethodGet, "/api/v1/pods", nil)
	armed.Store(true)
	if code, out := call(t, c, http.MethodGet, "/api/v1/pods", nil); code != http.StatusTooManyRequests || out.text("reason") != "TooManyRequests" {
		t.Errorf("answer = %d %v, want the fault", code, out)
	}
}

func TestInjectedLinesReachWatchersAndTheStreamGoesOn(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{})
	lines := watch(t, c, configMaps+"?watch=1&resourceVersion="+strconv.FormatUint(c.ResourceVersion(), 10))
	before := c.ResourceVersion()
	if !c.InjectWatchLine("configmaps", []byte(`{"type":"MODIFIED","object":{broken`)) {
		t.Fatal("InjectWatchLine() = false")
	}
	if got := next(t, lines).raw; got != "{\"type\":\"MODIFIED\",\"object\":{broken\n" {
		t.Errorf("line = %q, want the injected one verbatim", got)
	}
	if c.ResourceVersion() <= before {
		t.Error("the line has no version of its own")
	}
	must(t, c, http.MethodPost, configMaps, configMap("after"))
	if l := next(t, lines); l.Type != "ADDED" || l.Event.text("metadata.name") != "after" {
		t.Errorf("line = %s, want the next event", l.raw)
	}
	if c.InjectWatchLine("nopes", nil) {
		t.Error("InjectWatchLine() of an unknown resource = true")
	}
}

func TestCompactionExpiresOldWatchesAndSparesThoseUpToDate(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{})
	old := c.ResourceVersion()
	live := watch(t, c, configMaps+"?watch=1&resourceVersion="+strconv.FormatUint(old, 10))
	must(t, c, http.MethodPost, configMaps, configMap("a"))
	next(t, live)
	c.Compact()
	l := next(t, watch(t, c, configMaps+"?watch=1&resourceVersion="+strconv.FormatUint(old, 10)))
	if l.Type != "ERROR" || l.Event.text("reason") != "Expired" || l.Event.at("code") != 410.0 {
		t.Errorf("line = %s, want the ERROR event Expired", l.raw)
	}
	must(t, c, http.MethodPost, configMaps, configMap("b"))
	if l := next(t, live); l.Type != "ADDED" || l.Event.text("metadata.name") != "b" {
		t.Errorf("line = %s, want the live watch to go on", l.raw)
	}
}

func TestTheHistoryWindowIsBounded(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{HistoryEvents: 10})
	must(t, c, http.MethodPost, configMaps, configMap("a"))
	old := c.ResourceVersion()
	for i := range 20 {
		must(t, c, http.MethodPatch, configMaps+"/a", fmt.Sprintf(`{"data":{"k":"%d"}}`, i))
	}
	if l := next(t, watch(t, c, fmt.Sprintf("%s?watch=1&resourceVersion=%d", configMaps, old))); l.Type != "ERROR" {
		t.Errorf("line = %s, want Expired", l.raw)
	}
	if l := next(t, watch(t, c, fmt.Sprintf("%s?watch=1&resourceVersion=%d", configMaps, c.ResourceVersion()-3))); l.Type != "MODIFIED" {
		t.Errorf("line = %s, want what the window still holds", l.raw)
	}
}

func TestASlowWatcherNeverHoldsWritersBackAndIsCut(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{HistoryEvents: 20})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL()+configMaps+"?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{ReadBufferSize: 1 << 10}
	t.Cleanup(transport.CloseIdleConnections)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// Far more than the sockets' buffers hold, and nobody reads.
	big := strings.Repeat("x", 500_000)
	for i := range 100 {
		must(t, c, http.MethodPost, configMaps, doc{"metadata": doc{"name": fmt.Sprintf("big-%d", i)}, "data": doc{"k": big}})
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // its write took longer than the server waits
	}
	if err != nil || n == 0 || n > 90*int64(len(big)) {
		t.Errorf("read %d bytes, %v: want a part of the events and then the end", n, err)
	}
}

func TestBookmarksComeByThemselves(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{BookmarkEvery: 20 * time.Millisecond})
	rv := c.ResourceVersion()
	lines := watch(t, c, fmt.Sprintf("%s?watch=1&allowWatchBookmarks=true&resourceVersion=%d", configMaps, rv))
	// A bookmark moves on although only another resource changed.
	must(t, c, http.MethodPost, pods, pod("p", nil, doc{"schedulerName": "nobody"}))
	want := strconv.FormatUint(c.ResourceVersion(), 10)
	until(t, lines, "a bookmark at version "+want, func(l line) bool {
		return l.Type == "BOOKMARK" && l.Event.text("metadata.resourceVersion") == want
	})
}

func TestKubeconfigNamesTheServer(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{})
	if got := string(c.Kubeconfig()); !strings.Contains(got, "server: "+c.URL()) || !strings.HasPrefix(c.URL(), "http://127.0.0.1:") {
		t.Errorf("Kubeconfig() = %s", got)
	}
}
