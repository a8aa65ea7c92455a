package volume_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

// The volume that every API server adds to pods: a token, the cluster's certificate, the namespace.
func TestTheServiceAccountVolumeOnAnAPIServer(t *testing.T) {
	t.Parallel()
	c, err := kube.Load(kube.Config{URL: devclustertest.Start(t, devcluster.Config{}).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	create := func(resource, body string) []byte {
		t.Helper()
		raw, err := c.Create(t.Context(), kube.Ref{Resource: kube.Resource{Version: "v1", Name: resource, Namespaced: true}, Namespace: "default"}, []byte(body), kube.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	create("configmaps", `{"metadata":{"name":"kube-root-ca.crt"},"data":{"ca.crt":"PEM"}}`)
	raw := create("pods", `{"metadata":{"name":"web"},"spec":{"containers":[{"name":"main","image":"i"}],"volumes":[{"name":"kube-api-access","projected":{"defaultMode":420,"sources":[
		{"serviceAccountToken":{"expirationSeconds":3607,"path":"token"}},
		{"configMap":{"name":"kube-root-ca.crt","items":[{"key":"ca.crt","path":"ca.crt"}]}},
		{"downwardAPI":{"items":[{"path":"namespace","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.namespace"}}]}}]}}]}}`)
	var p corev1.Pod
	if err := json.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	m, err := volume.New(volume.Config{Root: t.TempDir()}, volume.NewObjects(c, 0, nil), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.Setup(t.Context(), &p, environ.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	dir := got["kube-api-access"]
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil || strings.Count(string(token), ".") != 2 {
		t.Errorf("token is %q, %v", token, err)
	}
	files := tree(t, dir)
	delete(files, "token")
	if want := map[string]string{"ca.crt": "644 PEM", "namespace": "644 default"}; len(files) != 2 || files["ca.crt"] != want["ca.crt"] || files["namespace"] != want["namespace"] {
		t.Errorf("files are %v, want %v", files, want)
	}
	other := p.DeepCopy()
	other.UID = "another"
	if _, err := m.Setup(t.Context(), other, environ.Facts{}); err == nil || !kube.IsConflict(err) {
		t.Errorf("a token for a pod that is not that one: %v", err)
	}
}
