package system

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// manyObjects are more than a gateway lists to find out that nothing has happened: it watches.
const manyObjects = 110

// A gateway with the shipped roles alone does all that it does: it says who calls and what they may
// read, serves lists and watches, fills the tables of custom resources, and takes certificates of
// the cluster. What it asked for is then exactly what the roles grant.
func TestRealAGatewayUsesTheRightsItHasAndNoOthers(t *testing.T) {
	t.Parallel()
	k, log := startAudited(t, "--nodes", "0")
	definition := map[string]any{
		"metadata": map[string]any{"name": "widgets.rights.example.com"},
		"spec": map[string]any{
			"group": "rights.example.com", "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}
	if err := k.api.create(t.Context(), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition, nil); err != nil {
		t.Fatal(err)
	}
	config, granted := k.actor(t, "gateway", "deltaplane-authority")
	granted = append(granted, k.listsWidgets(t))
	k.fill(t)

	p := &plane{upTarget: newUp(t, k.kubeconfig)}
	p.run(t, "nats")
	p.start(t, "reflector", append(p.serveArgs("reflector"), "--keep-managed-fields", "--resources", "pods,nodes,jobs.batch,widgets.rights.example.com")...)
	p.run(t, "indexer")
	cert, key := servingCertificate(t)
	address := embeddedtest.Ports(t, 1)[0]
	p.start(t, "gateway", "serve", "gateway", "--listen", address, "--admin-listen", "off", "--kubeconfig", config, "--index-url", p.ports["index"],
		"--serve-tls-cert", cert, "--serve-tls-key", key, "--client-certificates", "impersonate")
	rc, err := clientcmd.BuildConfigFromFlags("", k.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	door := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // a certificate of the test
	defer door.CloseIdleConnections()
	ask := func(ctx context.Context, path, accept string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+rc.BearerToken)
		req.Header.Set("Accept", accept)
		resp, err := door.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if by := resp.Header.Get("X-Deltaplane-Served-By"); by != "index" {
			return fmt.Errorf("%s %s is answered by %q", resp.Status, path, by)
		}
		_, err = io.Copy(io.Discard, resp.Body) // a watch until its time is over
		return err
	}
	const list, watch = "?resourceVersion=0", "?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=4"
	for _, path := range []string{"/api/v1/pods", "/api/v1/nodes", "/apis/batch/v1/jobs", "/apis/rights.example.com/v1/widgets"} {
		eventually(t, time.Minute, path+" is answered from the index", func(ctx context.Context) error { return ask(ctx, path+list, "application/json") })
	}
	eventually(t, time.Minute, "the gateway has done all that it may", func(ctx context.Context) error {
		// What moves the API server's version makes a watch that wants to be recent ask for it.
		moved := k.api.create(ctx, "/api/v1/namespaces/default/configmaps", map[string]any{"metadata": map[string]any{"generateName": "moves-"}}, nil)
		faults := []error{moved, ask(ctx, "/apis/rights.example.com/v1/widgets"+list, "application/json;as=Table;g=meta.k8s.io;v=v1")}
		for _, path := range []string{"/api/v1/pods", "/api/v1/nodes", "/apis/batch/v1/jobs"} {
			faults = append(faults, ask(ctx, path+watch, "application/json"))
		}
		done, _ := deeds(t, log, "gateway")
		return errors.Join(append(faults, compareRights(granted, done))...)
	})
	exactly(t, log, "gateway", granted)
}

// listsWidgets grants the gateway what an operator does who mirrors a custom resource.
func (k *kubeCluster) listsWidgets(t *testing.T) right {
	t.Helper()
	role := rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{"rights.example.com"}, Resources: []string{"widgets"}}}}
	role.Name = "widgets"
	bound := rbacv1.ClusterRoleBinding{
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "gateway", Namespace: rightsNamespace}},
	}
	bound.Name = role.Name
	const rbac = "/apis/rbac.authorization.k8s.io/v1"
	if err := errors.Join(k.api.create(t.Context(), rbac+"/clusterroles", role, nil), k.api.create(t.Context(), rbac+"/clusterrolebindings", bound, nil)); err != nil {
		t.Fatal(err)
	}
	return right{verb: "list", group: "rights.example.com", resource: "widgets"}
}

// fill makes many pods, nodes and Jobs, which nobody runs.
func (k *kubeCluster) fill(t *testing.T) {
	t.Helper()
	containers := []any{map[string]any{"name": "c", "image": "none"}}
	for i := range manyObjects {
		meta := map[string]any{"name": fmt.Sprintf("n%03d", i)}
		pod := map[string]any{"metadata": meta, "spec": map[string]any{"schedulerName": "none", "containers": containers}}
		job := map[string]any{"metadata": meta, "spec": map[string]any{"suspend": true, "template": map[string]any{"spec": map[string]any{"restartPolicy": "Never", "containers": containers}}}}
		create := func(path string, object map[string]any) {
			eventually(t, time.Minute, path+" takes objects", func(ctx context.Context) error { // the service account of pods may be on its way
				err := k.api.create(ctx, path, object, nil)
				if isStatus(err, http.StatusConflict) {
					return nil
				}
				return err
			})
		}
		create("/api/v1/nodes", map[string]any{"metadata": meta})
		create(podsPath, pod)
		create(jobsPath, job)
	}
}

// servingCertificate is a certificate for this host and its key, in files.
func servingCertificate(t *testing.T) (cert, key string) {
	t.Helper()
	a, _, err := certs.NewAuthority("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.Issue(certs.Subject{User: "gateway", Hosts: []string{"127.0.0.1"}}, time.Now(), time.Hour)
	cert, key = filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	if err := errors.Join(err, os.WriteFile(cert, pair.Cert, 0o600), os.WriteFile(key, pair.Key, 0o600)); err != nil {
		t.Fatal(err)
	}
	return cert, key
}
