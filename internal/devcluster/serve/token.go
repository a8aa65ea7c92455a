package serve

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
)

// handleToken answers a token for a service account. It has the form and the claims of a real one
// and no signature: the dev cluster authenticates nobody.
func (a *Server) handleToken(c *call) error {
	account := a.store.Get(c.res, c.key())
	if account == nil {
		return apierrors.NewNotFound(c.res.GroupResource(), c.name)
	}
	var req authenticationv1.TokenRequest
	if err := c.read(&req); err != nil {
		return err
	}
	who := map[string]any{"namespace": c.namespace, "serviceaccount": map[string]any{"name": c.name, "uid": account.Decoded.GetUID()}}
	if ref := req.Spec.BoundObjectRef; ref != nil && ref.Kind == "Pod" {
		pods := a.kinds.Get("pods")
		pod := a.store.Get(pods, kinds.ObjectKey(c.namespace, ref.Name))
		if pod == nil {
			return apierrors.NewNotFound(pods.GroupResource(), ref.Name)
		}
		if ref.UID != "" && ref.UID != pod.Decoded.GetUID() {
			return apierrors.NewConflict(pods.GroupResource(), ref.Name,
				fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
		}
		if used := pod.Decoded.(*corev1.Pod).Spec.ServiceAccountName; used != c.name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name %q", c.name, used))
		}
		who["pod"] = map[string]any{"name": ref.Name, "uid": pod.Decoded.GetUID()}
	}
	seconds := int64(3600)
	if s := req.Spec.ExpirationSeconds; s != nil {
		seconds = *s
	}
	if seconds < 600 {
		return apierrors.NewBadRequest("spec.expirationSeconds: may not specify a duration less than 10 minutes")
	}
	now := a.store.Now()
	expiry := now.Add(time.Duration(seconds) * time.Second)
	token, err := unsigned(map[string]any{
		"iss": "dev", "sub": "system:serviceaccount:" + c.namespace + ":" + c.name, "aud": req.Spec.Audiences,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": expiry.Unix(), "kubernetes.io": who,
	})
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	req.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}
	req.Spec.ExpirationSeconds = &seconds
	req.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expiry)}
	return c.json(http.StatusCreated, req)
}

func unsigned(claims map[string]any) (string, error) {
	body, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	enc := base64.RawURLEncoding
	return enc.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + enc.EncodeToString(body) + ".", nil
}
