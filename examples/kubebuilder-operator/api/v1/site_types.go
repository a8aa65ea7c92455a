package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SiteSpec is what somebody wants to be published.
type SiteSpec struct {
	Title string `json:"title"`
	// +optional
	Text string `json:"text,omitempty"`
}

// SiteStatus is what is published.
type SiteStatus struct {
	// ObservedGeneration is that of the spec that the page shows.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Page is the name of the ConfigMap.
	// +optional
	Page string `json:"page,omitempty"`
}

// Site is a page that is kept in a ConfigMap, and archived before the Site goes.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type Site struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// +required
	Spec SiteSpec `json:"spec"`
	// +optional
	Status SiteStatus `json:"status,omitzero"`
}

// SiteList contains a list of Site.
// +kubebuilder:object:root=true
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []Site `json:"items"`
}

func init() {
	SchemeBuilder.Register(&Site{}, &SiteList{})
}
