package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func TestACallerWaitsForItsOwnListsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f flow
		var held []*turn
		for range listsAtOnce {
			one, ok := f.list(t.Context(), "greedy")
			if !ok {
				t.Fatal("a turn is refused")
			}
			held = append(held, one)
		}
		if _, ok := f.list(t.Context(), "modest"); !ok {
			t.Error("another caller is refused")
		}
		free := make(chan bool)
		go func() {
			_, ok := f.list(t.Context(), "greedy")
			free <- ok
		}()
		synctest.Wait()
		select {
		case <-free:
			t.Fatal("one more is answered at once")
		default:
		}
		held[0].done()
		held[0].done() // once is enough
		if !<-free {
			t.Error("the turn that is free is refused")
		}
		begun := time.Now()
		slow, ok := f.list(t.Context(), "greedy")
		if !ok || time.Since(begun) > turnIdle {
			t.Errorf("behind readers that are slow, a list is answered %v after %v", ok, time.Since(begun))
		}
		slow.done()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 * listsAtOnce { // no turn is free for these
			go f.list(t.Context(), "greedy")
		}
		synctest.Wait()
		if _, ok := f.list(ctx, "greedy"); ok {
			t.Error("who does not wait any more is answered")
		}
		time.Sleep(time.Minute)
	})
}

func TestACallerWithTooMuchIsRefusedAtOnceAndForgottenWhenItIsDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f flow
		ctx, cancel := context.WithCancel(t.Context())
		for range maxLists {
			go func() {
				if one, ok := f.list(ctx, "greedy"); ok {
					<-ctx.Done()
					one.done()
				}
			}()
		}
		synctest.Wait()
		begun := time.Now()
		if _, ok := f.list(ctx, "greedy"); ok || !time.Now().Equal(begun) {
			t.Error("one more than may wait is let in")
		}
		var ends []func()
		for range maxWatches {
			done, ok := f.watch("greedy")
			if !ok {
				t.Fatal("a watch is refused")
			}
			ends = append(ends, done)
		}
		if _, ok := f.watch("greedy"); ok {
			t.Error("one watch too many is let in")
		}
		for _, end := range ends {
			end()
		}
		cancel()
		synctest.Wait()
		if len(f.all) != 0 {
			t.Errorf("%d callers are known after all", len(f.all))
		}
	})
}

func valueOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

func TestRequestsAreCountedUnderTheNamesOfAPIServers(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	m, err := newMonitor(registry)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, target string, code int, header ...string) {
		r := httptest.NewRequest(method, target, nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		m.serve(httptest.NewRecorder(), r, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte("{}"))
		})
	}
	for range 2 {
		ask("GET", "/api/v1/pods", 200)
	}
	ask("GET", "/api/v1/namespaces/a/pods?watch=1", 200)
	ask("GET", "/api/v1/namespaces/a/pods/p", 404)
	ask("PATCH", "/api/v1/namespaces/a/pods/p?dryRun=All", 200, "Content-Type", "application/apply-patch+yaml")
	ask("DELETE", "/api/v1/namespaces/a/pods", 403)
	ask("GET", "/api/v1/namespaces/a/pods/p/exec", 101, "Upgrade", "websocket")
	ask("GET", "/api/v1/namespaces/a/pods/p/nothing", 404)
	ask("GET", "/apis/made.up/v1/things", 404)
	ask("BREW", "/readyz", 405)
	for _, tc := range []struct {
		want   float64
		labels []string
	}{
		{2, []string{"200", "", "LIST", "", "v1", "pods", "", "cluster", component}},
		{1, []string{"200", "", "WATCH", "", "v1", "pods", "", "namespace", component}},
		{1, []string{"404", "", "GET", "", "v1", "pods", "", "resource", component}},
		{1, []string{"200", "All", "APPLY", "", "v1", "pods", "", "resource", component}},
		{1, []string{"403", "", "DELETECOLLECTION", "", "v1", "pods", "", "namespace", component}},
		{1, []string{"101", "", "CONNECT", "", "v1", "pods", "exec", "resource", component}},
		{1, []string{"404", "", "GET", "", "v1", "pods", "other", "resource", component}},
		{1, []string{"404", "", "LIST", "", "", "", "", "cluster", component}}, // anybody can ask for what there is not
		{1, []string{"405", "", "other", "", "", "", "", "", component}},
	} {
		if got := valueOf(t, m.requests.WithLabelValues(tc.labels...)); got != tc.want {
			t.Errorf("%q: %v, want %v", tc.labels, got, tc.want)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "apiserver_request_total" && len(f.GetMetric()) != 9 {
			t.Errorf("%d series of requests", len(f.GetMetric()))
		}
	}
	for _, labels := range [][]string{{"readOnly"}, {"mutating"}} {
		if n := valueOf(t, m.inflight.WithLabelValues(labels...)); n != 0 {
			t.Errorf("%v of %q are under way still", n, labels)
		}
	}
}
