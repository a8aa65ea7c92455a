package authority

import (
	"fmt"
	"strings"
	"testing"
)

// policyOf gives a user rules.
func policyOf(user string, rules ...string) string {
	return fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: r}
rules: [%s]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: b}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: r}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: %s}]
`, strings.Join(rules, ", "), user)
}

func TestEveryFaultOfAPolicyIsNamed(t *testing.T) {
	t.Parallel()
	_, err := ParsePolicy([]byte(`
# a comment
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: one}
rules:
- {verbs: [get], apiGroups: [""]}
- {verbs: [get], nonResourceURLs: [/healthz]}
---
apiVersion: v1
kind: Role
metadata: {name: two}
rules: []
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: three}
roleRef: {kind: Role, name: two}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: four, namespace: x}
roleRef: {kind: Role, name: nowhere}
subjects: [{kind: Robot, name: r}, {kind: User}, {kind: ServiceAccount, name: s}]
---
kind: Deployment
metadata: {name: five}
---
apiVersion: deltaplane.io/v1
kind: IdentityMapping
metadata: {name: six}
from: {user: a, group: b}
to: {cluster: dev, groups: [c]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: seven}
rulez: []
`))
	if err == nil {
		t.Fatal("no fault")
	}
	for _, want := range []string{
		`document 1 (ClusterRole "one"): rules[0].resources: is required`,
		`document 1 (ClusterRole "one"): rules[1].nonResourceURLs`,
		`document 2 (Role "two"): apiVersion: "v1"`,
		`document 2 (Role "two"): metadata.namespace`,
		`ClusterRoleBinding "three": roleRef.kind`,
		`RoleBinding "four": roleRef.name: the file has no Role "nowhere"`,
		`RoleBinding "four": subjects[0].kind: "Robot"`,
		`RoleBinding "four": subjects[1].name`,
		`RoleBinding "four": subjects[2].namespace`,
		`document 5 (Deployment "five"): kind`,
		`document 6 (IdentityMapping "six"): from`,
		`document 6 (IdentityMapping "six"): to.groups`,
		`document 7 (ClusterRole "seven"): error unmarshaling JSON: while decoding JSON: json: unknown field "rulez"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among:\n%v", want, err)
		}
	}
}

func TestAPolicyThatManifestsOfAClusterMakeIsTaken(t *testing.T) {
	t.Parallel()
	p, err := ParsePolicy([]byte(policyOf("alice", `{verbs: [get], apiGroups: [""], resources: [pods]}`) + `
---
apiVersion: deltaplane.io/v1
kind: IdentityMapping
metadata: {name: nodes}
from: {user: "system:node:n1"}
to: {cluster: dev, user: "system:node:n1", groups: ["system:nodes"]}
`))
	if err != nil || len(p.Grants) != 1 || len(p.Mappings) != 1 || p.Grants[0].Subjects[0].Name != "alice" {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := ParsePolicy(nil); err != nil || len(p.Grants) != 0 {
		t.Errorf("an empty file: %+v, %v", p, err)
	}
}

func FuzzAPolicyIsReadOrRefused(f *testing.F) {
	f.Add([]byte(policyOf("alice", `{verbs: [get], apiGroups: [""], resources: [pods]}`)))
	f.Add([]byte("---\n--- x\nkind: Role\nmetadata: {name: a}"))
	f.Add([]byte("kind: [1]\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := ParsePolicy(data); (p == nil) == (err == nil) {
			t.Fatalf("%v, %v", p, err)
		}
	})
}
