package admission

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Target says where the API server reaches the webhook: a URL, or a Service.
type Target struct {
	// URL is https://host:port; its path is [Path].
	URL string
	// Namespace and Service name a Service instead; Port is 443 when zero.
	Namespace, Service string
	Port               int32
	// CABundle is PEM of the authority that signed the webhook's certificate.
	CABundle []byte
}

// Manifest is the MutatingWebhookConfiguration that installs the webhook, as
// YAML. Pods go through unchanged while the webhook cannot be reached, and it is
// asked again when a later webhook changed a pod.
func Manifest(t Target) ([]byte, error) {
	client := admissionregistrationv1.WebhookClientConfig{CABundle: t.CABundle}
	switch {
	case t.URL != "" && t.Service != "":
		return nil, errors.New("admission: name a URL or a Service, not both")
	case t.URL != "":
		u, err := url.Parse(t.URL)
		if err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("admission: %q is not https://host:port", t.URL)
		}
		client.URL = new(u.JoinPath(Path).String())
	case t.Service != "" && t.Namespace != "":
		client.Service = &admissionregistrationv1.ServiceReference{
			Namespace: t.Namespace, Name: t.Service, Path: new(Path), Port: new(cmp.Or(t.Port, 443)),
		}
	default:
		return nil, errors.New("admission: a URL, or a Service and its namespace, is needed")
	}
	cfg := &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: "deltaplane-default-tolerations"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "default-tolerations.deltaplane.io", ClientConfig: client,
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: new(admissionregistrationv1.NamespacedScope),
				},
			}},
			FailurePolicy: new(admissionregistrationv1.Ignore), SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			ReinvocationPolicy: new(admissionregistrationv1.IfNeededReinvocationPolicy), TimeoutSeconds: new(int32(5)),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	out, err := yaml.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return out, nil
}
