package reflector

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
)

func TestTheQuarantineRemembersABoundedNumberOfKeys(t *testing.T) {
	t.Parallel()
	var s state
	key := func(i int) delta.Key { return delta.Key(fmt.Sprintf("default/p%06d", i)) }
	for i := range maxQuarantined + 50 {
		s.poison(key(i), errors.New("first"), time.Now())
	}
	if n := s.get().poisoned; n != maxQuarantined {
		t.Errorf("%d are remembered, want %d", n, maxQuarantined)
	}
	s.poison(key(0), errors.New("again"), time.Now())
	if p := s.proto(); len(p.GetQuarantined()) != maxListedQuarantined || p.GetQuarantined()[0].GetReason() != "again" {
		t.Errorf("%d are named, the first because of %q; want %d, and the latest reason of a known key",
			len(p.GetQuarantined()), p.GetQuarantined()[0].GetReason(), maxListedQuarantined)
	}
	s.heal(key(1))
	s.poison(key(maxQuarantined+60), errors.New("new"), time.Now())
	if n := s.get().poisoned; n != maxQuarantined {
		t.Errorf("%d are remembered, want the place of a healed one taken", n)
	}
}

// silent is a server that answers nothing.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A flood of deletions under a selector, and nobody who says what became of the objects.
func TestABoundedNumberOfQuestionsIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		kc, err := kube.New(&rest.Config{Host: "http://silent", Transport: silent{}}, kube.Config{})
		if err != nil {
			t.Fatal(err)
		}
		reg := prometheus.NewRegistry()
		m, err := newMetrics(reg)
		if err != nil {
			t.Fatal(err)
		}
		r := &reflection{kube: kc, metrics: m, want: Resource{Scope: kube.Scope{LabelSelector: "a=b"}}}
		p := &publisher{r: r, wake: make(chan struct{}, 1), stage: delta.NewStage(64<<20, "")}
		a := newDeletionResolver(t.Context(), r, p, "0")
		defer a.close()
		const beyond = 3
		for i := range maxPending + beyond {
			rec := delta.Record{Kind: delta.KindDelta, Type: delta.Deleted, Key: delta.Key(fmt.Sprintf("default/p%d", i)), UID: "u", RV: "1", DeleteReason: delta.Observed}
			if !a.event(rec, true, "1") {
				t.Fatal("a deletion finds no room")
			}
		}
		synctest.Wait()
		if n := p.waiting(); n != beyond {
			t.Errorf("%d deletions are staged without a lookup, want %d", n, beyond)
		}
		time.Sleep(askFor)
		synctest.Wait()
		if n := p.waiting(); n != maxPending+beyond {
			t.Errorf("%d of %d deletions are staged after %v", n, maxPending+beyond, askFor)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
		if len(got) != 2 || got[string(byNobodyCrowded)] != beyond || got[string(byNobody)] != maxPending {
			t.Errorf("answers %v", got)
		}
	})
}

// A standby's shadow forgets deletions after the tombstones' time, or it would grow for ever.
func TestAStandbyForgetsOldDeletions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &standby{r: &reflection{}, shadow: delta.NewShadow(time.Hour), moved: make(chan struct{}, 1)}
		o := delta.Object{Key: "default/a", UID: "u", RV: "5", Hash: 1}
		s.shadow.Upsert(delta.Added, &o, 1, time.Now())
		s.shadow.Delete(delta.Observed, &o, 1, time.Now())
		for forgotten := range 2 {
			time.Sleep(50 * time.Minute)
			if err := s.apply(t.Context(), delta.Batch{}); err != nil {
				t.Fatal(err)
			}
			if s.shadow.Empty() != (forgotten == 1) {
				t.Errorf("empty %v after %d minutes", s.shadow.Empty(), 50*(forgotten+1))
			}
		}
	})
}

