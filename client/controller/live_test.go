package controller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// liveList is what an API server answers to a list. Its own resource version is that of its store,
// which the index of a quiet collection does not reach for a minute.
type liveList struct {
	Kind     string   `json:"kind"`
	Metadata liveMeta `json:"metadata"`
	Items    []any    `json:"items"`
}

type liveMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue,omitempty"`
}

// next receives what a reconcile says.
func next[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(time.Minute): // whatever else the machine does
		t.Fatal("no reconcile says anything")
	}
	return v
}

func liveItem(name, uid, version string, ends bool) any {
	m := map[string]any{"namespace": "ns", "name": name, "uid": uid, "resourceVersion": version}
	if ends {
		m["deletionTimestamp"] = time.Now()
	}
	return map[string]any{"metadata": m}
}

// live answers with one list after the other, and notes the paths.
type live struct {
	mu    sync.Mutex
	lists [][]any
	paths []string
}

func (l *live) get(_ context.Context, cluster, path string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paths = append(l.paths, cluster+path)
	if len(l.lists) == 0 {
		return nil, errors.New("there is no further list")
	}
	items := l.lists[0]
	l.lists = l.lists[1:]
	return json.Marshal(liveList{"PartialObjectMetadataList", liveMeta{ResourceVersion: "100000"}, items})
}

func (l *live) asked() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.paths, " ")
}

func (l *live) options(o *controller.Options) { o.Live = l.get }

func outOfTime(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && e.Code == codes.DeadlineExceeded
}

// Nothing but the pod is in motion: no index reaches the revision that the API server's store has.
func TestReadsAfterAnEvictionOrABindingAskForTheObjectsOwnVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		found func(uid string) []any
		then  func(r *rig)
		want  string
	}{
		{"changed", func(uid string) []any { return []any{liveItem("note", uid, "1000", false)} }, func(r *rig) {
			r.mu.Lock()
			r.rv = 999
			r.mu.Unlock()
			r.put("configmaps", "ns/note", "new")
		}, "new"},
		{"gone", func(string) []any { return []any{} }, func(r *rig) { r.delete("configmaps", "ns/note") }, "none"},
		{"made again", func(string) []any { return []any{liveItem("note", "other", "1000", false)} }, func(r *rig) { r.delete("configmaps", "ns/note") }, "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "pods", "configmaps")
			r.put("configmaps", "ns/note", "old")
			r.put("pods", "ns/p", "1")
			l := &live{}
			results := make(chan string, 10)
			wrote := false
			r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
				note, err := p.Find(ctx, "configmaps", "ns/note")
				if err == nil && !wrote {
					wrote = true
					l.mu.Lock()
					l.lists = append(l.lists, c.found(note.UID))
					l.mu.Unlock()
					if err = p.WroteUnversioned(ctx, "configmaps", note.Key, note.UID); err == nil {
						note, err = p.Find(ctx, "configmaps", "ns/note")
					}
				}
				switch {
				case errors.Is(err, client.ErrRevisionNotReached), outOfTime(err): // by the server's clock, or ours
					results <- "behind"
				case err != nil:
					results <- err.Error()
				case note == nil:
					results <- "none"
				default:
					results <- valueOf(note.Payload)
				}
				return controller.Result{}, err
			}, l.options)
			if got := next(t, results); got != "behind" {
				t.Errorf("a read before the index has it: %s", got)
			}
			c.then(r)
			got := next(t, results)
			for got == "behind" {
				got = next(t, results)
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("a read once the index has it: %s, want %s", got, c.want)
			}
			if got, want := l.asked(), "dev/api/v1/namespaces/ns/configmaps?fieldSelector=metadata.name%3Dnote"; got != want {
				t.Errorf("asked for %s, want %s", got, want)
			}
		})
	}
}

