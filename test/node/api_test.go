//go:build linux

package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	podsPath  = "/api/v1/namespaces/default/pods"
	nodesPath = "/api/v1/nodes"
	jobsPath  = "/apis/batch/v1/namespaces/default/jobs"
)

// api is a Kubernetes API server over plain REST, as somebody who is none of ours would use it.
type api struct {
	base   string
	client *http.Client
}

var errNotFound = errors.New("not found")

func (a *api) do(ctx context.Context, method, path, kind string, body, into any) error {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, reader)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return err
	case answer.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s %s: %w", method, path, errNotFound)
	case answer.StatusCode >= 300:
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	case into == nil:
		return nil
	}
	return json.Unmarshal(text, into)
}

func (a *api) get(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, "", nil, into)
}

func (a *api) create(ctx context.Context, path string, object, into any) error {
	return a.do(ctx, http.MethodPost, path, "application/json", object, into)
}

func (a *api) merge(ctx context.Context, path string, patch any) error {
	return a.do(ctx, http.MethodPatch, path, "application/merge-patch+json", patch, nil)
}

// remove deletes an object; grace below zero is the object's own.
func (a *api) remove(ctx context.Context, path string, grace int64) error {
	options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
	if grace >= 0 {
		options["gracePeriodSeconds"] = grace
	}
	return a.do(ctx, http.MethodDelete, path, "application/json", options, nil)
}

func (a *api) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	var p corev1.Pod
	err := a.get(ctx, podsPath+"/"+name, &p)
	return &p, err
}

// eventually calls check until it returns nil, and fails with its last error when the time is over.
func eventually(t *testing.T, limit time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, last)
		case <-tick.C:
		}
	}
}
