package reflector_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	nats0 "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// operator is somebody else with access to the log's server.
func operator(t testing.TB, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats0.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// failing waits until a reflection names why it fails, and when it tries again.
func failing(t testing.TB, c reflectorv1.ReflectorServiceClient, name, reason string) {
	t.Helper()
	r := reflection(t, c, name, reason, func(r *reflectorv1.Reflection) bool {
		return r.GetReason() == reason && r.GetNextRetryAt() != nil
	})
	if r.GetLastError() == "" || r.GetLastErrorAt() == nil {
		t.Errorf("%s: last error %q at %v", reason, r.GetLastError(), r.GetLastErrorAt())
	}
}

// well waits until a reflection watches and names no fault.
func well(t testing.TB, c reflectorv1.ReflectorServiceClient, name string) {
	t.Helper()
	reflection(t, c, name, "recovery", func(r *reflectorv1.Reflection) bool {
		return watching(r) && r.GetReason() == "" && r.GetNextRetryAt() == nil
	})
}

func TestALogThatSomebodyElseMadeIsNamedAndHoldsNoOtherBack(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	cfg := quick()
	cfg.Resources = append(cfg.Resources, reflector.Resource{Name: "nodes.v1"})
	nats := embeddedtest.NATS(t).URL()
	js := operator(t, nats)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: pods.StreamName(), Subjects: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	svc, _ := start(t, cfg, a.URL, nats)
	c := dial(t, svc)
	failing(t, c, "pods", "FOREIGN_LOG")
	well(t, c, "nodes")
	if err := js.DeleteStream(t.Context(), pods.StreamName()); err != nil {
		t.Fatal(err)
	}
	m := follow(t, nats, pods)
	m.until(t, "the list", func() bool { return m.revision().RV == "10" })
	well(t, c, "pods")
}

func TestAPurgedLogIsListedAgainByItsLeaderAlsoWhileQuiet(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1), item("b", 2)) }
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, quick(), a.URL, nats)
	c := dial(t, svc)
	m := follow(t, nats, pods)
	m.until(t, "sync", func() bool { return m.readable() && len(m.live()) == 2 })
	js := operator(t, nats)
	harm := map[string]func(jetstream.Stream) error{
		"purged": func(s jetstream.Stream) error { return s.Purge(t.Context()) },
		"one key purged": func(s jetstream.Stream) error {
			return s.Purge(t.Context(), jetstream.WithPurgeSubject(pods.Subject("default/a")))
		},
		"deleted": func(jetstream.Stream) error { return js.DeleteStream(t.Context(), pods.StreamName()) },
	}
	for name, do := range harm {
		well(t, c, "pods")
		was := m.revision().Epoch
		s, err := js.Stream(t.Context(), pods.StreamName())
		if err == nil {
			err = do(s)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.until(t, "the epoch after the log was "+name, func() bool { return m.readable() && m.revision().Epoch > was && m.revision().RV == "10" })
		late := follow(t, nats, pods)
		late.until(t, "all of it, for a new reader", func() bool { return late.readable() && len(late.live()) == 2 })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resets < 1+len(harm) {
		t.Errorf("%d resets, want an explicit gap each time", m.resets)
	}
}

func TestANATSWithoutJetStreamIsNamedUntilItHasIt(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	nats, stop := embeddedtest.PlainNATS(t, "")
	svc, _ := start(t, quick(), a.URL, nats)
	c := dial(t, svc)
	failing(t, c, "pods", "NO_JETSTREAM")
	stop()
	n, err := embedded.StartNATS(embedded.NATSConfig{Dir: t.TempDir(), Listen: strings.TrimPrefix(nats, "nats://")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	m := follow(t, nats, pods)
	m.until(t, "the list", func() bool { return m.revision().RV == "10" })
	well(t, c, "pods")
}

// failingMetric is the reason that a metric gives for a reflection that fails.
func failingMetric(t *testing.T, tel *telemetry.Telemetry, name string) (reason string) {
	t.Helper()
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == "deltaplane_reflector_failing" && strings.Contains(l[0].GetValue(), name) {
				return l[1].GetValue()
			}
		}
	}
	return ""
}

func TestAFullLogIsNamedAndTheMirrorGoesOnOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	const large = 40
	a := newAPI(t)
	filler := strings.Repeat("x", 400<<10)
	var all []string
	for i := range large {
		all = append(all, fmt.Sprintf(`{"metadata":{"name":"p%d","namespace":"default","uid":"u%d","resourceVersion":"%d","annotations":{"x":%q}}}`, i, i, i+1, filler))
	}
	a.onList = func(int, url.Values) (int, string) { return 200, list("100", "", all...) }
	dir := t.TempDir()
	small, err := embedded.StartNATS(embedded.NATSConfig{Dir: dir, Listen: "127.0.0.1:0", MaxStore: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer small.Stop()
	nats := small.URL()
	cfg := quick()
	cfg.LeaseTTL = 3 * time.Second
	svc, tel, _ := startSeen(t, cfg, clientOf(t, a.URL), nats, logs(t))
	c := dial(t, svc)
	failing(t, c, "pods", "LOG_FULL")
	if named := failingMetric(t, tel, "pods"); named != "LOG_FULL" {
		t.Errorf("the metric names %q, want LOG_FULL", named)
	}
	if ready := fmt.Sprint(svc.Ready(t.Context())); !strings.Contains(ready, "LOG_FULL") {
		t.Errorf("readiness does not name the reason: %s", ready)
	}
	small.Stop()
	n, err := embedded.StartNATS(embedded.NATSConfig{Dir: dir, Listen: strings.TrimPrefix(nats, "nats://")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	m := follow(t, nats, pods)
	m.until(t, "all of it", func() bool { return m.readable() && len(m.live()) == large })
	well(t, c, "pods")
}

func TestALogThatIsBackEndsTheWaitForIt(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	server := embedded.NATSConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"}
	first, err := embedded.StartNATS(server)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	nats := first.URL()
	cfg := quick()
	cfg.LeaseTTL = time.Second // it is what notices that the log is away
	cfg.Backoff = reflector.Backoff{Base: time.Hour, Cap: time.Hour, Jitter: -1}
	svc, _ := start(t, cfg, a.URL, nats)
	c := dial(t, svc)
	well(t, c, "pods")
	first.Stop()
	failing(t, c, "pods", "LOG_UNAVAILABLE")
	server.Listen = strings.TrimPrefix(nats, "nats://")
	second, err := embedded.StartNATS(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Stop)
	well(t, c, "pods")
}

func TestACallSaysWhatIsAwayAndWhatWasNotDone(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	server := embedded.NATSConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"}
	n, err := embedded.StartNATS(server)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Stop()
	svc, _ := start(t, quick(), f.URL, n.URL())
	c := dial(t, svc)
	well(t, c, "pods")
	add(t, c, &reflectorv1.ReflectionSpec{Resource: "configmaps"})
	n.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, addErr := c.AddReflection(ctx, &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: "nodes"}})
	_, removeErr := c.RemoveReflection(ctx, &reflectorv1.RemoveReflectionRequest{Resource: "configmaps"})
	_, relistErr := c.Relist(ctx, &reflectorv1.RelistRequest{Collection: "dev/pods.v1"})
	for call, err := range map[string]error{"add": addErr, "remove": removeErr, "relist": relistErr} {
		if rpc.Reason(err) != "REFLECTIONS_UNAVAILABLE" || !strings.Contains(err.Error(), "NATS cannot be reached") || !strings.Contains(err.Error(), "changed") {
			t.Errorf("%s = %v; want what is away, and whether anything was changed", call, err)
		}
	}
}

// TestACallIsToldWhatIsAwayBeforeItsTimeIsOver, also when it asks again by itself.
func TestACallIsToldWhatIsAwayBeforeItsTimeIsOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	nats := embeddedtest.NATS(t).URL()
	gate := newValve(t, nats)
	svc, _ := start(t, quick(), f.URL, "nats://"+gate.addr)
	c := dial(t, svc)
	well(t, c, "pods")
	gate.shut()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	_, err := c.Relist(ctx, &reflectorv1.RelistRequest{Collection: "dev/pods.v1"})
	if rpc.Reason(err) != "REFLECTIONS_UNAVAILABLE" || !strings.Contains(err.Error(), "NATS cannot be reached") {
		t.Errorf("Relist() = %v; want what is away", err)
	}
}
