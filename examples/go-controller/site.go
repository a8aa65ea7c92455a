package main

import (
	"fmt"
	"html"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Site is the custom resource, see crd.yaml.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   SiteSpec   `json:"spec"`
	Status SiteStatus `json:"status,omitzero"`
}

// SiteSpec is what somebody wants to be published.
type SiteSpec struct {
	Title string `json:"title"`
	Text  string `json:"text,omitempty"`
}

// SiteStatus is what is published.
type SiteStatus struct {
	// ObservedGeneration is that of the spec that the page shows.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Page is the name of the ConfigMap.
	Page string `json:"page,omitempty"`
}

// finalizer keeps a Site until its page is archived.
const finalizer = "example.com/archive"

var siteKind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Site"}

// pageOf is the ConfigMap that a Site asks for. The Site owns it, so that the API server deletes it
// with the Site.
func pageOf(site *Site) *corev1.ConfigMap {
	page := configMap(site.Namespace, site.Name, contentOf(site))
	page.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(site, siteKind)}
	return page
}

// archiveOf is the ConfigMap that outlives a Site.
func archiveOf(site *Site, content string) *corev1.ConfigMap {
	return configMap(site.Namespace, site.Name+"-archive", content)
}

func configMap(namespace, name, content string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"index.html": content},
	}
}

func contentOf(site *Site) string {
	return fmt.Sprintf("<h1>%s</h1><p>%s</p>", html.EscapeString(site.Spec.Title), html.EscapeString(site.Spec.Text))
}
