package testing

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// writes is the API server as the code under test sees it.
type writes struct {
	next      http.Handler
	adversary *adversary
	activity  *activity
}

// ServeHTTP implements http.Handler.
func (a *writes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if watch := req.URL.Query().Get("watch"); watch != "" && watch != "0" && watch != "false" {
		a.next.ServeHTTP(w, req)
		return
	}
	defer a.activity.call()()
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		if d := a.adversary.decide("API: "+req.Method+" "+req.URL.Path, refusedCall); d.kind == refusedCall {
			refuse(w, d)
			return
		}
		a.next.ServeHTTP(w, req)
		return
	}
	a.activity.moved()
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the caller has gone
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	name, conditional := about(body)
	call, kinds := "API: "+req.Method+" "+req.URL.Path, []kind{lostAnswer, refusedCall}
	if req.Method == http.MethodPost {
		call += " " + name
	} else if conditional {
		kinds = append(kinds, conflict)
	}
	switch d := a.adversary.decide(strings.TrimSpace(call), kinds...); d.kind {
	case conflict:
		answer(w, conflictOf(req.URL.Path))
	case lostAnswer:
		a.lose(w, req, d)
	case refusedCall:
		refuse(w, d)
	default:
		a.next.ServeHTTP(w, req)
	}
}

// lose carries a write out and answers what does not tell whether it was. A refusal is passed
// on.
func (a *writes) lose(w http.ResponseWriter, req *http.Request, d decision) {
	kept := &keptAnswer{header: http.Header{}, code: http.StatusOK}
	a.next.ServeHTTP(kept, req)
	switch {
	case kept.code >= http.StatusMultipleChoices:
		maps.Copy(w.Header(), kept.header)
		w.WriteHeader(kept.code)
		_, _ = w.Write(kept.body.Bytes())
	case d.size < 0.5:
		panic(http.ErrAbortHandler) // breaks the connection
	default:
		answer(w, timeout)
	}
}

// refuse carries nothing out, and in half of the cases does not tell.
func refuse(w http.ResponseWriter, d decision) {
	if d.size < 0.5 {
		panic(http.ErrAbortHandler)
	}
	answer(w, apierrors.NewServiceUnavailable("the server is currently unable to handle the request (package client/testing)").Status())
}

var timeout = apierrors.NewTimeoutError("request did not complete within the allotted time (package client/testing)", 0).Status()

// conflictOf is the answer to a write of an object that has changed.
func conflictOf(path string) metav1.Status {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[3:]
	case len(parts) > 2:
		parts = parts[2:]
	}
	if parts[0] == "namespaces" && len(parts) > 3 {
		parts = parts[2:]
	}
	name := ""
	if len(parts) > 1 {
		name = parts[1]
	}
	return apierrors.NewConflict(schema.GroupResource{Group: group, Resource: parts[0]}, name,
		errors.New("the object has been modified; please apply your changes to the latest version and try again (package client/testing)")).Status()
}

func answer(w http.ResponseWriter, s metav1.Status) {
	s.Kind, s.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(s.Code))
	_ = json.NewEncoder(w).Encode(s)
}

// about is the name of the object in a body, and whether the body has a precondition.
func about(body []byte) (name string, conditional bool) {
	var o struct {
		Metadata struct {
			Name            string `json:"name"`
			ResourceVersion string `json:"resourceVersion"`
			UID             string `json:"uid"`
		} `json:"metadata"`
		Preconditions *struct{} `json:"preconditions"`
	}
	if json.Unmarshal(body, &o) != nil {
		return "", false
	}
	return o.Metadata.Name, o.Metadata.ResourceVersion != "" || o.Preconditions != nil
}

// keptAnswer is an answer that is not sent yet.
type keptAnswer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (k *keptAnswer) Header() http.Header { return k.header }

// WriteHeader implements http.ResponseWriter.
func (k *keptAnswer) WriteHeader(code int) { k.code = code }

// Write implements http.ResponseWriter.
func (k *keptAnswer) Write(b []byte) (int, error) { return k.body.Write(b) }
