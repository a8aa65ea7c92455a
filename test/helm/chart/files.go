package chart

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// everything has the chart render every role that there is. The gateway's is for all resources of
// these groups, as an example.
var everything = []string{
	"--set", "controllers.run={job,nodelifecycle,tainteviction,podgc}",
	"--set", "gateway.enabled=true", "--set", "gateway.clientCertificates=impersonate", "--set", "tls.mode=cert-manager",
	"--set-json", `gateway.extraRules=[{"apiGroups":["","apps","batch"],"resources":["*"],"verbs":["list","watch"]}]`,
}

const (
	head = "# Made of deploy/chart by \"make chart-render\": change the chart.\n"

	rolesHead = head + `#
# Roles by part, for those who install by other means, and for callers. A cluster takes them with kubectl apply, a policy file
# (--access-policy) as they are. Bind them with RoleBindings and ClusterRoleBindings of your own; docs/access.md says what each
# verb of deltaplane.io permits, docs/install.md what each part does in its cluster.

`

	namespaceText = `apiVersion: v1
kind: Namespace
metadata:
  name: ` + Namespace + `
  labels:
    pod-security.kubernetes.io/enforce: restricted
`
)

// helmLabel is true of what Helm installs alone.
var helmLabel = regexp.MustCompile(`(?m)^ *app\.kubernetes\.io/managed-by: Helm\n`)

var kind = regexp.MustCompile(`(?m)^kind: (\w+)$`)

// Files are the files that are made of the chart, by their path below the root of the repository:
// deploy/kubernetes, and the roles alone.
func Files(root string) (map[string]string, error) {
	rendered, err := Template(root)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{"namespace.yaml": namespaceText}
	for _, d := range Documents(rendered) {
		texts[d.Source] = join(texts[d.Source], d.Text)
	}
	files := map[string]string{}
	var list bytes.Buffer
	list.WriteString(head + "#\n#   kubectl apply -k deploy/kubernetes\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n")
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		fmt.Fprintf(&list, "  - %s\n", name)
		files["deploy/kubernetes/"+name] = head + texts[name]
	}
	list.WriteString("# Where your cluster finds the image.\nimages:\n  - name: deltaplane\n    newName: deltaplane\n    newTag: dev\n")
	files["deploy/kubernetes/kustomization.yaml"] = list.String()
	if files["deploy/rbac.yaml"], err = roles(root); err != nil {
		return nil, err
	}
	return files, nil
}

// roles are all roles, without bindings.
func roles(root string) (string, error) {
	rendered, err := Template(root, everything...)
	if err != nil {
		return "", err
	}
	var out string
	for _, d := range Documents(rendered) {
		if k := kind.FindStringSubmatch(d.Text); k != nil && (k[1] == "Role" || k[1] == "ClusterRole") {
			out = join(out, d.Text)
		}
	}
	return rolesHead + out, nil
}

func join(all, one string) string {
	one = helmLabel.ReplaceAllString(one, "")
	if all == "" {
		return one
	}
	return strings.TrimSuffix(all, "\n") + "\n---\n" + one
}
