package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// kubeconfigEnv names the kubeconfig of a real cluster to run on instead of the
// dev cluster (test/kube starts one).
const kubeconfigEnv = "DELTAPLANE_KUBECONFIG"

// need is a value that cannot fail to be there; without it the test panics.
func need[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// place is a namespace of a cluster.
type place struct {
	*flow
	ns string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	var kc *kube.Client
	if file := os.Getenv(kubeconfigEnv); file != "" {
		embeddedtest.Alone(t, file)
		kc = need(kube.Load(kube.Config{Kubeconfig: file}))
	} else {
		kc = cluster(t)
	}
	p := &place{ns: fmt.Sprintf("jobs-%d", time.Now().UnixNano()%1e9)}
	namespaces := kube.Resource{Version: "v1", Name: "namespaces", Kind: "Namespace"}
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, p.ns)
	need(kc.Create(t.Context(), kube.Ref{Resource: namespaces}, []byte(body), kube.WriteOptions{}))
	p.flow = newFlowOn(t, kc)
	if os.Getenv(kubeconfigEnv) == "" {
		p.startNodes(2, 0)
	}
	accounts := kube.Resource{Version: "v1", Name: "serviceaccounts", Kind: "ServiceAccount", Namespaced: true}
	if os.Getenv(kubeconfigEnv) != "" {
		p.eventually("a service account", func() string {
			if _, err := kc.Get(t.Context(), kube.Ref{Resource: accounts, Namespace: p.ns, Name: "default"}); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	return p
}

// make creates a Job. Spec is JSON members; the pods run for the given time and
// exit with the given code.
func (p *place) make(name, spec, run, exit string) {
	p.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":%q},"spec":{%s,"template":{
		"metadata":{"annotations":{"deltaplane.io/run-seconds":%q,"deltaplane.io/exit-code":%q}},
		"spec":{"restartPolicy":"Never","terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}]}}}}`, name, spec, run, exit)
	need(p.kube.Create(p.t.Context(), kube.Ref{Resource: kube.Jobs, Namespace: p.ns}, []byte(body), kube.WriteOptions{}))
}

func (p *place) patch(name, patch string) {
	p.t.Helper()
	need(p.kube.Patch(p.t.Context(), kube.Jobs.Ref(p.ns, name), kube.MergePatch, []byte(patch), kube.WriteOptions{}))
}

func (p *place) get(name string) *batchv1.Job {
	p.t.Helper()
	return need(jobWriter{p.kube}.Job(p.t.Context(), p.ns, name))
}

func (p *place) of(name string) []corev1.Pod {
	p.t.Helper()
	pods, _, err := jobWriter{p.kube}.ListPods(p.t.Context(), p.ns, "batch.kubernetes.io/job-name="+name)
	if err != nil {
		p.t.Fatal(err)
	}
	return pods
}

// until waits for the Job's state: the counts "a1 s2 f0" and the true conditions,
// each with its reason.
func (p *place) until(name, want string) {
	p.t.Helper()
	p.eventually(name, func() string {
		st := p.get(name).Status
		facts := []string{fmt.Sprintf("a%d s%d f%d", st.Active, st.Succeeded, st.Failed)}
		for _, c := range st.Conditions {
			if c.Status == corev1.ConditionTrue {
				facts = append(facts, string(c.Type)+"/"+c.Reason)
			}
		}
		got := strings.Join(facts, " ")
		if got != want {
			return fmt.Sprintf("%s, want %s", got, want)
		}
		return ""
	})
}

// Each kind of Job, on the dev cluster or a real one, by two replicas.
func TestJobsOfAllKinds(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.controllers("a", nil)
	p.controllers("b", nil)

	p.make("plain", `"parallelism":3,"completions":7`, "100ms", "0")
	p.make("queue", `"parallelism":3`, "100ms", "0")
	p.make("failing", `"backoffLimit":0`, "100ms", "3")
	p.make("late", `"activeDeadlineSeconds":10`, "forever", "0")
	p.make("paused", `"parallelism":2,"completions":2,"suspend":true`, "200ms", "0")
	p.make("scaled", `"parallelism":4,"completions":100`, "forever", "0")
	p.make("brief", `"completions":2,"parallelism":2,"ttlSecondsAfterFinished":1`, "100ms", "0")
	p.make("zero", `"parallelism":2,"completions":0`, "100ms", "0")
	p.make("doomed", `"parallelism":2,"completions":4`, "forever", "0")
	const onExit = `"podFailurePolicy":{"rules":[{"action":%q,"onExitCodes":{"operator":"In","values":[3]}}]}`
	p.make("indexed", `"parallelism":2,"completions":3,"completionMode":"Indexed"`, "100ms", "0")
	p.make("refused", `"parallelism":1,`+fmt.Sprintf(onExit, "FailJob"), "100ms", "3")
	p.make("worn", `"parallelism":2,"completions":2,"completionMode":"Indexed","backoffLimitPerIndex":0`, "100ms", "3")
	p.make("broken", `"parallelism":1,"completions":9,"completionMode":"Indexed","backoffLimitPerIndex":5,"maxFailedIndexes":1,`+fmt.Sprintf(onExit, "FailIndex"), "100ms", "3")
	p.make("enough", `"parallelism":1,"completions":9,"completionMode":"Indexed","successPolicy":{"rules":[{"succeededCount":2}]}`, "100ms", "0")

	const done = " SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached"
	p.until("plain", "a0 s7 f0"+done)
	p.until("queue", "a0 s3 f0"+done)
	p.until("failing", "a0 s0 f1 FailureTarget/BackoffLimitExceeded Failed/BackoffLimitExceeded")
	p.until("late", "a0 s0 f1 FailureTarget/DeadlineExceeded Failed/DeadlineExceeded")
	p.until("zero", "a0 s0 f0"+done)
	p.until("indexed", "a0 s3 f0"+done)
	p.until("refused", "a0 s0 f1 FailureTarget/PodFailurePolicy Failed/PodFailurePolicy")
	p.until("worn", "a0 s0 f2 FailureTarget/FailedIndexes Failed/FailedIndexes")
	p.until("broken", "a0 s0 f2 FailureTarget/MaxFailedIndexesExceeded Failed/MaxFailedIndexesExceeded")
	p.until("enough", "a0 s2 f0 SuccessCriteriaMet/SuccessPolicy Complete/SuccessPolicy")

	p.until("paused", "a0 s0 f0 Suspended/JobSuspended")
	p.patch("paused", `{"spec":{"suspend":false}}`)
	p.until("paused", "a0 s2 f0"+done)

	p.until("scaled", "a4 s0 f0")
	p.patch("scaled", `{"spec":{"parallelism":1}}`)
	p.until("scaled", "a1 s0 f0")
	p.patch("scaled", `{"spec":{"parallelism":5}}`)
	p.until("scaled", "a5 s0 f0")
	p.patch("scaled", `{"spec":{"suspend":true}}`)
	p.until("scaled", "a0 s0 f0 Suspended/JobSuspended")

	p.eventually("brief goes with its pods", func() string {
		_, err := jobWriter{p.kube}.Job(t.Context(), p.ns, "brief")
		if !errors.Is(err, kube.ErrNotFound) || len(p.of("brief")) > 0 {
			return fmt.Sprint(err, len(p.of("brief")))
		}
		return ""
	})

	p.until("doomed", "a2 s0 f0")
	for _, how := range []struct {
		name string
		by   kube.Propagation
	}{{"doomed", kube.Background}, {"scaled", kube.Foreground}, {"plain", kube.Orphan}} {
		ref := kube.Jobs.Ref(p.ns, how.name)
		need(p.kube.Delete(t.Context(), ref, kube.DeleteOptions{Propagation: how.by}))
	}
	for _, name := range []string{"doomed", "scaled"} {
		p.eventually(name+" leaves nothing", func() string {
			var left []string
			for _, pod := range p.of(name) {
				left = append(left, fmt.Sprint(pod.Name, pod.Finalizers))
			}
			return strings.Join(left, " ")
		})
	}
	for _, name := range []string{"plain", "queue", "failing", "late", "paused"} {
		for _, pod := range p.of(name) {
			if len(pod.Finalizers) > 0 {
				t.Errorf("pod %s keeps %v", pod.Name, pod.Finalizers)
			}
		}
	}
	if n := len(p.of("plain")); n != 7 {
		t.Errorf("%d pods for 7 completions", n)
	}
	if st := p.get("broken").Status; st.CompletedIndexes != "" || st.FailedIndexes == nil || *st.FailedIndexes != "0,1" {
		t.Errorf("completed indexes %q, failed %v", st.CompletedIndexes, st.FailedIndexes)
	}
	var hosts []string
	for _, pod := range p.of("indexed") {
		hosts = append(hosts, pod.Spec.Hostname+" "+pod.Labels[batchv1.JobCompletionIndexAnnotation])
	}
	if slices.Sort(hosts); fmt.Sprint(hosts) != "[indexed-0 0 indexed-1 1 indexed-2 2]" {
		t.Errorf("host names and indexes %q", hosts)
	}
	p.eventually("events", func() string {
		page, err := p.kube.List(t.Context(), kube.Resource{Version: "v1", Name: "events", Kind: "Event", Namespaced: true}, kube.ListOptions{Scope: kube.Scope{Namespace: p.ns}})
		if err != nil {
			return err.Error()
		}
		missing := map[string]bool{
			"SuccessfulCreate": true, "SuccessfulDelete": true, "Completed": true, "BackoffLimitExceeded": true,
			"DeadlineExceeded": true, "Suspended": true, "Resumed": true, "PodFailurePolicy": true,
		}
		for _, raw := range page.Items {
			var e corev1.Event
			if err := json.Unmarshal(raw, &e); err != nil {
				return err.Error()
			}
			delete(missing, e.Reason)
		}
		if len(missing) > 0 {
			return fmt.Sprint("missing: ", missing)
		}
		return ""
	})
}

// What the Job controller's promises rest on, asked of the API server itself.
func TestPreconditionsOfTheAPIServer(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := jobWriter{p.kube}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = p.ns, "one"
	pod.Finalizers = []string{batchv1.JobTrackingFinalizer, "example.com/other"}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	pod.Annotations = map[string]string{"deltaplane.io/run-seconds": "forever"}
	first := need(w.CreatePod(t.Context(), pod))

	_, err := w.CreatePod(t.Context(), pod)
	if !errors.Is(err, kube.ErrAlreadyExists) {
		t.Errorf("a second pod of a name: %v", err)
	}
	var told job.Explainer
	if !errors.As(err, &told) || told.Explain() != `pods "one" already exists` {
		t.Errorf("the user is notified of %v", told)
	}
	strip := func(uid, rv string) ([]string, error) {
		meta := map[string]any{"uid": uid, "$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer}}
		if rv != "" {
			meta["resourceVersion"] = rv
		}
		raw := need(json.Marshal(map[string]any{"metadata": meta}))
		got, err := w.PatchPod(t.Context(), p.ns, "one", raw)
		if err != nil {
			return nil, err
		}
		return got.Finalizers, nil
	}
	if _, err := strip("another", ""); !errors.Is(err, kube.ErrConflict) && !errors.Is(err, kube.ErrInvalid) {
		t.Errorf("a patch for another UID: %v", err)
	}
	p.eventually("bound", func() string {
		got := need(w.Pod(t.Context(), p.ns, "one"))
		if got.ResourceVersion == first.ResourceVersion {
			return "not yet"
		}
		return ""
	})
	if _, err := strip(string(first.UID), first.ResourceVersion); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("a patch of an old version: %v", err)
	}
	if _, err := w.DeletePod(t.Context(), p.ns, "one", "another"); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("a deletion for another UID: %v", err)
	}
	if got, err := strip(string(first.UID), ""); err != nil || fmt.Sprint(got) != "[example.com/other]" {
		t.Errorf("finalizers %v, %v", got, err)
	}
	if got, err := strip(string(first.UID), ""); err != nil || fmt.Sprint(got) != "[example.com/other]" {
		t.Errorf("again: finalizers %v, %v", got, err)
	}
	if rv, err := w.DeletePod(t.Context(), p.ns, "one", first.UID); err != nil || rv == "" {
		t.Errorf("deletion of a pod that stays: version %q, %v", rv, err)
	}
	need(w.PatchPod(t.Context(), p.ns, "one", []byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/other"]}}`)))
	p.eventually("gone", func() string {
		if _, err := w.Pod(t.Context(), p.ns, "one"); !errors.Is(err, kube.ErrNotFound) {
			return fmt.Sprint(err)
		}
		return ""
	})
}

// idle waits until the Job controller's queue has held nothing but the resync for
// longer than a record waits.
func (p *place) idle() {
	p.t.Helper()
	q := client.NewQueue(p.queue, "dev/job", "")
	since := time.Now()
	p.eventually("an idle queue", func() string {
		n := need(q.Len(p.t.Context()))
		if n.Ready+n.Processing > 0 || n.Delayed != 1 {
			since = time.Now()
		}
		if time.Since(since) < 1200*time.Millisecond {
			return fmt.Sprintf("%+v", n)
		}
		return ""
	})
}

// The Jobs' own pods never start, so that a running pod is the one to keep, and
// nothing is in the queue, so that only the pod itself can wake its Job.
func TestAPodThatNobodyControlsWakesTheJobThatSelectsIt(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.controllers("a", nil)
	pods := kube.Ref{Resource: kube.Pods, Namespace: p.ns}
	create := func(name, meta string) {
		t.Helper()
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,%s"annotations":{"deltaplane.io/run-seconds":"forever"}},
			"spec":{"restartPolicy":"Never","terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}]}}`, name, meta)
		need(p.kube.Create(t.Context(), pods, []byte(body), kube.WriteOptions{}))
	}
	running := func(name string) {
		t.Helper()
		p.eventually(name+" runs", func() string {
			if phase := need(jobWriter{p.kube}.Pod(t.Context(), p.ns, name)).Status.Phase; phase != corev1.PodRunning {
				return string(phase)
			}
			return ""
		})
	}
	patch := func(name, patch string) {
		t.Helper()
		ref := pods
		ref.Name = name
		need(p.kube.Patch(t.Context(), ref, kube.MergePatch, []byte(patch), kube.WriteOptions{}))
	}

	p.eventually("a node", func() string {
		if len(need(p.kube.List(t.Context(), kube.Nodes, kube.ListOptions{})).Items) == 0 {
			return "none yet"
		}
		return ""
	})
	var node corev1.Node
	p.ok(json.Unmarshal(need(p.kube.List(t.Context(), kube.Nodes, kube.ListOptions{})).Items[0], &node))
	create("labelled", "")
	create("let-go", fmt.Sprintf(`"labels":{"team":"let-go"},"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":%q,"uid":%q,"controller":true}],`, node.Name, node.UID))
	for _, name := range []string{"created", "labelled", "let-go"} {
		body := fmt.Sprintf(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"for-%[1]s"},"spec":{"parallelism":1,"completions":2,
			"manualSelector":true,"selector":{"matchLabels":{"team":%[1]q}},"template":{"metadata":{"labels":{"team":%[1]q}},"spec":{
			"nodeName":"nobody-runs-this-node","restartPolicy":"Never","terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i"}]}}}}`, name)
		need(p.kube.Create(t.Context(), kube.Ref{Resource: kube.Jobs, Namespace: p.ns}, []byte(body), kube.WriteOptions{}))
		p.until("for-"+name, "a1 s0 f0")
	}
	for _, name := range []string{"labelled", "let-go"} {
		running(name)
	}

	for _, c := range []struct {
		name   string
		change func()
	}{
		{"created", func() { create("created", `"labels":{"team":"created"},`) }},
		{"labelled", func() { patch("labelled", `{"metadata":{"labels":{"team":"labelled"}}}`) }},
		{"let-go", func() { patch("let-go", `{"metadata":{"ownerReferences":null}}`) }},
	} {
		p.idle()
		c.change()
		p.eventually(c.name+" is adopted", func() string {
			pod := need(jobWriter{p.kube}.Pod(t.Context(), p.ns, c.name))
			ref := metav1.GetControllerOf(pod)
			if ref == nil || ref.Name != "for-"+c.name || !slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
				return fmt.Sprint(pod.OwnerReferences, pod.Finalizers)
			}
			return ""
		})
	}
}
