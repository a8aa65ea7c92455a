package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Check proves with real objects that the cluster in dir does what tests rely on, printing a line
// for each thing it saw. It works in a namespace of its own, which it deletes, seeing it go. It
// stops at the first thing that is not as it should be.
func Check(ctx context.Context, dir string, out io.Writer) error {
	api, err := openClient(Kubeconfig(dir))
	if err != nil {
		return err
	}
	k := &checker{api: api, out: out, namespace: "kube-check-" + strconv.FormatInt(time.Now().UnixMilli(), 36)}
	namespace := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": k.namespace}}
	if err := api.do(ctx, http.MethodPost, "/api/v1/namespaces", namespace, nil); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	for _, step := range []struct {
		what string
		run  func(context.Context) error
	}{
		{"the namespace has a default service account", k.serviceAccount},
		{"a pod is bound, runs 2s and succeeds", k.succeeds},
		{"a pod with exit code 3 fails and says so", k.fails},
		{"a pod that may be restarted is, after it failed", k.restarts},
		{"a pod with an unreadable annotation fails and says so", k.rejects},
		{"a pod that runs forever still runs, and stops when deleted", k.forever},
		{"a deleted pod stays until its finalizer is gone", k.finalizer},
		{"a Job's pod is collected after the Job is deleted", k.collected},
		{"the namespace empties and goes when deleted", k.namespaceGoes},
	} {
		began := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not seen within a minute"))
		err := step.run(limited)
		cancel()
		if err != nil {
			return fmt.Errorf("check: %s: %w", step.what, err)
		}
		fmt.Fprintf(out, "ok  %4.1fs  %s\n", time.Since(began).Seconds(), step.what)
	}
	return nil
}

// checker runs the steps of Check in one namespace.
type checker struct {
	api       *client
	out       io.Writer
	namespace string
}

// pod is what the checks read of a pod.
type pod struct {
	Metadata struct{ UID, DeletionTimestamp string }
	Spec     struct{ NodeName string }
	Status   struct {
		Phase, Reason     string
		ContainerStatuses []struct {
			RestartCount int
			State        struct {
				Running    *struct{ StartedAt time.Time }
				Terminated *struct {
					ExitCode              int
					Reason                string
					StartedAt, FinishedAt time.Time
				}
			}
		}
	}
}

func (k *checker) path(resource, name string) string {
	prefix := "/api/v1/namespaces/"
	if resource == "jobs" {
		prefix = "/apis/batch/v1/namespaces/"
	}
	return strings.TrimSuffix(prefix+k.namespace+"/"+resource+"/"+name, "/")
}

// create makes a pod of one container; extra fields of metadata replace the default ones.
func (k *checker) create(ctx context.Context, name, restart string, metadata object) (pod, error) {
	metadata["name"] = name
	var p pod
	err := k.api.do(ctx, http.MethodPost, k.path("pods", ""), object{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata":   metadata,
		"spec": object{
			"restartPolicy": restart,
			"containers":    []object{{"name": "main", "image": "none"}},
		},
	}, &p)
	return p, err
}

// until waits for a pod to be as seen says; the error names what it last was.
func (k *checker) until(ctx context.Context, name string, seen func(pod) bool) (pod, error) {
	var last pod
	err := poll(ctx, 20*time.Millisecond, func(ctx context.Context) (bool, error) {
		var p pod
		if err := k.api.do(ctx, http.MethodGet, k.path("pods", name), nil, &p); err != nil {
			return false, err
		}
		last = p
		return seen(p), nil
	})
	if err != nil {
		return last, fmt.Errorf("pod %s on node %q in phase %s: %w", name, last.Spec.NodeName, last.Status.Phase, err)
	}
	return last, nil
}

// gone waits until there is no such pod.
func (k *checker) gone(ctx context.Context, name string) error {
	return poll(ctx, 20*time.Millisecond, func(ctx context.Context) (bool, error) {
		err := k.api.do(ctx, http.MethodGet, k.path("pods", name), nil, nil)
		if missing(err) {
			return true, nil
		}
		return false, err
	})
}

func inPhase(phase string) func(pod) bool {
	return func(p pod) bool { return p.Status.Phase == phase }
}

func annotations(keysAndValues ...string) object {
	m := object{}
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		m["deltaplane.io/"+keysAndValues[i]] = keysAndValues[i+1]
	}
	return object{"annotations": m}
}

func (k *checker) serviceAccount(ctx context.Context) error {
	return poll(ctx, 20*time.Millisecond, func(ctx context.Context) (bool, error) {
		err := k.api.do(ctx, http.MethodGet, k.path("serviceaccounts", "default"), nil, nil)
		if missing(err) {
			return false, nil
		}
		return err == nil, err
	})
}

