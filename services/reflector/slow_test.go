package reflector_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/internal/telemetry/recent"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// valve forwards connections to a server, and holds what clients send while it is shut. When a test
// ends it is opened first: everything else that cleans up may have to wait for what hangs in it.
type valve struct {
	t    testing.TB
	addr string
	gate sync.RWMutex // locked while it is shut
	mu   sync.Mutex
	held bool // gate is locked; guarded by mu
}

func (v *valve) shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.held {
		v.gate.Lock()
		v.held = true
		v.t.Cleanup(v.open)
	}
}

func (v *valve) open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held {
		v.gate.Unlock()
		v.held = false
	}
}

func newValve(t testing.TB, target string) *valve {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{t: t, addr: lis.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(target, "nats://"))
			if err != nil {
				_ = in.Close()
				continue
			}
			wg.Go(func() {
				defer out.Close()
				buf := make([]byte, 32<<10)
				for {
					n, err := in.Read(buf)
					v.gate.RLock()
					_, werr := out.Write(buf[:n])
					v.gate.RUnlock()
					if err != nil || werr != nil {
						return
					}
				}
			})
			wg.Go(func() {
				defer in.Close()
				_, _ = io.Copy(in, out)
			})
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		wg.Wait()
	})
	return v
}

func TestASlowLogCoalescesAndNeverCutsTheWatch(t *testing.T) {
	t.Parallel()
	const keys, rounds = 10, 3000
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "") }
	flood := make(chan struct{})
	sent := make(chan struct{})
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send()
		if n == 1 {
			a.wait(flood)
			rv := 10
			for range rounds {
				for k := range keys {
					rv++
					w.send(event("MODIFIED", object("p"+strconv.Itoa(k), rv)))
				}
			}
			close(sent)
		}
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	v := newValve(t, nats)
	cfg := quick()
	cfg.LeaseTTL = 5 * time.Minute // the log is slow, not gone
	cfg.StageBytes = 64 << 10
	svc, _ := start(t, cfg, a.URL, "nats://"+v.addr)
	c := dial(t, svc)
	m := follow(t, nats, pods)
	m.until(t, "sync", m.readable)
	v.shut()
	close(flood)
	select {
	case <-sent:
	case <-time.After(60 * time.Second):
		t.Error("the watch was held up by the log")
	}
	reflection(t, c, "pods", "coalescing", func(r *reflectorv1.Reflection) bool {
		return r.GetState() == reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING
	})
	v.open()
	m.until(t, "the end of the flood", func() bool { return m.revision().RV == strconv.Itoa(10+keys*rounds) })
	for k, rv := range m.live() {
		n, _ := strconv.Atoi(rv)
		if string(k) != "default/p"+strconv.Itoa((n-11)%keys) || n <= 10+keys*(rounds-1) {
			t.Errorf("%s is at %s, want its last version", k, rv)
		}
	}
	r := reflection(t, c, "pods", "the count", func(r *reflectorv1.Reflection) bool { return r.GetCoalesced() > 0 })
	if l, w := len(a.requests(false)), len(a.requests(true)); l != 1 || w != 1 || r.GetPublished() >= keys*rounds {
		t.Errorf("%d lists, %d watches, %d published of %d; want one watch and fewer versions", l, w, r.GetPublished(), keys*rounds)
	}
}

// Coalescing frees nothing when every change is of another key: then the stage takes no more, the
// watch goes on, and one list tells the rest.
func TestASlowLogWithDistinctKeysIsMadeUpForByOneList(t *testing.T) {
	t.Parallel()
	const keys = 1500
	a := newAPI(t)
	var all []string
	for k := range keys {
		all = append(all, item("p"+strconv.Itoa(k), 11+k))
	}
	a.onList = func(n int, _ url.Values) (int, string) {
		if n == 1 {
			return 200, list("10", "")
		}
		return 200, list(strconv.Itoa(11+keys), "", all...)
	}
	flood, sent := make(chan struct{}), make(chan struct{})
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send()
		if n == 1 {
			a.wait(flood)
			for k := range keys {
				w.send(event("ADDED", object("p"+strconv.Itoa(k), 11+k)))
			}
			w.send(bookmark(11 + keys))
			close(sent)
		}
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	v := newValve(t, nats)
	cfg := quick()
	cfg.LeaseTTL = 5 * time.Minute // the log is slow, not gone
	cfg.StageBytes = 64 << 10      // a tenth of what comes
	svc, _ := start(t, cfg, a.URL, "nats://"+v.addr)
	c := dial(t, svc)
	m := follow(t, nats, pods)
	m.until(t, "sync", m.readable)
	v.shut()
	close(flood)
	select {
	case <-sent:
	case <-time.After(60 * time.Second):
		t.Error("the watch was held up by the log")
	}
	r := reflection(t, c, "pods", "the end of the flood", func(r *reflectorv1.Reflection) bool { return r.GetObjects() == keys })
	if r.GetState() != reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING || r.GetPending() > 1000 || r.GetPending() == 0 {
		t.Errorf("%v with %d pending, want the watch and a bounded stage", r.GetState(), r.GetPending())
	}
	lag := r.GetLag().AsDuration()
	reflection(t, c, "pods", "a lag that grows while the log stands still", func(r *reflectorv1.Reflection) bool {
		return r.GetLag().AsDuration() > lag+20*time.Millisecond
	})
	v.open()
	m.until(t, "all keys", func() bool { return m.revision().RV == strconv.Itoa(11+keys) })
	for k, rv := range m.live() {
		if n, _ := strconv.Atoi(rv); string(k) != "default/p"+strconv.Itoa(n-11) {
			t.Errorf("%s is at %s", k, rv)
		}
	}
	a.nth(t, watched, 2) // it is opened when the list is on its way to the log
	if got, l, w := len(m.live()), len(a.requests(false)), len(a.requests(true)); got != keys || l != 2 || w != 2 {
		t.Errorf("%d pods, %d lists, %d watches; want all after one more list", got, l, w)
	}
}

func TestRecordsOfSampledEventsCarryTheirTrace(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.onList = func(int, url.Values) (int, string) { return 200, list("10", "", item("a", 1)) }
	a.onWatch = func(n int, _ url.Values, w *wire) {
		w.send(event("ADDED", object("b", 11)))
		w.hold()
	}
	nats := embeddedtest.NATS(t).URL()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "reflector", LogOutput: logs(t), TraceRatio: 1, Recent: recent.New()})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := stream.Connect(t.Context(), stream.Config{URL: nats})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	kc, err := kube.Load(kube.Config{URL: a.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer kc.Close()
	svc, err := reflector.New(quick(), conn, kc, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	m := follow(t, nats, pods)
	m.until(t, "the pods", func() bool { return m.revision().RV == "11" })
	if r, _ := m.get("default/a"); r.Trace != "" || r.ObservedAt.IsZero() || r.PublishedAt.Before(r.ObservedAt) {
		t.Errorf("of the list: trace %q, observed %v, published %v; want no trace", r.Trace, r.ObservedAt, r.PublishedAt)
	}
	if r, _ := m.get("default/b"); len(r.Trace) != 55 || !strings.HasSuffix(r.Trace, "-01") {
		t.Errorf("of the watch: trace %q, want a sampled one", r.Trace)
	}
	m.until(t, "a liveness record", func() bool { return len(m.kinds(delta.KindLiveness)) > 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
