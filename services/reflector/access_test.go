package reflector_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// reflectionPolicy lets adder create reflections, reader read config maps, and both, which is one
// who is of both groups, do what takes both. The operator may do everything.
const reflectionPolicy = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: add}
rules: [{verbs: [create, list], apiGroups: [deltaplane.io], resources: [reflections]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: read}
rules: [{verbs: [get, list, watch], apiGroups: [""], resources: [configmaps]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: all}
rules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: add}
roleRef: {kind: ClusterRole, name: add}
subjects: [{kind: Group, name: adders}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: read}
roleRef: {kind: ClusterRole, name: read}
subjects: [{kind: Group, name: readers}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: all}
roleRef: {kind: ClusterRole, name: all}
subjects: [{kind: User, name: operator}]
`

func TestReflectionsAreChangedByCallersWhoMayReadTheirResource(t *testing.T) {
	t.Parallel()
	f, dir := newFleet(t), t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := quick()
	cfg.RPC.Auth.TokenFile = file("tokens", "nobody-0123456789abcdef nobody\nadder-0123456789abcdef adder groups=adders\n"+
		"reader-0123456789abcdef reader groups=readers\nboth-0123456789abcdef both groups=adders,readers\noperator-0123456789abcdef operator\n")
	cfg.Access.PolicyFile, cfg.Access.AuditFile = file("policy.yaml", reflectionPolicy), filepath.Join(dir, "audit")
	svc, _ := start(t, cfg, f.URL, embeddedtest.NATS(t).URL())
	c := dial(t, svc)
	as := func(user string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+user+"-0123456789abcdef")
	}
	add := func(user, resource string) error {
		_, err := c.AddReflection(as(user), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: resource}})
		return err
	}
	denied := func(what string, err error, verb, resource string) {
		t.Helper()
		if m := rpc.Info(err).GetMetadata(); rpc.Code(err) != codes.PermissionDenied || m["verb"] != verb || m["resource"] != resource {
			t.Errorf("%s: %v, want a denial of %s %s", what, err, verb, resource)
		}
	}
	denied("adding by nobody", add("nobody", "configmaps"), "create", "reflections")
	denied("adding without a right to read", add("adder", "configmaps"), "list", "configmaps")
	denied("adding with a right to read alone", add("reader", "configmaps"), "create", "reflections")
	denied("adding another resource", add("both", "deployments.apps"), "list", "deployments")
	denied("adding everything", add("both", "*"), "list", "*")
	if err := add("both", "configmaps"); err != nil {
		t.Errorf("adding with both rights: %v", err)
	}
	_, err := c.ListReflections(as("reader"), &reflectorv1.ListReflectionsRequest{})
	denied("listing", err, "list", "reflections")
	if _, err := c.ListReflections(as("adder"), &reflectorv1.ListReflectionsRequest{}); err != nil {
		t.Errorf("listing with the right: %v", err)
	}
	_, err = c.RemoveReflection(as("both"), &reflectorv1.RemoveReflectionRequest{Resource: "configmaps"})
	denied("removing", err, "delete", "reflections")
	_, err = c.Relist(as("both"), &reflectorv1.RelistRequest{Collection: "dev/pods.v1"})
	denied("relisting", err, "update", "reflections")
	if _, err := c.RemoveReflection(as("operator"), &reflectorv1.RemoveReflectionRequest{Resource: "configmaps"}); err != nil {
		t.Errorf("removing by the operator: %v", err)
	}
	if _, err := c.ListReflections(t.Context(), &reflectorv1.ListReflectionsRequest{}); rpc.Code(err) != codes.Unauthenticated {
		t.Errorf("listing without a name: %v", err)
	}
}
