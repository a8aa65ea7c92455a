// Package kube is the only package that speaks to a Kubernetes API server. It moves objects as the
// bytes the server sent: lists and watches are cut into objects without being decoded, writes take
// and return JSON. client-go is used for what is hard to get right twice, kubeconfigs, TLS and
// credentials, and for nothing else.
package kube
