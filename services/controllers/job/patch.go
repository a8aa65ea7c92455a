package job

import (
	"encoding/json"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

type object = map[string]any

// statusPatch is the merge patch that turns one status into another, with UID
// and resource version as preconditions. A patch, not an update, because the
// index holds objects without the annotations a transform strips, and an update
// would remove those from the server.
func statusPatch(j *batchv1.Job, from, to *batchv1.JobStatus) ([]byte, error) {
	was, err := fields(from)
	if err != nil {
		return nil, err
	}
	is, err := fields(to)
	if err != nil {
		return nil, err
	}
	diff := map[string]json.RawMessage{}
	for k, v := range is {
		if string(was[k]) != string(v) {
			diff[k] = v
		}
	}
	for k := range was {
		if _, ok := is[k]; !ok {
			diff[k] = json.RawMessage("null")
		}
	}
	if un, ok := diff["uncountedTerminatedPods"]; ok && string(un) != "null" {
		lists := to.UncountedTerminatedPods // a merge patch keeps the members it does not name
		if diff["uncountedTerminatedPods"], err = json.Marshal(object{"succeeded": lists.Succeeded, "failed": lists.Failed}); err != nil {
			return nil, err
		}
	}
	return json.Marshal(object{
		"metadata": object{"uid": j.UID, "resourceVersion": j.ResourceVersion},
		"status":   diff,
	})
}

func fields(s *batchv1.JobStatus) (map[string]json.RawMessage, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("job: encode status: %w", err)
	}
	var m map[string]json.RawMessage
	err = json.Unmarshal(b, &m)
	return m, err
}

// stripPatch removes the tracking finalizer from the pod with this UID; with a
// resource version, only if the pod has not changed since.
func stripPatch(p *corev1.Pod, exact bool) []byte {
	meta := object{
		"uid":                                 p.UID,
		"$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer},
	}
	if exact && p.ResourceVersion != "" {
		meta["resourceVersion"] = p.ResourceVersion
	}
	return mustJSON(object{"metadata": meta})
}

// adoptPatch makes the Job the pod's controller.
func adoptPatch(j *batchv1.Job, p *corev1.Pod) []byte {
	return mustJSON(object{"metadata": object{
		"uid":             p.UID,
		"ownerReferences": []any{controllerRef(j)},
		"finalizers":      []string{batchv1.JobTrackingFinalizer},
	}})
}

// releasePatch undoes adoptPatch.
func releasePatch(uid types.UID, p *corev1.Pod) []byte {
	return mustJSON(object{"metadata": object{
		"uid":                                 p.UID,
		"ownerReferences":                     []any{object{"$patch": "delete", "uid": uid}},
		"$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer},
	}})
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings, slices and maps of them always encode
	}
	return b
}
