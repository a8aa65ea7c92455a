package devcluster_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/internal/devcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// doc is any JSON object.
type doc map[string]any

func (d doc) at(path string) any {
	var v any = map[string]any(d)
	for key := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

func (d doc) text(path string) string {
	s, _ := d.at(path).(string)
	return s
}

// idle is a cluster that only answers: no listener, no nodes, no collection.
func idle(t testing.TB, cfg devcluster.Config) *devcluster.Cluster {
	t.Helper()
	c, err := devcluster.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// call makes one request without a network.
func call(t testing.TB, c *devcluster.Cluster, method, path string, body any) (int, doc) {
	t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		in = strings.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(raw)
	}
	req := httptest.NewRequestWithContext(t.Context(), method, path, in)
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	w := httptest.NewRecorder()
	c.Handler().ServeHTTP(w, req)
	var out doc
	_ = json.Unmarshal(w.Body.Bytes(), &out)
	return w.Code, out
}

// must is call for requests that succeed.
func must(t testing.TB, c *devcluster.Cluster, method, path string, body any) doc {
	t.Helper()
	code, out := call(t, c, method, path, body)
	if code > 299 {
		t.Fatalf("%s %s = %d %v", method, path, code, out)
	}
	return out
}

const (
	configMaps = "/api/v1/namespaces/default/configmaps"
	pods       = "/api/v1/namespaces/default/pods"
)

func configMap(name string) doc {
	return doc{"metadata": doc{"name": name}, "data": doc{"k": "v"}}
}

func pod(name string, annotations doc, spec doc) doc {
	s := doc{"restartPolicy": "Never", "containers": []doc{{"name": "main", "image": "busybox:1"}}}
	maps.Copy(s, spec)
	return doc{"metadata": doc{"name": name, "annotations": annotations}, "spec": s}
}

// line is one line of a watch over the network.
type line struct {
	raw   string
	Type  string `json:"type"`
	Event doc    `json:"object"`
}

// watch opens a watch on a running cluster; the channel is closed at its end.
func watch(t testing.TB, c *devcluster.Cluster, path string) <-chan line {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	out, done := make(chan line, 1000), make(chan struct{})
	go func() {
		defer close(done)
		defer close(out)
		in := bufio.NewReader(resp.Body)
		for {
			raw, err := in.ReadString('\n')
			if err != nil {
				return
			}
			l := line{raw: raw}
			_ = json.Unmarshal([]byte(raw), &l)
			select {
			case out <- l:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
		<-done
		transport.CloseIdleConnections()
	})
	return out
}

const timeout = 20 * time.Second

// next returns the next line of a watch.
func next(t testing.TB, lines <-chan line) line {
	t.Helper()
	select {
	case l, ok := <-lines:
		if !ok {
			t.Fatal("the watch ended, want a line")
		}
		return l
	case <-time.After(timeout):
		t.Fatal("no line in time")
	}
	return line{}
}

// until waits for a pod, seen by a watch, to satisfy a condition.
func until(t testing.TB, lines <-chan line, what string, done func(line) bool) doc {
	t.Helper()
	end := time.After(timeout)
	var last line
	for {
		select {
		case l, ok := <-lines:
			if !ok {
				t.Fatalf("the watch ended, want: %s", what)
			}
			if done(l) {
				return l.Event
			}
			last = l
		case <-end:
			t.Fatalf("not in time: %s; last seen %s", what, last.raw)
		}
	}
}
