package nodeagent_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// logReader asks a node for its logs.
type logReader struct {
	*world
	web *http.Client
}

// serveLogs starts an agent that serves logs.
func (w *world) serveLogs(mod func(*nodeagent.Config, *nodeagent.Deps)) logReader {
	w.t.Helper()
	w.start(func(c *nodeagent.Config, d *nodeagent.Deps) {
		c.KubeletListen, c.Address, d.Kube = "127.0.0.1:0", "127.0.0.1", w.reviewing()
		mod(c, d)
	})
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a test's
	w.t.Cleanup(tr.CloseIdleConnections)
	return logReader{w, &http.Client{Transport: tr, Timeout: 60 * time.Second}}
}

// open asks for a log: POD/CONTAINER?QUERY.
func (l logReader) open(path string) *http.Response {
	l.t.Helper()
	s := l.node().Status
	r, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, fmt.Sprintf("https://%s:%d/containerLogs/default/%s", s.Addresses[0].Address, s.DaemonEndpoints.KubeletEndpoint.Port, path), nil)
	l.ok(err)
	r.Header.Set("Authorization", "Bearer x")
	answer, err := l.web.Do(r)
	l.ok(err)
	l.t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// get reads a log to its end.
func (l logReader) get(path string) (int, string) {
	l.t.Helper()
	answer := l.open(path)
	body, err := io.ReadAll(answer.Body)
	l.ok(err)
	return answer.StatusCode, string(body)
}

func TestTheLogsOfANodeAreFoundByItsStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	get := w.serveLogs(func(*nodeagent.Config, *nodeagent.Deps) {}).get
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

// blind is a connection to a runtime that lists containers, and of which a test can switch off what
// it says of each.
type blind struct {
	grpc.ClientConnInterface
	off atomic.Bool
}

func (b *blind) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if b.off.Load() && strings.HasSuffix(method, "/ContainerStatus") {
		return errOff
	}
	return b.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func TestALogIsFollowedWhileTheRuntimeDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	line := &blind{ClientConnInterface: w.runtime.Conn()}
	logs := w.serveLogs(func(c *nodeagent.Config, d *nodeagent.Deps) { c.NoEvents, d.Runtime = true, line })
	uid := w.create("p", nil, runs(forever))
	w.becomes("p", corev1.PodRunning)
	followed := bufio.NewScanner(logs.open("p/c?follow=true").Body)
	read := func(text string) {
		t.Helper()
		if !followed.Scan() || followed.Text() != text {
			t.Fatalf("%q, %v: want %q", followed.Text(), followed.Err(), text)
		}
	}
	read("started c")
	c := w.statuses(uid)[0]
	f, err := os.OpenFile(c.GetLogPath(), os.O_APPEND|os.O_WRONLY, 0)
	w.ok(err)
	defer f.Close()

	line.off.Store(true)
	_, err = w.cri().StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.GetId()})
	w.ok(err)
	w.eventually("a reader learns that the runtime does not answer", func() string {
		if code, text := logs.get("p/c"); code != http.StatusInternalServerError || !strings.Contains(text, "the container runtime does not answer") {
			return fmt.Sprintf("%d, %q", code, text)
		}
		return ""
	})
	read("exit code 137")
	for _, text := range []string{"one", "two", "three"} { // each in a look of its own
		_, err := f.WriteString(time.Now().UTC().Format(time.RFC3339Nano) + " stdout F " + text + "\n")
		w.ok(err)
		read(text)
	}
	line.off.Store(false)
	if followed.Scan() || followed.Err() != nil {
		t.Errorf("after the container's end: %q, %v", followed.Text(), followed.Err())
	}
}

// elsewhere is a connection to a runtime that says of each container that its log is one file.
type elsewhere struct {
	grpc.ClientConnInterface
	path string
}

func (e elsewhere) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := e.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if r, ok := reply.(*runtimeapi.ContainerStatusResponse); ok && err == nil {
		r.Status.LogPath = e.path
	}
	return err
}

func TestALogOutsideOfTheLogDirectoryIsNotServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := w.root + "/secret"
	w.ok(os.WriteFile(path, []byte(time.Now().UTC().Format(time.RFC3339Nano)+" stdout F secret\n"), 0o600))
	logs := w.serveLogs(func(c *nodeagent.Config, d *nodeagent.Deps) {
		c.NoEvents, d.Runtime = true, elsewhere{w.runtime.Conn(), path}
	})
	w.create("p", nil, runs(forever))
	w.becomes("p", corev1.PodRunning)
	if code, text := logs.get("p/c"); code != http.StatusBadRequest || !strings.Contains(text, "outside of the log directory") {
		t.Errorf("%d, %q", code, text)
	}
}
