package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// checkOnePod checks that exactly one pod was ever made for each Job, and that the Job counts it.
// Nobody removes pods of these Jobs, so none is replaced, and a worker that was stopped, killed or
// too slow meets its successor at the same name: there is no moment at which a second pod would be
// in order.
func checkOnePod(t *testing.T, x *Target, jobs []*batchv1.Job) {
	t.Helper()
	pods := podsSince(t, x, jobs)
	var list corev1.PodList
	if err := x.API.get(t.Context(), podsPath, &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		pods[list.Items[i].UID] = &list.Items[i]
	}
	of := map[string][]string{}
	for _, p := range pods {
		uid := p.Labels[batchv1.ControllerUidLabel]
		of[uid] = append(of[uid], fmt.Sprintf("%s (UID %s, made at %s under token %s, %s, deleted %v)",
			p.Name, p.UID, p.CreationTimestamp, p.Annotations[job.TokenAnnotation], p.Status.Phase, p.DeletionTimestamp))
	}
	var all batchv1.JobList
	if err := x.API.get(t.Context(), jobsPath, &all); err != nil {
		t.Fatal(err)
	}
	status := map[types.UID]batchv1.JobStatus{}
	for _, j := range all.Items {
		status[j.UID] = j.Status
	}
	for _, j := range jobs {
		if made := of[string(j.UID)]; len(made) != 1 {
			t.Errorf("Job %s had %d pods, want exactly 1: %v", j.Name, len(made), made)
		}
		if st := status[j.UID]; st.Succeeded != 1 || st.Failed != 0 {
			t.Errorf("Job %s counts %d succeeded and %d failed, want 1 and 0", j.Name, st.Succeeded, st.Failed)
		}
	}
}

// podsSince are the pods that events tell of since the first of the Jobs was made, as far as the
// API server still has them: also those that are gone.
func podsSince(t *testing.T, x *Target, jobs []*batchv1.Job) map[types.UID]*corev1.Pod {
	t.Helper()
	first := ^uint64(0)
	for _, j := range jobs {
		rv, err := strconv.ParseUint(j.ResourceVersion, 10, 64)
		if err != nil {
			t.Fatalf("Job %s: %v", j.Name, err)
		}
		first = min(first, rv)
	}
	path := fmt.Sprintf("%s%s?watch=true&timeoutSeconds=2&resourceVersion=%d", x.API.Base, podsPath, first)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := x.API.Client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	pods := map[types.UID]*corev1.Pod{}
	const forgotten = "the API server has forgotten the first events: pods that are gone already are not seen"
	if answer.StatusCode == http.StatusGone {
		t.Log(forgotten)
		return pods
	}
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("watch of pods: %s", answer.Status)
	}
	for events := json.NewDecoder(answer.Body); ; {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		switch err := events.Decode(&e); {
		case errors.Is(err, io.EOF):
			return pods
		case err != nil:
			t.Fatalf("watch of pods: %v", err)
		case e.Type == "ERROR":
			t.Log(forgotten)
			return pods
		}
		p := &corev1.Pod{}
		if err := json.Unmarshal(e.Object, p); err != nil {
			t.Fatalf("watch of pods: %v", err)
		}
		pods[p.UID] = p
	}
}
