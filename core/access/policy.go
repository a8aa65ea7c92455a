package access

import (
	"fmt"
	"slices"
	"strings"
)

// Any in a rule stands for everything.
const Any = "*"

// Rule permits verbs on resources, as a PolicyRule of RBAC does.
type Rule struct {
	Verbs, Groups, Resources []string
	// Names limits the rule to objects of these names; empty does not.
	Names []string
}

// SubjectKind is what a subject names.
type SubjectKind string

// The kinds of subjects.
const (
	UserSubject           SubjectKind = "User"
	GroupSubject          SubjectKind = "Group"
	ServiceAccountSubject SubjectKind = "ServiceAccount"
)

// Subject is somebody to whom something is granted.
type Subject struct {
	Kind SubjectKind
	// Namespace of a service account.
	Namespace string
	Name      string
}

// Grant gives the rules of a role to subjects.
type Grant struct {
	// Binding and Role name where it comes from.
	Binding, Role string
	// Namespace in which it holds; empty everywhere.
	Namespace string
	Rules     []Rule
	Subjects  []Subject
}

// Mapping lets the identities it is from act as another one.
type Mapping struct {
	// Name of the mapping.
	Name string
	// FromCluster is the cluster that authenticated them; empty for certificates and token files.
	FromCluster string
	// FromUser and FromGroup choose them; [Any] is every user. Exactly one is set.
	FromUser, FromGroup string
	// ToCluster is where the other identity counts, [Any] for every cluster; empty means before the
	// policy.
	ToCluster string
	// ToUser and ToGroups are the other identity. An empty user stays as it is, with the groups
	// that are not reserved.
	ToUser   string
	ToGroups []string
}

// Policy is what a file grants. It is not changed once it is used; the zero value grants nothing.
type Policy struct {
	Grants   []Grant
	Mappings []Mapping
}

// Allows reports whether the policy lets an identity do something, and by which binding. Identities
// of clusters have no rights in it, unless they are mapped: their names are their cluster's.
func (p *Policy) Allows(id *Identity, a *Attributes) (reason string, ok bool) {
	for _, as := range p.here(id) {
		for i := range p.Grants {
			if g := &p.Grants[i]; g.permits(a) && g.isFor(as) {
				return fmt.Sprintf("policy: allowed by %s of role %s", g.Binding, g.Role), true
			}
		}
	}
	return "", false
}

// here are the identities as which a caller stands before the policy.
func (p *Policy) here(id *Identity) []*Identity {
	if id == nil {
		return nil
	}
	out := p.mapped(id, "")
	if users, groups := id.Reserved(); id.Cluster == "" && len(users)+len(groups) == 0 {
		out = append(out, id)
	}
	return out
}

// In is the identity as which a caller counts for a cluster: its own where the cluster
// authenticated it, else that of the first mapping that is for it. It is nil where there is none.
func (p *Policy) In(cluster string, id *Identity) *Identity {
	if id == nil || id.Cluster == cluster {
		return id
	}
	if to := p.mapped(id, cluster); len(to) > 0 {
		return to[0]
	}
	return nil
}

func (p *Policy) mapped(id *Identity, cluster string) (out []*Identity) {
	for i := range p.Mappings {
		m := &p.Mappings[i]
		if m.ToCluster == cluster || m.ToCluster == Any && cluster != "" {
			if m.from(id) {
				out = append(out, m.to(id, cluster))
			}
		}
	}
	return out
}

func (m *Mapping) from(id *Identity) bool {
	switch {
	case m.FromCluster != id.Cluster:
		return false
	case m.FromUser != "":
		return m.FromUser == id.User || m.FromUser == Any
	}
	return slices.Contains(id.Groups, m.FromGroup)
}

func (m *Mapping) to(id *Identity, cluster string) *Identity {
	out := &Identity{User: m.ToUser, Groups: m.ToGroups, Cluster: cluster, Source: id.Source, Subject: id.Subject}
	if out.User == "" {
		out.User = id.User
		for _, g := range id.Groups {
			if !strings.HasPrefix(g, systemPrefix) {
				out.Groups = append(slices.Clip(out.Groups), g)
			}
		}
	}
	if !slices.Contains(out.Groups, Authenticated) {
		out.Groups = append(slices.Clip(out.Groups), Authenticated)
	}
	return out
}

// Vouches reports whether a mapping names each user and group of an identity that is reserved: it
// is nobody otherwise.
func (p *Policy) Vouches(id *Identity) bool {
	users, groups := id.Reserved()
	named := func(is func(*Mapping) bool) bool {
		return slices.ContainsFunc(p.Mappings, func(m Mapping) bool { return m.FromCluster == id.Cluster && is(&m) })
	}
	for _, u := range users {
		if !named(func(m *Mapping) bool { return m.FromUser == u }) {
			return false
		}
	}
	for _, g := range groups {
		if !named(func(m *Mapping) bool { return m.FromGroup == g || m.FromUser == id.User }) {
			return false
		}
	}
	return true
}

func (g *Grant) permits(a *Attributes) bool {
	if g.Namespace != "" && g.Namespace != a.Namespace {
		return false
	}
	return slices.ContainsFunc(g.Rules, func(r Rule) bool { return r.permits(a) })
}

func (r *Rule) permits(a *Attributes) bool {
	return has(r.Verbs, a.Verb) && has(r.Groups, a.Group) && r.names(a) && (len(r.Names) == 0 || slices.Contains(r.Names, a.Name))
}

// names reports whether the rule is for the resource: "*", "pods", "pods/log" or "*/scale".
func (r *Rule) names(a *Attributes) bool {
	if a.Subresource == "" {
		return has(r.Resources, a.Resource)
	}
	return slices.ContainsFunc(r.Resources, func(s string) bool {
		return s == Any || s == a.Resource+"/"+a.Subresource || s == Any+"/"+a.Subresource
	})
}

func has(list []string, value string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return s == Any || s == value })
}

func (g *Grant) isFor(id *Identity) bool {
	return slices.ContainsFunc(g.Subjects, func(s Subject) bool {
		switch s.Kind {
		case UserSubject:
			return s.Name == id.User
		case ServiceAccountSubject:
			return id.User == ServiceAccountPrefix+s.Namespace+":"+s.Name
		case GroupSubject:
			return s.Name == Authenticated || slices.Contains(id.Groups, s.Name)
		}
		return false
	})
}