// What is not there when the index is read was seen by the API server alone: its deletion counts
// too.
func TestReadsAfterADeletionOfManyWaitForThoseThatWereDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods", "configmaps")
	for _, name := range []string{"a", "b", "c"} {
		r.put("configmaps", "ns/"+name, "old")
	}
	r.put("pods", "ns/p", "1")
	uid := func(name string) string { return r.uids["configmaps ns/"+name] }
	l := &live{lists: [][]any{
		{liveItem("a", uid("a"), "2", false), liveItem("b", uid("b"), "3", false), liveItem("c", uid("c"), "4", true), liveItem("late", "uid-late", "5", false)},
		{liveItem("b", uid("b"), "3", false), liveItem("c", uid("c"), "4", true)},
	}}
	results := make(chan string, 10)
	sent := false
	r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		if !sent {
			sent = true
			of := controller.Selection{Namespaces: []string{"ns"}, Labels: "app in (x,y)"}
			if err := p.DeleteCollection(ctx, "configmaps", of, func(context.Context) error {
				r.put("configmaps", "ns/late", "old") // the index hears of it late
				return nil
			}); err != nil {
				results <- err.Error()
				return controller.Result{}, nil
			}
		}
		notes, err := controller.List[object](ctx, p.Controller, "configmaps", client.ListOptions{})
		names := []string{"read"}
		for _, note := range notes {
			names = append(names, note.Metadata.Name)
		}
		if errors.Is(err, client.ErrRevisionNotReached) {
			names = []string{"behind"}
		}
		results <- strings.Join(names, " ")
		return controller.Result{}, err
	}, l.options)
	if got := next(t, results); got != "behind" {
		t.Errorf("a read before the index has seen the deletions: %s", got)
	}
	r.delete("configmaps", "ns/a")
	r.delete("configmaps", "ns/late")
	got := next(t, results)
	for got == "behind" {
		got = next(t, results)
	}
	if got != "read b c" {
		t.Errorf("a read once the index has seen them: %q", got)
	}
	const path = "dev/api/v1/namespaces/ns/configmaps?labelSelector=app+in+%28x%2Cy%29"
	if got := l.asked(); got != path+" "+path {
		t.Errorf("asked for %s", got)
	}
}

// An index that has not come to the creation does not show the object either, and may show it next.
func TestReadsAfterADeletionOfManyWaitUntilTheIndexHasComeToTheirCreations(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods", "configmaps")
	r.put("configmaps", "ns/other", "old")
	r.put("pods", "ns/p", "1")
	l := &live{lists: [][]any{{liveItem("late", "uid-late", "1000", false)}, {}}}
	results := make(chan string, 10)
	sent := false
	r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		if !sent {
			sent = true
			if err := p.DeleteCollection(ctx, "configmaps", controller.Selection{}, func(context.Context) error { return nil }); err != nil {
				results <- err.Error()
				return controller.Result{}, nil
			}
		}
		notes, err := p.Objects(ctx, "configmaps", client.ListOptions{})
		if errors.Is(err, client.ErrRevisionNotReached) {
			results <- "behind"
		} else {
			results <- fmt.Sprintf("%d objects, %v", len(notes), err)
		}
		return controller.Result{}, err
	}, l.options)
	if got := next(t, results); got != "behind" {
		t.Errorf("a read before the index has come to the creation: %s", got)
	}
	r.mu.Lock()
	r.rv = 1000
	r.mu.Unlock()
	r.put("configmaps", "ns/other", "new")
	got := next(t, results)
	for got == "behind" {
		got = next(t, results)
	}
	if got != "1 objects, <nil>" {
		t.Errorf("a read once the index has come to it: %s", got)
	}
}

func TestUnversionedWritesThatCannotBePromisedAreErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods")
	r.put("pods", "ns/p", "1")
	answers := map[string]string{}
	faults := make(chan string, 20)
	type call struct {
		answer, key, uid, want string
		of                     *controller.Selection
	}
	none, fields := &controller.Selection{}, &controller.Selection{Fields: []string{"spec"}}
	calls := []call{
		{"", "ns/p", "", "the UID is empty", nil},
		{"", "a/b/c", "1", "a/b/c", nil},
		{"<html>", "ns/p", "1", "invalid character", nil},
		{`{"kind":"Status"}`, "ns/p", "1", `"Status" that is not a whole list`, nil},
		{`{"kind":"PodList","metadata":{"continue":"x"}}`, "ns/p", "1", "not a whole list", nil},
		{"", "", "", "nothing was sent", fields},
		{"<html>", "", "", "nothing was sent", none},
	}
	p := r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		for _, c := range calls {
			answers["is"] = c.answer
			if c.of == nil {
				faults <- fmt.Sprint(p.WroteUnversioned(ctx, "pods", c.key, c.uid))
				continue
			}
			faults <- fmt.Sprint(p.DeleteCollection(ctx, "pods", *c.of, func(context.Context) error {
				t.Errorf("%+v is sent", c.of)
				return nil
			}))
		}
		answers["is"] = `{"kind":"PodList"}`
		refused := errors.New("refused")
		if err := p.DeleteCollection(ctx, "pods", *none, func(context.Context) error { return refused }); !errors.Is(err, refused) {
			t.Errorf("the error of the call is %v", err)
		}
		close(faults)
		return controller.Result{}, nil
	}, func(o *controller.Options) {
		o.Live = func(context.Context, string, string) ([]byte, error) { return []byte(answers["is"]), nil }
	})
	for _, c := range calls {
		if got := next(t, faults); !strings.Contains(got, c.want) {
			t.Errorf("%+v: %s", c, got)
		}
	}
	next(t, faults)
	if err := p.WroteUnversioned(t.Context(), "pods", "ns/p", "1"); err == nil || !strings.Contains(err.Error(), "not that of a reconcile") {
		t.Errorf("outside of a reconcile: %v", err)
	}
	without := make(chan error, 1)
	r.replica("b", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		without <- p.WroteUnversioned(ctx, "pods", "ns/p", "1")
		return controller.Result{}, nil
	}, func(o *controller.Options) { o.Name = "other" })
	if err := next(t, without); err == nil || !strings.Contains(err.Error(), "Options.Live is not set") {
		t.Errorf("without Options.Live: %v", err)
	}
}