func (k *checker) succeeds(ctx context.Context) error {
	if _, err := k.create(ctx, "succeeds", "Never", annotations("run-seconds", "2")); err != nil {
		return err
	}
	p, err := k.until(ctx, "succeeds", inPhase("Running"))
	if err != nil {
		return err
	}
	if p.Spec.NodeName == "" {
		return errors.New("the pod runs on no node")
	}
	began := time.Now()
	if p, err = k.until(ctx, "succeeds", inPhase("Succeeded")); err != nil {
		return err
	}
	if took := time.Since(began); took < 1500*time.Millisecond {
		return fmt.Errorf("the pod ran for %s", took)
	}
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 0 || end.Reason != "Completed" {
		return fmt.Errorf("the container ended with %+v", end)
	}
	return nil
}

func (k *checker) fails(ctx context.Context) error {
	if _, err := k.create(ctx, "fails", "Never", annotations("run-seconds", "100ms", "exit-code", "3")); err != nil {
		return err
	}
	p, err := k.until(ctx, "fails", inPhase("Failed"))
	if err != nil {
		return err
	}
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 3 || end.Reason != "Error" {
		return fmt.Errorf("the container ended with %+v", end)
	}
	return nil
}

func (k *checker) restarts(ctx context.Context) error {
	if _, err := k.create(ctx, "restarts", "OnFailure", annotations("run-seconds", "100ms", "exit-code", "1")); err != nil {
		return err
	}
	_, err := k.until(ctx, "restarts", func(p pod) bool {
		return p.Status.Phase == "Running" && p.Status.ContainerStatuses[0].RestartCount >= 2
	})
	return errors.Join(err, k.api.do(ctx, http.MethodDelete, k.path("pods", "restarts"), nil, nil))
}

func (k *checker) rejects(ctx context.Context) error {
	if _, err := k.create(ctx, "rejects", "Never", annotations("run-seconds", "soon")); err != nil {
		return err
	}
	p, err := k.until(ctx, "rejects", inPhase("Failed"))
	if err == nil && p.Status.Reason != "InvalidAnnotation" {
		err = fmt.Errorf("the pod's reason is %q", p.Status.Reason)
	}
	return err
}

func (k *checker) forever(ctx context.Context) error {
	if _, err := k.create(ctx, "forever", "Never", annotations("run-seconds", "forever")); err != nil {
		return err
	}
	if _, err := k.until(ctx, "forever", inPhase("Running")); err != nil {
		return err
	}
	stays, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if p, err := k.until(stays, "forever", func(p pod) bool { return p.Status.Phase != "Running" }); err == nil {
		return fmt.Errorf("the pod came to phase %s", p.Status.Phase)
	}
	if err := k.api.do(ctx, http.MethodDelete, k.path("pods", "forever"), nil, nil); err != nil {
		return err
	}
	return k.gone(ctx, "forever")
}

func (k *checker) finalizer(ctx context.Context) error {
	metadata := annotations("run-seconds", "forever")
	metadata["finalizers"] = []string{"deltaplane.io/kube-check"}
	if _, err := k.create(ctx, "finalizer", "Never", metadata); err != nil {
		return err
	}
	if _, err := k.until(ctx, "finalizer", inPhase("Running")); err != nil {
		return err
	}
	if err := k.api.do(ctx, http.MethodDelete, k.path("pods", "finalizer"), nil, nil); err != nil {
		return err
	}
	p, err := k.until(ctx, "finalizer", inPhase("Failed"))
	if err != nil {
		return err
	}
	if p.Metadata.DeletionTimestamp == "" {
		return errors.New("the pod ended without being deleted")
	}
	if end := p.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 143 {
		return fmt.Errorf("the container ended with %+v", end)
	}
	patch := object{"metadata": object{"finalizers": nil}}
	if err := k.api.do(ctx, http.MethodPatch, k.path("pods", "finalizer"), patch, nil); err != nil {
		return err
	}
	return k.gone(ctx, "finalizer")
}

func (k *checker) collected(ctx context.Context) error {
	var job struct{ Metadata struct{ UID string } }
	err := k.api.do(ctx, http.MethodPost, k.path("jobs", ""), object{
		"apiVersion": "batch/v1",
		"kind":       "Job",
		"metadata":   object{"name": "owner"},
		"spec": object{"template": object{"spec": object{
			"restartPolicy": "Never",
			"containers":    []object{{"name": "main", "image": "none"}},
		}}},
	}, &job)
	if err != nil {
		return err
	}
	metadata := annotations("run-seconds", "forever")
	metadata["ownerReferences"] = []object{{"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": job.Metadata.UID}}
	if _, err := k.create(ctx, "owned", "Never", metadata); err != nil {
		return err
	}
	if _, err := k.until(ctx, "owned", inPhase("Running")); err != nil {
		return err
	}
	options := object{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
	if err := k.api.do(ctx, http.MethodDelete, k.path("jobs", "owner"), options, nil); err != nil {
		return err
	}
	return k.gone(ctx, "owned")
}

func (k *checker) namespaceGoes(ctx context.Context) error {
	path := "/api/v1/namespaces/" + k.namespace
	if err := k.api.do(ctx, http.MethodDelete, path, nil, nil); err != nil {
		return err
	}
	return poll(ctx, 50*time.Millisecond, func(ctx context.Context) (bool, error) {
		err := k.api.do(ctx, http.MethodGet, path, nil, nil)
		if missing(err) {
			return true, nil
		}
		return false, err
	})
}
