package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestMain(m *testing.M) {
	// client-go watches the files of client certificates until its transport is collected, which no
	// test waits for.
	const rotation, wait = "k8s.io/client-go/transport.(*dynamicClientCert).", "k8s.io/apimachinery/pkg/util/wait."
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction(rotation+"run"), goleak.IgnoreAnyFunction(rotation+"runWorker"),
		goleak.IgnoreAnyFunction(wait+"PollImmediateUntil"), goleak.IgnoreAnyFunction(wait+"PollImmediateUntilWithContext.poller.func1.1"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*delayingType[...]).waitingLoop"),
	)
}

func client(t testing.TB, url string, change func(*kube.Config)) *kube.Client {
	t.Helper()
	cfg := kube.Config{URL: url}
	if change != nil {
		change(&cfg)
	}
	c, err := kube.Load(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func cluster(t testing.TB) string {
	t.Helper()
	c, err := devcluster.New(devcluster.Config{Listen: "127.0.0.1:0", NoBinder: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	<-c.Ready()
	return c.URL()
}

func pod(name string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`, name)
}

func field(b []byte, path string) string { return gjson.GetBytes(b, path).String() }

func TestWritesCarryPreconditionsAndAnswersAreTheServersBytes(t *testing.T) {
	t.Parallel()
	c := client(t, cluster(t), nil)
	ctx := t.Context()
	ref := kube.Ref{Resource: podResource, Namespace: "default"}
	created, err := c.Create(ctx, ref, pod("a"), kube.WriteOptions{FieldManager: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(ctx, ref, pod("a"), kube.WriteOptions{}); !kube.IsAlreadyExists(err) || kube.IsConflict(err) {
		t.Errorf("create of a name that exists = %v, want AlreadyExists only", err)
	}
	ref.Name = "a"
	got, err := c.Get(ctx, ref)
	if err != nil || field(got, "metadata.uid") != field(created, "metadata.uid") {
		t.Errorf("Get() = %s, %v", got, err)
	}
	patched, err := c.Patch(ctx, ref, kube.MergePatch, []byte(`{"metadata":{"labels":{"b":"1"}}}`), kube.WriteOptions{})
	if err != nil || field(patched, "metadata.labels.b") != "1" {
		t.Errorf("merge patch = %s, %v", patched, err)
	}
	if _, err := c.Update(ctx, ref, created, kube.WriteOptions{}); !kube.IsConflict(err) || kube.IsAlreadyExists(err) {
		t.Errorf("update from an old version = %v, want Conflict", err)
	}
	if b, err := c.UpdateStatus(ctx, ref, []byte(strings.Replace(string(patched), `"status":{`, `"status":{"reason":"Why",`, 1)), kube.WriteOptions{}); err != nil {
		t.Errorf("UpdateStatus() = %s, %v", b, err)
	}
	if _, err := c.Delete(ctx, ref, kube.DeleteOptions{UID: "another"}); !kube.IsConflict(err) {
		t.Errorf("delete of another uid = %v, want Conflict", err)
	}
	if _, err := c.Delete(ctx, ref, kube.DeleteOptions{UID: field(created, "metadata.uid"), Grace: new(int64(0)), Propagation: kube.Background}); err != nil {
		t.Error(err)
	}
	_, err = c.Get(ctx, ref)
	if e, ok := errors.AsType[*kube.StatusError](err); !ok || !kube.IsNotFound(err) || e.Code != 404 || e.Verb != "GET" || !strings.HasSuffix(e.Path, "/pods/a") {
		t.Errorf("Get() of what is deleted = %v", err)
	}
	for _, bad := range []kube.Ref{{Resource: podResource, Namespace: "default"}, {Resource: podResource, Name: "a"}, {Name: "a"}} {
		if _, err := c.Get(ctx, bad); err == nil || isStatus(err) {
			t.Errorf("Get(%+v) = %v, want it refused here", bad, err)
		}
	}
}

func isStatus(err error) bool { _, ok := errors.AsType[*kube.StatusError](err); return ok }

func TestListsComeInPagesAndWatchesFollowThem(t *testing.T) {
	t.Parallel()
	c := client(t, cluster(t), nil)
	ctx := t.Context()
	ref := kube.Ref{Resource: podResource, Namespace: "default"}
	for i := range 5 {
		if _, err := c.Create(ctx, ref, pod(fmt.Sprintf("p%d", i)), kube.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := c.List(ctx, podResource, kube.ListOptions{Limit: 3})
	if err != nil || len(first.Items) != 3 || first.Continue == "" {
		t.Fatalf("first page: %d items, %q, %v", len(first.Items), first.Continue, err)
	}
	second, err := c.List(ctx, podResource, kube.ListOptions{Limit: 3, Continue: first.Continue})
	if err != nil || len(second.Items) != 2 || second.Continue != "" {
		t.Fatalf("second page: %d items, %q, %v", len(second.Items), second.Continue, err)
	}
	none, err := c.List(ctx, podResource, kube.ListOptions{Scope: kube.Scope{Namespace: "default", LabelSelector: "app=y"}})
	if err != nil || len(none.Items) != 0 {
		t.Errorf("selector: %d items, %v", len(none.Items), err)
	}
	w, err := c.Watch(ctx, podResource, kube.WatchOptions{RV: first.RV, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ref.Name = "p0"
	if _, err := c.Delete(ctx, ref, kube.DeleteOptions{Grace: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == kube.EventDeleted {
			if field(ev.Object, "metadata.name") != "p0" {
				t.Errorf("deleted %s", ev.Object)
			}
			break
		}
	}
	if _, err := c.List(ctx, podResource, kube.ListOptions{RV: "999999", Match: kube.NotOlderThan}); !kube.IsTooLargeRV(err) || kube.IsExpired(err) {
		t.Errorf("list from the future = %v, want too large", err)
	}
	res, err := c.Resolve(ctx, delta.Collection{Cluster: "dev", Group: "batch", Version: "v1", Resource: "jobs"})
	if err != nil || res.Kind != "Job" || !res.Namespaced || !res.Watchable() {
		t.Errorf("Resolve() = %+v, %v", res, err)
	}
	for _, col := range []delta.Collection{{Version: "v1", Resource: "moons"}, {Group: "none.example", Version: "v1", Resource: "moons"}} {
		if _, err := c.Resolve(ctx, col); !errors.Is(err, kube.ErrNotServed) {
			t.Errorf("Resolve(%v) = %v, want ErrNotServed", col, err)
		}
	}
	all, err := c.DiscoverAll(ctx)
	if err != nil || len(all) < 5 {
		t.Errorf("DiscoverAll() = %d resources, %v", len(all), err)
	}
}

func serve(t testing.TB, h http.HandlerFunc) *kube.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return client(t, s.URL, nil)
}

func TestErrorsAreClassified(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, body string
		code       int
		is         func(error) bool
		not        []func(error) bool
	}{
		{"expired", `{"kind":"Status","code":410,"reason":"Expired"}`, 410, kube.IsExpired, []func(error) bool{kube.IsTooLargeRV, kube.IsNotFound}},
		{"gone without a Status", `bye`, 410, kube.IsExpired, []func(error) bool{kube.IsTooManyRequests}},
		{"429", `{"kind":"Status","code":429,"reason":"TooManyRequests","details":{"retryAfterSeconds":7}}`, 429, kube.IsTooManyRequests, []func(error) bool{kube.IsExpired}},
		{"403", `{"kind":"Status","code":403,"reason":"Forbidden"}`, 403, kube.IsForbidden, []func(error) bool{kube.IsUnauthorized}},
		{"401", `Unauthorized`, 401, kube.IsUnauthorized, []func(error) bool{kube.IsForbidden}},
		{"500", `{"kind":"Status","code":500,"reason":"InternalError"}`, 500, kube.IsInternal, []func(error) bool{kube.IsTimeout}},
		{"conflict", `{"kind":"Status","code":409,"reason":"Conflict"}`, 409, kube.IsConflict, []func(error) bool{kube.IsAlreadyExists}},
		{"timeout", `{"kind":"Status","code":504,"reason":"Timeout","message":"etcd"}`, 504, kube.IsTimeout, []func(error) bool{kube.IsTooLargeRV}},
		{"invalid", `{"kind":"Status","code":422,"reason":"Invalid"}`, 422, kube.IsInvalid, []func(error) bool{kube.IsConflict}},
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(row.code)
			_, _ = io.WriteString(w, row.body)
		})
		_, err := c.List(t.Context(), podResource, kube.ListOptions{})
		if !row.is(err) {
			t.Errorf("%s: %v is not recognised", row.name, err)
		}
		for i, not := range row.not {
			if not(err) {
				t.Errorf("%s: %v is also taken for %d", row.name, err, i)
			}
		}
		if row.code == 429 && kube.RetryAfter(err) != 7*time.Second {
			t.Errorf("retry after %v", kube.RetryAfter(err))
		}
	}
	c := client(t, "http://127.0.0.1:1", nil)
	if _, err := c.List(t.Context(), podResource, kube.ListOptions{}); !kube.IsConnectionRefused(err) {
		t.Errorf("nobody there = %v, want refused", err)
	}
}

func TestAnswersThatAreNoListsAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		``, `nope`, `[]`, `{"kind":"PodList"}`, `{"kind":"PodList","metadata":{},"items":[]}`, `{"kind":"Table","metadata":{"resourceVersion":"1"},"items":[]}`,
		`{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{]}`, `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":{}}`,
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		if p, err := c.List(t.Context(), podResource, kube.ListOptions{}); err == nil {
			t.Errorf("%s became %+v", body, p)
		}
	}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":null}`)
	})
	if p, err := c.List(t.Context(), podResource, kube.ListOptions{}); err != nil || p.RV != "1" || len(p.Items) != 0 {
		t.Errorf("null items = %+v, %v", p, err)
	}
}

func TestWatchReportsErrorsBadEventsAndTheKindOfItsEnd(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 300_000)
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"type":"ADDED","object":{"metadata":{"name":"a"}}}`+"\n\nrubbish\n{\"type\":\"ADDED\"}\n"+
			`{"type":"ADDED","object":{"x":"`+large+`"}}`+"\r\n"+`{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"old"}}`+"\n")
	})
	w, err := c.Watch(t.Context(), podResource, kube.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if ev, err := w.Next(); err != nil || ev.Type != kube.EventAdded || field(ev.Object, "metadata.name") != "a" {
		t.Errorf("first = %+v, %v", ev, err)
	}
	for range 2 {
		if _, err := w.Next(); !errors.Is(err, kube.ErrBadEvent) {
			t.Errorf("bad event = %v", err)
		}
	}
	if ev, err := w.Next(); err != nil || len(ev.Object) < 300_000 {
		t.Errorf("large = %d bytes, %v", len(ev.Object), err)
	}
	if _, err := w.Next(); !kube.IsExpired(err) {
		t.Errorf("error event = %v", err)
	}
	if _, err := w.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("end = %v, want EOF", err)
	}
	cut := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"type":"ADDED","obj`) })
	w, err = cut.Watch(t.Context(), podResource, kube.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an event cut short = %v", err)
	}
}

func TestLoadNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "nowhere")
	empty := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(empty, devcluster.Kubeconfig("http://127.0.0.1:7448"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		cfg  kube.Config
		want string
	}{
		{kube.Config{Kubeconfig: missing}, "nowhere"},
		{kube.Config{Kubeconfig: empty, Context: "moon"}, "moon"},
		{kube.Config{URL: "ftp://x"}, "ftp://x"},
		{kube.Config{URL: "http://x", QPS: -1}, "qps"},
	} {
		if _, err := kube.Load(row.cfg); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("Load(%+v) = %v, want it to name %q", row.cfg, err, row.want)
		}
	}
	for _, address := range []string{"ftp://u:hunter2@x", "http://u:hunter2%zz@x", "http://u:hunter2@x:port"} {
		if _, err := kube.Load(kube.Config{URL: address}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Load() = %v, want an error without the password", err)
		}
	}
	if c, err := kube.Load(kube.Config{URL: "http://u:hunter2@127.0.0.1:7448"}); err != nil || strings.Contains(c.Address(), "hunter2") {
		t.Errorf("Address() = %v, %v; want it without the password", c.Address(), err)
	}
	c, err := kube.Load(kube.Config{Kubeconfig: empty})
	if err != nil || !strings.Contains(c.Address(), "127.0.0.1:7448") {
		t.Errorf("Load() = %v, %v", c, err)
	}
}