// The API server is one, and the index has a replica that lags.
func TestEvictionsBindingsAndDeletionsOfManyAreReadBack(t *testing.T) {
	t.Parallel()
	cfg := dptest.Config{Resources: []string{"pods", "configmaps"}, Rates: dptest.Rates{
		StaleReads: 0.5, FailedReads: -1, BrokenStreams: -1, DuplicateKeys: -1, LateKeys: -1, LostLeases: -1,
		KilledWorkers: -1, Conflicts: -1, LostAnswers: -1, RefusedCalls: -1,
	}}
	dptest.Run(t, cfg, 3, func(t *testing.T, env *dptest.Env) {
		api := func(ctx context.Context, method, path, body string) ([]byte, error) {
			req, err := http.NewRequestWithContext(ctx, method, env.API()+path, strings.NewReader(body))
			if err != nil {
				return nil, err
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return nil, err
			}
			defer resp.Body.Close()
			answer, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode >= 300 {
				err = fmt.Errorf("%s %s: %s", method, path, answer)
			}
			return answer, err
		}
		defer http.DefaultClient.CloseIdleConnections()
		const pods = "/api/v1/namespaces/default/pods"
		pod := func(name string) string {
			return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `","labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
		}
		ctl := controller.New(env.Index(), env.Queue(), controller.Options{
			Name: "live", Log: slog.New(slog.DiscardHandler),
			Live: func(ctx context.Context, _, path string) ([]byte, error) { return api(ctx, http.MethodGet, path, "") },
		}).For("configmaps")
		step := func(ctx context.Context, name string) error {
			get := func() (*client.Object, error) { return ctl.Find(ctx, "pods", "default/"+name) }
			created, err := api(ctx, http.MethodPost, pods, pod(name))
			if err != nil {
				return err
			}
			var o object
			if err := json.Unmarshal(created, &o); err != nil {
				return err
			}
			if _, err := api(ctx, http.MethodPost, pods+"/"+name+"/binding", `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"`+name+`"},"target":{"kind":"Node","name":"n1"}}`); err != nil {
				return err
			}
			if err := ctl.WroteUnversioned(ctx, "pods", "default/"+name, o.Metadata.UID); err != nil {
				return err
			}
			if bound, err := get(); err != nil || bound == nil || !strings.Contains(string(bound.Payload), `"nodeName":"n1"`) {
				return fmt.Errorf("the bound pod is read as %v: %w", bound, err)
			}
			if _, err := api(ctx, http.MethodPost, pods+"/"+name+"/eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+name+`"},"deleteOptions":{"gracePeriodSeconds":0}}`); err != nil {
				return err
			}
			if err := ctl.WroteUnversioned(ctx, "pods", "default/"+name, o.Metadata.UID); err != nil {
				return err
			}
			if evicted, err := get(); err != nil || evicted != nil {
				return fmt.Errorf("the evicted pod is read as %v: %w", evicted, err)
			}
			if _, err := api(ctx, http.MethodPost, pods, pod(name)); err != nil {
				return err
			}
			if err := ctl.DeleteCollection(ctx, "pods", controller.Selection{Namespaces: []string{"default"}, Labels: "app=x"}, func(ctx context.Context) error {
				_, err := api(ctx, http.MethodDelete, pods+"?labelSelector=app%3Dx&gracePeriodSeconds=0", "")
				return err
			}); err != nil {
				return err
			}
			if left, err := ctl.Objects(ctx, "pods", client.ListOptions{}); err != nil || len(left) > 0 {
				return fmt.Errorf("%d pods are left: %w", len(left), err)
			}
			return nil
		}
		done := make(chan error, 1)
		env.Go(func(ctx context.Context) error {
			return ctl.Run(ctx, func(ctx context.Context, req controller.Request) (controller.Result, error) {
				for i := range 5 {
					if err := step(ctx, fmt.Sprintf("p%d", i)); err != nil {
						done <- err
						return controller.Result{}, client.Terminal(err)
					}
				}
				done <- nil
				return controller.Result{}, nil
			})
		})
		env.Apply(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"go"}}`)
		if err := next(t, done); err != nil {
			t.Error(err)
		}
	})
}
