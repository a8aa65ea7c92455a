package admission

import (
	"encoding/json"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/taint"
)

// change is one operation of a JSON patch.
type change struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Review answers one admission request. A request that is not about pods, or
// whose pod cannot be read, is denied as a bad request.
func Review(req *admissionv1.AdmissionRequest, defaults taint.Defaults) *admissionv1.AdmissionResponse {
	resp := &admissionv1.AdmissionResponse{UID: req.UID, Allowed: true}
	if req.Resource.Group != "" || req.Resource.Resource != "pods" {
		return deny(resp, "the resource is %s, not pods", req.Resource.Resource)
	}
	if req.SubResource != "" || req.Operation != admissionv1.Create && req.Operation != admissionv1.Update {
		return resp
	}
	if req.Kind.Group != "" || req.Kind.Kind != "Pod" {
		return deny(resp, "the object is a %s, not a Pod", req.Kind.Kind)
	}
	var pod struct {
		Spec *struct {
			Tolerations []taint.Toleration `json:"tolerations"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return deny(resp, "the pod cannot be read: %v", err)
	}
	if pod.Spec == nil {
		return deny(resp, "the pod has no spec")
	}
	patch := patchOf(pod.Spec.Tolerations, defaults)
	if patch == nil {
		return resp
	}
	raw, err := json.Marshal(patch)
	if err != nil {
		return deny(resp, "the patch cannot be written: %v", err)
	}
	resp.Patch, resp.PatchType = raw, new(admissionv1.PatchTypeJSONPatch)
	return resp
}

func patchOf(have []taint.Toleration, defaults taint.Defaults) []change {
	missing := defaults.Missing(have)
	if len(missing) == 0 {
		return nil
	}
	if len(have) == 0 { // the list may not be there to append to
		return []change{{Op: "add", Path: "/spec/tolerations", Value: missing}}
	}
	var patch []change
	for _, t := range missing {
		patch = append(patch, change{Op: "add", Path: "/spec/tolerations/-", Value: t})
	}
	return patch
}

func deny(resp *admissionv1.AdmissionResponse, format string, args ...any) *admissionv1.AdmissionResponse {
	resp.Allowed = false
	resp.Result = &metav1.Status{
		Status: metav1.StatusFailure, Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest, Message: fmt.Sprintf(format, args...),
	}
	return resp
}
