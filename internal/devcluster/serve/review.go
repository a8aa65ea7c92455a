package serve

import (
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const reviewKind = "SubjectAccessReview"

// isReview reports whether a path asks what somebody may do.
func isReview(group, version string, rest []string) bool {
	return group == authorizationv1.GroupName && version == "v1" && len(rest) == 1 && rest[0] == "subjectaccessreviews"
}

// handleReview answers that somebody may do what is asked: everybody may do everything.
func (a *Server) handleReview(c *call) error {
	if c.req.Method != http.MethodPost {
		return methodNotAllowed()
	}
	var r authorizationv1.SubjectAccessReview
	if err := c.read(&r); err != nil {
		return err
	}
	if faults := validateReview(&r.Spec); len(faults) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: authorizationv1.GroupName, Kind: reviewKind}, "", faults)
	}
	r.TypeMeta = metav1.TypeMeta{Kind: reviewKind, APIVersion: authorizationv1.SchemeGroupVersion.String()}
	r.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: "the dev cluster lets everybody do everything"}
	return c.json(http.StatusCreated, r)
}

func validateReview(s *authorizationv1.SubjectAccessReviewSpec) (faults field.ErrorList) {
	at := field.NewPath("spec")
	if (s.ResourceAttributes == nil) == (s.NonResourceAttributes == nil) {
		faults = append(faults, field.Invalid(at.Child("resourceAttributes"), s.ResourceAttributes, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	if s.User == "" && len(s.Groups) == 0 {
		faults = append(faults, field.Invalid(at.Child("user"), s.User, "at least one of user or group must be specified"))
	}
	return faults
}
