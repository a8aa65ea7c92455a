package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// object is what this controller needs of pods and ConfigMaps.
type object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metadata          `json:"metadata"`
	Spec       *podSpec          `json:"spec,omitempty"`
	Data       map[string]string `json:"data,omitempty"`
}

type metadata struct {
	Namespace         string  `json:"namespace"`
	Name              string  `json:"name"`
	UID               string  `json:"uid,omitempty"`
	ResourceVersion   string  `json:"resourceVersion,omitempty"`
	DeletionTimestamp string  `json:"deletionTimestamp,omitempty"`
	Owners            []owner `json:"ownerReferences,omitempty"`
}

type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

type podSpec struct {
	NodeName string `json:"nodeName"`
}

// noteOf is the ConfigMap that a pod asks for.
func noteOf(pod *object) *object {
	node := ""
	if pod.Spec != nil {
		node = pod.Spec.NodeName
	}
	return &object{
		APIVersion: "v1", Kind: "ConfigMap", Data: map[string]string{"node": node},
		Metadata: metadata{
			Namespace: pod.Metadata.Namespace, Name: pod.Metadata.Name,
			Owners: []owner{{APIVersion: "v1", Kind: "Pod", Name: pod.Metadata.Name, UID: pod.Metadata.UID, Controller: true}},
		},
	}
}

// api is an API server without authentication, such as the dev cluster's. A controller on a real
// cluster writes with client-go.
type api struct{ url string }

// write creates a ConfigMap, or replaces the version that it names.
func (a api) write(ctx context.Context, want *object) (*object, error) {
	method, url := http.MethodPost, a.url+"/api/v1/namespaces/"+want.Metadata.Namespace+"/configmaps"
	if want.Metadata.ResourceVersion != "" {
		method, url = http.MethodPut, url+"/"+want.Metadata.Name
	}
	body, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
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
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, answer)
	}
	written := new(object)
	return written, json.Unmarshal(answer, written)
}
