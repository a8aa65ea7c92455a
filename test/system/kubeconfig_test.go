package system

import (
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// loadKubeconfig reaches the API server a kubeconfig names.
func loadKubeconfig(t *testing.T, path string) *API {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatalf("DELTAPLANE_KUBECONFIG: %v", err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatalf("DELTAPLANE_KUBECONFIG: %v", err)
	}
	return &API{Base: config.Host, Client: client}
}
