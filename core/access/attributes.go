package access

import (
	"fmt"
	"strings"
)

// Group is the API group of what is Deltaplane's own: queues, reflections, indexes and backoffs.
const Group = "deltaplane.io"

// Attributes are what a caller wants to do. They are comparable.
type Attributes struct {
	// Cluster that has the resource; empty for what belongs to none.
	Cluster string
	// Verb such as get, list or watch.
	Verb string
	// Group, Version and Resource of the API; the group of core resources is empty.
	Group, Version, Resource string
	// Subresource such as status; usually empty.
	Subresource string
	// Namespace; empty for all, and where the resource has none.
	Namespace string
	// Name of the object; empty for all.
	Name string
	// FieldSelector and LabelSelector limit a list or a watch.
	FieldSelector, LabelSelector string
}

// Virtual are the attributes of something of Deltaplane's own.
func Virtual(verb, resource, name string) Attributes {
	return Attributes{Verb: verb, Group: Group, Version: "v1", Resource: resource, Name: name}
}

// GroupResource names the resource as RBAC's messages do: "jobs.batch", "pods", "pods/log".
func (a *Attributes) GroupResource() string {
	name := a.Resource
	if a.Group != "" {
		name += "." + a.Group
	}
	if a.Subresource != "" {
		name += "/" + a.Subresource
	}
	return name
}

// String says what is wanted, as in: list pods of cluster dev in namespace "web".
func (a *Attributes) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", a.Verb, a.GroupResource())
	if a.Name != "" {
		fmt.Fprintf(&b, " %.253q", a.Name)
	}
	if a.Cluster != "" {
		fmt.Fprintf(&b, " of cluster %s", a.Cluster)
	}
	if a.Namespace != "" {
		fmt.Fprintf(&b, " in namespace %.253q", a.Namespace)
	}
	return b.String()
}

// NamePatterns are the names under which a name of Deltaplane's own may be granted, the name itself
// first: RBAC compares names as a whole, so a grant for a prefix is for the prefix, up to and with
// one of the separators "-", ".", "/" and "_", and an asterisk. "team-a/jobs" is granted by
// "team-a/*" and by "team-*" too. There are at most nine; the shortest prefixes count.
func NamePatterns(name string) []string {
	const most = 9
	out := []string{name}
	for i := 0; i < len(name) && len(out) < most; i++ {
		if strings.IndexByte("-./_", name[i]) >= 0 && i+1 < len(name) {
			out = append(out, name[:i+1]+"*")
		}
	}
	return out
}