// What Check finds out about the log ends the term, no matter who did it.
func TestALogCheckThatFindsDamageEndsTheTerm(t *testing.T) {
	t.Parallel()
	col := delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}
	for want, harm := range map[error]func(*testing.T, *stream.Conn, *stream.Writer, jetstream.Stream, jetstream.JetStream) error{
		stream.ErrForeign: func(t *testing.T, _ *stream.Conn, _ *stream.Writer, s jetstream.Stream, js jetstream.JetStream) error {
			cfg := s.CachedInfo().Config
			cfg.MaxAge = time.Hour
			_, err := js.UpdateStream(t.Context(), cfg)
			return err
		},
		stream.ErrLogLost: func(t *testing.T, _ *stream.Conn, _ *stream.Writer, s jetstream.Stream, _ jetstream.JetStream) error {
			return s.Purge(t.Context())
		},
		stream.ErrDeposed: func(t *testing.T, c *stream.Conn, w *stream.Writer, _ jetstream.Stream, _ jetstream.JetStream) error {
			next, err := c.Writer(t.Context(), col, stream.WriterConfig{Term: 2})
			if err != nil {
				return err
			}
			next.Close()
			_ = w.Append(t.Context(), []delta.Record{{Kind: delta.KindLiveness}})
			if err := w.Flush(t.Context()); !errors.Is(err, stream.ErrDeposed) {
				return fmt.Errorf("Flush() = %w, want the term's end", err)
			}
			return nil
		},
	} {
		url := embeddedtest.NATS(t).URL()
		conn, err := stream.Connect(t.Context(), stream.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		nc, err := nats.Connect(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		w, err := conn.Writer(t.Context(), col, stream.WriterConfig{Term: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Close)
		r := &reflection{cfg: Config{LivenessEvery: time.Minute}}
		p := &publisher{r: r, w: w, stage: delta.NewStage(1<<20, "")}
		if err := p.check(t.Context()); err != nil {
			t.Errorf("check() of a whole log = %v", err)
		}
		s, err := js.Stream(t.Context(), col.StreamName())
		if err == nil {
			err = harm(t, conn, w, s, js)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.check(t.Context()); !errors.Is(err, want) {
			t.Errorf("check() = %v, want %v", err, want)
		}
	}
}

func TestEverythingLeavesOutSecretsSecondNamesAndWhatIsNamed(t *testing.T) {
	t.Parallel()
	both := []string{"list", "watch"}
	for _, row := range []struct {
		namespace string
		res       kube.Resource
		want      bool
	}{
		{"", kube.Resource{Version: "v1", Name: "events", Namespaced: true, Verbs: both}, true},
		{"", kube.Resource{Group: "events.k8s.io", Version: "v1", Name: "events", Namespaced: true, Verbs: both}, false},
		{"", kube.Resource{Version: "v1", Name: "secrets", Namespaced: true, Verbs: both}, false},
		{"", kube.Resource{Group: "vault.io", Version: "v1", Name: "secrets", Namespaced: true, Verbs: both}, true},
		{"", kube.Resource{Version: "v1", Name: "bindings", Namespaced: true, Verbs: []string{"create"}}, false},
		{"", kube.Resource{Version: "v1", Name: "componentstatuses", Verbs: []string{"get", "list"}}, false},
		{"", kube.Resource{Version: "v1", Name: "nodes", Verbs: both}, true},
		{"web", kube.Resource{Version: "v1", Name: "nodes", Verbs: both}, false},
		{"web", kube.Resource{Version: "v1", Name: "events", Namespaced: true, Verbs: both}, true},
		{"", kube.Resource{Version: "v1", Name: "pods", Namespaced: true, Verbs: both}, false}, // named below
	} {
		s := &Service{desired: map[string]*desired{"dev/pods": {spec: Resource{Cluster: "dev", Name: "pods"}}}}
		all := &throng{s: s, w: &desired{spec: Resource{Cluster: "dev", Name: everything, Scope: kube.Scope{Namespace: row.namespace}}}}
		if got := all.wants(row.res); got != row.want {
			t.Errorf("%s in %q: %v, want %v", row.res.Collection("dev"), row.namespace, got, row.want)
		}
	}
}
