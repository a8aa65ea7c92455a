package nodeagent_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent"
)

// reviewing is a client of the API server, before which every token is an admin's.
func (w *world) reviewing() *kube.Client {
	w.t.Helper()
	target, err := url.Parse(w.kube.Address())
	w.ok(err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	answer := func(status string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, `{"status":`+status+`}`) }
	}
	mux.Handle("POST /apis/authentication.k8s.io/v1/tokenreviews", answer(`{"authenticated":true,"user":{"username":"admin"}}`))
	mux.Handle("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", answer(`{"allowed":true}`))
	srv := httptest.NewServer(mux)
	w.t.Cleanup(srv.Close)
	c, err := kube.Load(kube.Config{URL: srv.URL})
	w.ok(err)
	w.t.Cleanup(c.Close)
	return c
}

func TestTheLogsOfANodeAreFoundByItsStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(func(c *nodeagent.Config, d *nodeagent.Deps) {
		c.KubeletListen, c.Address, d.Kube = "127.0.0.1:0", "127.0.0.1", w.reviewing()
	})
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test's
	defer tr.CloseIdleConnections()
	web := &http.Client{Transport: tr, Timeout: 20 * time.Second}
	get := func(path string) (int, string) {
		s := w.node().Status
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://%s:%d/containerLogs/default/%s", s.Addresses[0].Address, s.DaemonEndpoints.KubeletEndpoint.Port, path), nil)
		w.ok(err)
		r.Header.Set("Authorization", "Bearer x")
		answer, err := web.Do(r)
		w.ok(err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		w.ok(err)
		return answer.StatusCode, string(body)
	}
	// Fails and starts again at once, then once more after a back-off.
	w.create("p", map[string]any{"restartPolicy": "OnFailure", "containers": []map[string]any{
		{"name": "c", "image": "app:1"}, {"name": "ill", "image": "missing/app:1"},
	}}, map[string]string{criruntime.RunSecondsAnnotation + ".c": "200ms", criruntime.ExitCodeAnnotation + ".c": "3", criruntime.LogAnnotation + ".c": "hello"})
	w.eventually("c was restarted", func() string {
		for _, c := range w.pod("p").Status.ContainerStatuses {
			if c.Name == "c" && c.RestartCount > 0 && c.LastTerminationState.Terminated != nil {
				return ""
			}
		}
		text, _ := json.Marshal(w.pod("p").Status)
		return string(text)
	})
	for _, row := range []struct {
		path string
		code int
		text string
	}{
		{"p/c", http.StatusOK, "hello\n"},
		{"p/c?previous=true", http.StatusOK, "hello\n"},
		{"p/c?follow=true&previous=true", http.StatusOK, "hello\n"},
		{"p/ill", http.StatusBadRequest, `container "ill" in pod "p" is waiting to start: `},
		{"p/ill?previous=true", http.StatusBadRequest, `previous terminated container "ill" in pod "p" not found`},
		{"p/none", http.StatusNotFound, `container "none" not found in pod "p"`},
		{"q/c", http.StatusNotFound, `pod "q" does not exist`},
	} {
		if code, text := get(row.path); code != row.code || !strings.Contains(text, row.text) {
			t.Errorf("%s: %d, %q: want %d, %q", row.path, code, text, row.code, row.text)
		}
	}
	w.create("once", nil, map[string]string{criruntime.RunSecondsAnnotation: "100ms", criruntime.LogAnnotation: "done"})
	w.becomes("once", corev1.PodSucceeded)
	if code, text := get("once/c"); code != http.StatusOK || !strings.Contains(text, "done\n") {
		t.Errorf("of a pod that ended: %d, %q", code, text)
	}
}
