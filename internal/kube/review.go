package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/deltaplane/deltaplane/core/access"
)

// Reviewer asks the API server who a caller is and what somebody may do. The client needs the
// rights of the ClusterRole system:auth-delegator.
type Reviewer interface {
	// ReviewToken says whose a bearer token is; nil when it is nobody's, or is not for the
	// audience (empty is the API server itself), and why, for the log: servers say little.
	ReviewToken(ctx context.Context, token, audience string) (id *access.Identity, why string, err error)
	// ReviewAccess says whether the server's authorizers let somebody do something, and their
	// reason.
	ReviewAccess(ctx context.Context, id *access.Identity, a access.Attributes) (allowed bool, reason string, err error)
}

var _ Reviewer = (*Client)(nil)

type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences,omitempty"`
	} `json:"spec"`
	Status struct {
		Authenticated bool     `json:"authenticated"`
		Error         string   `json:"error"`
		Audiences     []string `json:"audiences"`
		User          struct {
			Username string              `json:"username"`
			UID      string              `json:"uid"`
			Groups   []string            `json:"groups"`
			Extra    map[string][]string `json:"extra"`
		} `json:"user"`
	} `json:"status,omitzero"`
}

// ReviewToken implements [Reviewer] by a TokenReview. The identity names no cluster.
func (c *Client) ReviewToken(ctx context.Context, token, audience string) (*access.Identity, string, error) {
	r := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	r.Spec.Token = token
	if audience != "" {
		r.Spec.Audiences = []string{audience}
	}
	if err := c.review(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &r); err != nil {
		return nil, "", err
	}
	s := &r.Status
	switch {
	case !s.Authenticated || s.User.Username == "":
		return nil, s.Error, nil
	case audience != "" && !slices.Contains(s.Audiences, audience): // a server that knows no audiences says none
		return nil, "the token is not for the audience " + audience, nil
	}
	return &access.Identity{
		User: s.User.Username, UID: s.User.UID, Groups: s.User.Groups, Extra: s.User.Extra, Source: access.Cluster,
	}, "", nil
}

type rawSelector struct {
	Raw string `json:"rawSelector"`
}

func selectorOf(raw string) *rawSelector {
	if raw == "" {
		return nil
	}
	return &rawSelector{raw}
}

type resourceAttributes struct {
	Namespace     string       `json:"namespace,omitempty"`
	Verb          string       `json:"verb"`
	Group         string       `json:"group"`
	Version       string       `json:"version"`
	Resource      string       `json:"resource"`
	Subresource   string       `json:"subresource,omitempty"`
	Name          string       `json:"name,omitempty"`
	FieldSelector *rawSelector `json:"fieldSelector,omitempty"`
	LabelSelector *rawSelector `json:"labelSelector,omitempty"`
}

type accessReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Resource resourceAttributes  `json:"resourceAttributes"`
		User     string              `json:"user"`
		UID      string              `json:"uid,omitempty"`
		Groups   []string            `json:"groups,omitempty"`
		Extra    map[string][]string `json:"extra,omitempty"`
	} `json:"spec"`
	Status struct {
		Allowed bool   `json:"allowed"`
		Denied  bool   `json:"denied"`
		Reason  string `json:"reason"`
		Error   string `json:"evaluationError"`
	} `json:"status,omitzero"`
}

// ReviewAccess implements [Reviewer] by a SubjectAccessReview.
func (c *Client) ReviewAccess(ctx context.Context, id *access.Identity, a access.Attributes) (bool, string, error) {
	r := accessReview{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"}
	r.Spec.User, r.Spec.UID, r.Spec.Groups, r.Spec.Extra = id.User, id.UID, id.Groups, id.Extra
	r.Spec.Resource = resourceAttributes{
		Namespace: a.Namespace, Verb: a.Verb, Group: a.Group, Version: a.Version, Resource: a.Resource, Subresource: a.Subresource, Name: a.Name,
		FieldSelector: selectorOf(a.FieldSelector), LabelSelector: selectorOf(a.LabelSelector),
	}
	if err := c.review(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &r); err != nil {
		return false, "", err
	}
	s := &r.Status
	reason := s.Reason
	if reason == "" {
		reason = s.Error
	}
	return s.Allowed && !s.Denied, reason, nil
}

// review posts a review, of which the answer replaces it.
func (c *Client) review(ctx context.Context, path string, review any) error {
	body, err := json.Marshal(review)
	if err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	if body, err = c.do(ctx, request{method: http.MethodPost, path: path, body: body}); err != nil {
		return err
	}
	if err := json.Unmarshal(body, review); err != nil {
		return fmt.Errorf("%w: POST %s: %w", ErrBadAnswer, path, err)
	}
	return nil
}
