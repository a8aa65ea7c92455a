package tainteviction

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// pod is what matters of a pod.
type pod struct {
	Metadata struct {
		Namespace         string     `json:"namespace"`
		Name              string     `json:"name"`
		UID               string     `json:"uid"`
		CreationTimestamp *time.Time `json:"creationTimestamp"`
		DeletionTimestamp *time.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NodeName    string             `json:"nodeName"`
		Tolerations []taint.Toleration `json:"tolerations"`
	} `json:"spec"`
	Status struct {
		StartTime  *time.Time  `json:"startTime"`
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

func (p *pod) involved() kube.Involved {
	return kube.Pods.Involved(p.Metadata.Namespace, p.Metadata.Name, p.Metadata.UID)
}

type condition struct {
	Type               string     `json:"type"`
	Status             string     `json:"status"`
	Reason             string     `json:"reason"`
	LastTransitionTime *time.Time `json:"lastTransitionTime"`
}

// node is what matters of a node.
type node struct {
	Metadata struct {
		UID string `json:"uid"`
	} `json:"metadata"`
	Spec struct {
		Taints []taint.Taint `json:"taints"`
	} `json:"spec"`
}

func decode[T any](what string, raw []byte) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("tainteviction: %s: %w", what, err)
	}
	return v, nil
}

func (p *pod) key() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

func (p *pod) condition(kind string) condition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return condition{}
}

// bound is when the pod came to its node, as the API server said when it was
// bound, else when it was created. Of a pod that was made with its node the node
// says it later, and from then that counts: nothing tells the two apart.
func (p *pod) bound() time.Time {
	if c := p.condition("PodScheduled"); c.Status == "True" && c.LastTransitionTime != nil {
		return *c.LastTransitionTime
	}
	if p.Metadata.CreationTimestamp != nil {
		return *p.Metadata.CreationTimestamp
	}
	return time.Time{}
}

func (p *pod) judged() taint.Pod {
	return taint.Pod{Tolerations: p.Spec.Tolerations, Bound: p.bound()}
}

// disruption is the condition a pod has before it is deleted.
const (
	disruptionTarget  = "DisruptionTarget"
	disruptionReason  = "DeletionByTaintManager"
	disruptionMessage = "Taint manager: deleting due to NoExecute taint"
)

func disruptionPatch(uid string, now time.Time) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": disruptionTarget, "status": "True", "reason": disruptionReason, "message": disruptionMessage,
			"lastTransitionTime": now.UTC().Format(time.RFC3339),
		}}},
	})
}