func TestTheClientLimitsItsRequests(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.UserAgent() != "tester" {
			t.Errorf("user agent %q", r.UserAgent())
		}
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(s.Close)
	c := client(t, s.URL, func(cfg *kube.Config) { cfg.QPS, cfg.Burst, cfg.UserAgent = 20, 1, "tester" })
	began := time.Now()
	for range 5 {
		if _, err := c.Get(t.Context(), kube.Ref{Resource: podResource, Namespace: "d", Name: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(began); d < 190*time.Millisecond {
		t.Errorf("five requests at 20/s with burst 1 took %v", d)
	}
}

func TestRecorderRaisesTheCountOfRepeats(t *testing.T) {
	t.Parallel()
	c := client(t, cluster(t), nil)
	r := kube.NewRecorder(c, "tester", "host", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	about := kube.Involved{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "a", UID: "u"}
	for range 3 {
		r.Event(about, kube.Normal, "Started", "it runs")
	}
	r.Event(about, kube.Warning, "Failed", "it does not")
	cancel() // what waits is still written
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	page, err := c.List(t.Context(), kube.Resource{Version: "v1", Name: "events", Namespaced: true}, kube.ListOptions{Scope: kube.Scope{Namespace: "default"}})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range page.Items {
		got[field(e, "reason")] = field(e, "count") + " " + field(e, "type") + " " + field(e, "involvedObject.uid") + " " + field(e, "source.component")
	}
	if got["Started"] != "3 Normal u tester" || got["Failed"] != "1 Warning u tester" || r.Dropped() != 0 {
		b, _ := json.Marshal(got)
		t.Errorf("events %s, %d dropped", b, r.Dropped())
	}
}

func TestWhatDiscoveryReturnsBelongsToTheCaller(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis" {
			_, _ = io.WriteString(w, `{"groups":[]}`)
			return
		}
		_, _ = io.WriteString(w, `{"resources":[{"name":"pods","kind":"Pod"},{"name":"nodes","kind":"Node"}]}`)
	})
	all, err := c.DiscoverAll(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("DiscoverAll() = %v, %v", all, err)
	}
	all[0].Kind = "Moon"
	if res, err := c.Resolve(t.Context(), delta.Collection{Version: "v1", Resource: "pods"}); err != nil || res.Kind != "Pod" {
		t.Errorf("Resolve() = %+v, %v after a caller changed what it got", res, err)
	}
}

// Something in front of the API server may answer with JSON of its own; nothing was learnt of what
// is served then, least of all that it is gone.
func TestDiscoveryThatIsAnsweredByWhoDoesNotKnowSaysNothing(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{`{}`, `{"kind":"Status","apiVersion":"v1","status":"Success"}`, `{"error":"maintenance"}`} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
		all, err := c.DiscoverAll(t.Context())
		if unknown := kube.Undiscovered(err); len(all) > 0 || !errors.Is(err, kube.ErrBadAnswer) || !unknown("") || !unknown("a.io") {
			t.Errorf("DiscoverAll() answered %s = %v, %v, want every group unknown", answer, all, err)
		}
	}
}

func TestAWatchThatTheServerForgetsToCloseEnds(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	w, err := c.Watch(t.Context(), podResource, kube.WatchOptions{RV: "1", Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := w.Next()
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) || t.Context().Err() != nil {
			t.Errorf("Next() = %v, want that time ran out", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the watch never ends, and with it the reflector's belief to be current")
		w.Close()
		<-ended
	}
}

func TestAWriteAsksForTheMetadataOfItsAnswerAloneWhereThatIsWanted(t *testing.T) {
	t.Parallel()
	var asked []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.Header.Get("Accept"))
		_, _ = w.Write([]byte(`{}`))
	})
	const metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
	ref := kube.Pods.Ref("default", "a")
	for _, o := range []kube.WriteOptions{{}, {MetadataOnly: true}} {
		for _, err := range []error{
			second(c.Create(t.Context(), ref, []byte(`{}`), o)), second(c.Update(t.Context(), ref, []byte(`{}`), o)),
			second(c.Patch(t.Context(), ref, kube.MergePatch, []byte(`{}`), o)),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	want := []string{
		"POST application/json", "PUT application/json", "PATCH application/json", "POST " + metadata, "PUT " + metadata, "PATCH " + metadata,
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

func second(_ []byte, err error) error { return err }
