package nodes

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestAWatcherKeepsTheFirstMomentOfATaintAndOfADeletion(t *testing.T) {
	t.Parallel()
	s := &observer{tainted: map[string]time.Time{}, gone: map[string]time.Time{}}
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	executing := []byte(`{"spec":{"taints":[{"key":"a","effect":"NoSchedule"},{"key":"b","effect":"NoExecute"}]}}`)
	harmless := []byte(`{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`)
	s.node("MODIFIED", "n", harmless, at(1))
	s.node("MODIFIED", "n", executing, at(2))
	s.node("MODIFIED", "n", executing, at(3))
	if got := s.tainted["n"]; !got.Equal(at(2)) {
		t.Errorf("tainted at %v, want the moment of its first NoExecute taint", got)
	}
	s.node("MODIFIED", "n", harmless, at(4))
	if len(s.tainted) != 0 {
		t.Errorf("still tainted: %v", s.tainted)
	}
	s.pod("MODIFIED", "p", []byte(`{"metadata":{}}`), at(1))
	s.pod("MODIFIED", "p", []byte(`{"metadata":{"deletionTimestamp":"x"}}`), at(2))
	s.pod("DELETED", "p", []byte(`{}`), at(3))
	s.pod("DELETED", "q", []byte(`{}`), at(4))
	if !s.gone["p"].Equal(at(2)) || !s.gone["q"].Equal(at(4)) {
		t.Errorf("gone %v, want p as its deletion began and q as it vanished", s.gone)
	}
}

func TestAPartOfAPlaneThatIsNoneSaysSo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := harness.ServeChild(t.Context(), map[string]harness.MakeServant{"plane": plane.PlaneServer}, "plane", strings.NewReader(`{"part":"frob"}`), &out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `unknown part \"frob\"`) {
		t.Errorf("answer = %s, want the unknown part", &out)
	}
}

func TestASilentKubeletStopsAndComesBack(t *testing.T) {
	t.Parallel()
	cluster, err := devcluster.New(devcluster.Config{Listen: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stop := harness.InBackground(t.Context(), cluster.Run)
	<-cluster.Ready()
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	api, err := kube.Load(kube.Config{URL: cluster.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	s, err := watchNodes(t.Context(), api)
	defer s.close()
	if err != nil {
		t.Fatal(err)
	}
	k, err := plane.Serve(t.Context(), api, 2, 1, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	last := func(i int) time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.renewed[plane.KubeletName(i)]
	}
	renews := func(i int) {
		t.Helper()
		from := time.Now()
		if err := harness.Await(t.Context(), 10*time.Second, plane.KubeletName(i)+" does not renew its lease", func() (bool, error) { return last(i).After(from), nil }); err != nil {
			t.Fatal(err)
		}
	}
	renews(0)
	k.Silence(0, true)
	for range 5 { // what was on its way has arrived
		renews(1)
	}
	at := last(0)
	for range 3 {
		renews(1)
	}
	if now := last(0); !now.Equal(at) {
		t.Errorf("a silent node renewed its lease %v later", now.Sub(at))
	}
	k.Silence(0, false)
	renews(0)
	if err := k.Bind(t.Context(), 2, 1, "test", func(int) int { return 5 }); err != nil {
		t.Error(err)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}
