package authority

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/deltaplane/deltaplane/core/access"
)

// The documents of a policy file are the manifests that a cluster takes, and mappings.
const (
	rbacVersion    = "rbac.authorization.k8s.io/v1"
	mappingVersion = "deltaplane.io/v1"
)

type objectMeta struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type typed struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   objectMeta `json:"metadata"`
}

type policyRule struct {
	Verbs           []string `json:"verbs"`
	APIGroups       []string `json:"apiGroups"`
	Resources       []string `json:"resources"`
	ResourceNames   []string `json:"resourceNames"`
	NonResourceURLs []string `json:"nonResourceURLs"`
}

type role struct {
	typed
	Rules []policyRule `json:"rules"`
}

type binding struct {
	typed
	Subjects []struct {
		Kind      string `json:"kind"`
		APIGroup  string `json:"apiGroup"`
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"subjects"`
	RoleRef struct {
		APIGroup string `json:"apiGroup"`
		Kind     string `json:"kind"`
		Name     string `json:"name"`
	} `json:"roleRef"`
}

type mapping struct {
	typed
	From struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
		Group   string `json:"group"`
	} `json:"from"`
	To struct {
		Cluster string   `json:"cluster"`
		User    string   `json:"user"`
		Groups  []string `json:"groups"`
	} `json:"to"`
}

// parser gathers the documents of a file and everything that is wrong with them.
type parser struct {
	policy   access.Policy
	roles    map[string][]access.Rule // by "Role namespace/name" and "ClusterRole name"
	bindings []binding
	where    string // the document that is read
	faults   []error
}

// ParsePolicy reads YAML documents: Role, ClusterRole, RoleBinding and ClusterRoleBinding as
// clusters take them, and IdentityMapping. Everything that is wrong is reported together.
func ParsePolicy(data []byte) (*access.Policy, error) {
	p := &parser{roles: map[string][]access.Rule{}}
	for i, doc := range documents(data) {
		p.where = fmt.Sprintf("document %d", i+1)
		p.document(doc)
	}
	p.bind()
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	return &p.policy, nil
}

// documents are the parts of a file between lines that begin with ---.
func documents(data []byte) (docs [][]byte) {
	var doc []byte
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(line, []byte("---")) {
			docs, doc = append(docs, doc), nil
			continue
		}
		doc = append(doc, line...)
	}
	return slices.DeleteFunc(append(docs, doc), empty)
}

func empty(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

func (p *parser) fault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Errorf(p.where+": "+format, args...))
}

func (p *parser) document(doc []byte) {
	var t typed
	if err := yaml.Unmarshal(doc, &t); err != nil {
		p.fault("%w", err)
		return
	}
	p.where += fmt.Sprintf(" (%s %.253q)", t.Kind, t.Metadata.Name)
	want := rbacVersion
	switch t.Kind {
	case "Role", "ClusterRole":
		var r role
		if p.strict(doc, &r) {
			p.role(&r)
		}
	case "RoleBinding", "ClusterRoleBinding":
		var b binding
		if p.strict(doc, &b) {
			p.bindings = append(p.bindings, b)
		}
	case "IdentityMapping":
		want = mappingVersion
		var m mapping
		if p.strict(doc, &m) {
			p.mapping(&m)
		}
	default:
		p.fault("kind: want Role, ClusterRole, RoleBinding, ClusterRoleBinding or IdentityMapping")
		return
	}
	if t.APIVersion != want {
		p.fault("apiVersion: %q, want %s", t.APIVersion, want)
	}
	if t.Metadata.Name == "" {
		p.fault("metadata.name: is required")
	}
	if namespaced := t.Kind == "Role" || t.Kind == "RoleBinding"; namespaced != (t.Metadata.Namespace != "") {
		p.fault("metadata.namespace: a %s has %s", t.Kind, map[bool]string{true: "one", false: "none"}[namespaced])
	}
}

func (p *parser) strict(doc []byte, into any) bool {
	if err := yaml.UnmarshalStrict(doc, into); err != nil {
		p.fault("%w", err)
		return false
	}
	return true
}

func (p *parser) role(r *role) {
	rules := []access.Rule{}
	for i, in := range r.Rules {
		at := fmt.Sprintf("rules[%d]", i)
		if len(in.NonResourceURLs) > 0 {
			p.fault("%s.nonResourceURLs: there are none here", at)
		}
		for _, f := range []struct {
			name  string
			value []string
		}{{"verbs", in.Verbs}, {"apiGroups", in.APIGroups}, {"resources", in.Resources}} {
			if len(f.value) == 0 && len(in.NonResourceURLs) == 0 {
				p.fault("%s.%s: is required", at, f.name)
			}
		}
		rules = append(rules, access.Rule{Verbs: in.Verbs, Groups: in.APIGroups, Resources: in.Resources, Names: in.ResourceNames})
	}
	key := roleKey(r.Kind, r.Metadata.Namespace, r.Metadata.Name)
	if _, twice := p.roles[key]; twice {
		p.fault("metadata.name: there is another one of this name")
	}
	p.roles[key] = rules
}

func roleKey(kind, namespace, name string) string {
	if kind == "ClusterRole" {
		return kind + " " + name
	}
	return kind + " " + namespace + "/" + name
}

// bind makes the grants once all roles are known.
func (p *parser) bind() {
	for _, b := range p.bindings {
		p.where = fmt.Sprintf("%s %.253q", b.Kind, b.Metadata.Name)
		g := access.Grant{Binding: b.Kind + " " + b.Metadata.Name, Role: b.RoleRef.Name, Namespace: b.Metadata.Namespace}
		if b.RoleRef.Kind != "ClusterRole" && (b.RoleRef.Kind != "Role" || b.Kind != "RoleBinding") {
			p.fault("roleRef.kind: %q cannot be bound by a %s", b.RoleRef.Kind, b.Kind)
			continue
		}
		rules, ok := p.roles[roleKey(b.RoleRef.Kind, b.Metadata.Namespace, b.RoleRef.Name)]
		if !ok {
			p.fault("roleRef.name: the file has no %s %q", b.RoleRef.Kind, b.RoleRef.Name)
		}
		g.Rules = rules
		for i, s := range b.Subjects {
			at := fmt.Sprintf("subjects[%d]", i)
			if s.Name == "" {
				p.fault("%s.name: is required", at)
			}
			switch kind := access.SubjectKind(s.Kind); kind {
			case access.UserSubject, access.GroupSubject, access.ServiceAccountSubject:
				if (kind == access.ServiceAccountSubject) != (s.Namespace != "") {
					p.fault("%s.namespace: service accounts have one, and nobody else", at)
				}
				g.Subjects = append(g.Subjects, access.Subject{Kind: kind, Namespace: s.Namespace, Name: s.Name})
			default:
				p.fault("%s.kind: %q, want User, Group or ServiceAccount", at, s.Kind)
			}
		}
		p.policy.Grants = append(p.policy.Grants, g)
	}
}

func (p *parser) mapping(m *mapping) {
	if (m.From.User == "") == (m.From.Group == "") {
		p.fault("from: want a user or a group, and not both")
	}
	if m.From.Group == access.Any {
		p.fault("from.group: is the name of a group; user: \"*\" is everybody")
	}
	if m.To.User == "" && len(m.To.Groups) > 0 {
		p.fault("to.groups: need to.user")
	}
	if m.To.User == "" && (strings.HasPrefix(m.From.User, "system:") || strings.HasPrefix(m.From.Group, "system:")) {
		p.fault("to.user: is required for what is from a system: name")
	}
	if m.From.Cluster == m.To.Cluster && m.From.Cluster != "" {
		p.fault("to.cluster: is the one it is from")
	}
	p.policy.Mappings = append(p.policy.Mappings, access.Mapping{
		Name: m.Metadata.Name, FromCluster: m.From.Cluster, FromUser: m.From.User, FromGroup: m.From.Group,
		ToCluster: m.To.Cluster, ToUser: m.To.User, ToGroups: m.To.Groups,
	})
}
