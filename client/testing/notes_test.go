package testing_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// notes is a controller that keeps a ConfigMap for each pod, with the pod's colour. Its
// fields are ways to be wrong.
type notes struct {
	ctl *controller.Controller
	api api

	generates bool // the name of a note is not a function of the key
	blind     bool // notes are not watched, which is right as long as no write is unanswered
	forgets   bool // blind, and a write is not passed to Wrote
	swallows  bool // a conflict is no error
	onLog     bool // changes come from the log, which is not wrong
}

func newNotes(env *dptest.Env, wrong notes) *notes {
	n := &wrong
	n.api = api{url: env.API(), http: &http.Client{Transport: &http.Transport{}}}
	o := controller.Options{
		Name: "notes", Log: slog.New(slog.DiscardHandler), Grace: 5 * time.Second,
		Queue: client.QueueConfig{RateLimiter: client.Exponential(5*time.Millisecond, 200*time.Millisecond)},
	}
	if n.onLog {
		o.Deltas = env.Deltas()
	}
	n.ctl = controller.New(env.Index(), env.Queue(), o).For("pods")
	if !n.forgets && !n.blind {
		n.ctl.Owns("configmaps")
	}
	return n
}

func (n *notes) run(ctx context.Context) error {
	defer n.api.http.CloseIdleConnections()
	return n.ctl.Run(ctx, n.reconcile)
}

func (n *notes) reconcile(ctx context.Context, req controller.Request) (controller.Result, error) {
	pod, err := controller.Get[object](ctx, n.ctl, "pods", req.Key())
	if errors.Is(err, client.ErrKeyNotFound) {
		return controller.Result{}, nil // the API server collects what the pod owned
	}
	if err != nil {
		return controller.Result{}, err
	}
	note, err := n.find(ctx, pod)
	if err != nil {
		return controller.Result{}, err
	}
	if note != nil && note.Data["colour"] == pod.Metadata.Annotations["colour"] {
		return controller.Result{}, nil
	}
	written, err := n.api.write(ctx, n.want(pod, note))
	if refused, ok := errors.AsType[*refusedError](err); ok && refused.code == http.StatusConflict && n.swallows {
		return controller.Result{}, nil
	}
	if err != nil || n.forgets {
		return controller.Result{}, err
	}
	return controller.Result{}, n.ctl.Wrote(ctx, "configmaps", written.Metadata.ResourceVersion)
}

// find returns the note of a pod, or nil.
func (n *notes) find(ctx context.Context, pod *object) (*object, error) {
	if n.generates {
		all, err := controller.List[object](ctx, n.ctl, "configmaps", client.ListOptions{Labels: "pod=" + pod.Metadata.Name})
		if err != nil || len(all) == 0 {
			return nil, err
		}
		return all[0], nil
	}
	note, err := controller.Get[object](ctx, n.ctl, "configmaps", "default/"+pod.Metadata.Name)
	if errors.Is(err, client.ErrKeyNotFound) {
		return nil, nil
	}
	return note, err
}

func (n *notes) want(pod, note *object) *object {
	want := &object{
		APIVersion: "v1", Kind: "ConfigMap", Data: map[string]string{"colour": pod.Metadata.Annotations["colour"]},
		Metadata: metadata{
			Namespace: "default", Name: pod.Metadata.Name, Labels: map[string]string{"pod": pod.Metadata.Name},
			Owners: []owner{{APIVersion: "v1", Kind: "Pod", Name: pod.Metadata.Name, UID: pod.Metadata.UID, Controller: true}},
		},
	}
	switch {
	case note != nil:
		want.Metadata.Name, want.Metadata.ResourceVersion = note.Metadata.Name, note.Metadata.ResourceVersion
	case n.generates:
		want.Metadata.Name, want.Metadata.GenerateName = "", pod.Metadata.Name+"-"
	}
	return want
}

type object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metadata          `json:"metadata"`
	Spec       any               `json:"spec,omitempty"`
	Data       map[string]string `json:"data,omitempty"`
}

type metadata struct {
	Namespace       string            `json:"namespace,omitempty"`
	Name            string            `json:"name,omitempty"`
	GenerateName    string            `json:"generateName,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Owners          []owner           `json:"ownerReferences,omitempty"`
}

type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// pod is a pod of a colour.
func pod(name, colour string) *object {
	return &object{
		APIVersion: "v1", Kind: "Pod", Metadata: metadata{Namespace: "default", Name: name, Annotations: map[string]string{"colour": colour}},
		Spec: map[string]any{"containers": []any{map[string]any{"name": "main", "image": "busybox"}}},
	}
}

// api writes ConfigMaps.
type api struct {
	url  string
	http *http.Client
}

// refusedError is an answer that is no success.
type refusedError struct {
	code int
	body []byte
}

func (e *refusedError) Error() string { return fmt.Sprintf("%d: %s", e.code, e.body) }

// write creates a ConfigMap, or replaces the version that it names.
func (a api) write(ctx context.Context, want *object) (*object, error) {
	if want.Metadata.ResourceVersion != "" {
		return a.send(ctx, http.MethodPut, "/"+want.Metadata.Name, want)
	}
	return a.send(ctx, http.MethodPost, "", want)
}

func (a api) send(ctx context.Context, method, path string, want *object) (*object, error) {
	url := a.url + "/api/v1/namespaces/default/configmaps" + path
	body, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return nil, &refusedError{resp.StatusCode, answer}
	}
	written := new(object)
	return written, json.Unmarshal(answer, written)
}
