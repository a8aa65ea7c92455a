package access_test

import (
	"slices"
	"testing"

	"github.com/deltaplane/deltaplane/core/access"
)

// grant gives rules to a user called u and to a group called g.
func grant(namespace string, rules ...access.Rule) access.Grant {
	return access.Grant{
		Binding: "b", Role: "r", Namespace: namespace, Rules: rules,
		Subjects: []access.Subject{{Kind: access.UserSubject, Name: "u"}, {Kind: access.GroupSubject, Name: "g"}},
	}
}

func TestARulePermitsWhatRBACSaysItDoes(t *testing.T) {
	t.Parallel()
	pods := access.Rule{Verbs: []string{"get", "list"}, Groups: []string{""}, Resources: []string{"pods"}}
	named := access.Rule{Verbs: []string{"get"}, Groups: []string{""}, Resources: []string{"pods"}, Names: []string{"a"}}
	logs := access.Rule{Verbs: []string{"get"}, Groups: []string{""}, Resources: []string{"pods/log"}}
	scale := access.Rule{Verbs: []string{"get"}, Groups: []string{"apps"}, Resources: []string{"*/scale"}}
	all := access.Rule{Verbs: []string{"*"}, Groups: []string{"*"}, Resources: []string{"*"}}
	u := &access.Identity{User: "u", Source: access.TokenFile}
	for _, x := range []struct {
		name  string
		grant access.Grant
		id    *access.Identity
		want  access.Attributes
		ok    bool
	}{
		{"its verb and resource", grant("", pods), u, access.Attributes{Verb: "list", Resource: "pods"}, true},
		{"in a namespace", grant("", pods), u, access.Attributes{Verb: "list", Resource: "pods", Namespace: "x"}, true},
		{"by a group", grant("", pods), &access.Identity{User: "x", Groups: []string{"f", "g"}}, access.Attributes{Verb: "list", Resource: "pods"}, true},
		{"another verb", grant("", pods), u, access.Attributes{Verb: "watch", Resource: "pods"}, false},
		{"another group", grant("", pods), u, access.Attributes{Verb: "list", Group: "apps", Resource: "pods"}, false},
		{"another user", grant("", pods), &access.Identity{User: "U"}, access.Attributes{Verb: "list", Resource: "pods"}, false},
		{"nobody", grant("", all), nil, access.Attributes{Verb: "list", Resource: "pods"}, false},
		{"its own namespace", grant("x", pods), u, access.Attributes{Verb: "list", Resource: "pods", Namespace: "x"}, true},
		{"another namespace", grant("x", pods), u, access.Attributes{Verb: "list", Resource: "pods", Namespace: "y"}, false},
		{"all namespaces", grant("x", pods), u, access.Attributes{Verb: "list", Resource: "pods"}, false},
		{"its name", grant("", named), u, access.Attributes{Verb: "get", Resource: "pods", Name: "a"}, true},
		{"another name", grant("", named), u, access.Attributes{Verb: "get", Resource: "pods", Name: "b"}, false},
		{"all names", grant("", named), u, access.Attributes{Verb: "get", Resource: "pods"}, false},
		{"a subresource of a resource alone", grant("", pods), u, access.Attributes{Verb: "get", Resource: "pods", Subresource: "log"}, false},
		{"its subresource", grant("", logs), u, access.Attributes{Verb: "get", Resource: "pods", Subresource: "log"}, true},
		{"a resource of a subresource alone", grant("", logs), u, access.Attributes{Verb: "get", Resource: "pods"}, false},
		{"a subresource of all", grant("", scale), u, access.Attributes{Verb: "get", Group: "apps", Resource: "deployments", Subresource: "scale"}, true},
		{"everything", grant("", all), u, access.Attributes{Verb: "work", Group: access.Group, Resource: "queues", Name: "q"}, true},
		{"everything, a subresource", grant("", all), u, access.Attributes{Verb: "get", Resource: "pods", Subresource: "log"}, true},
		{"an identity of a cluster", grant("", all), &access.Identity{User: "u", Cluster: "dev", Source: access.Cluster}, access.Attributes{Verb: "get", Resource: "pods"}, false},
		{"a reserved group of a certificate", grant("", all), &access.Identity{User: "u", Groups: []string{"system:masters"}, Source: access.Certificate}, access.Attributes{Verb: "get", Resource: "pods"}, false},
	} {
		p := &access.Policy{Grants: []access.Grant{x.grant}}
		if reason, ok := p.Allows(x.id, &x.want); ok != x.ok || ok != (reason != "") {
			t.Errorf("%s: %v (%q), want %v", x.name, ok, reason, x.ok)
		}
	}
}

func TestAnIdentityCountsOnlyWhereItWasMadeOrIsMapped(t *testing.T) {
	t.Parallel()
	p := &access.Policy{
		Mappings: []access.Mapping{
			{FromUser: "alice", ToCluster: "prod", ToUser: "alice@corp", ToGroups: []string{"web"}},
			{FromGroup: "ops", ToCluster: access.Any},
			{FromCluster: "dev", FromUser: "system:serviceaccount:a:b", ToUser: "robot"},
			{FromUser: "system:node:n1", ToCluster: "prod", ToUser: "system:node:n1", ToGroups: []string{"system:nodes"}},
		},
		Grants: []access.Grant{{Rules: []access.Rule{{Verbs: []string{"add"}, Groups: []string{access.Group}, Resources: []string{"queues"}}}, Subjects: []access.Subject{{Kind: access.UserSubject, Name: "robot"}}}},
	}
	alice := &access.Identity{User: "alice", Source: access.Certificate, Subject: "CN=alice"}
	if as := p.In("prod", alice); as == nil || as.User != "alice@corp" || !slices.Equal(as.Groups, []string{"web", access.Authenticated}) {
		t.Errorf("alice in prod is %+v", as)
	}
	if as := p.In("dev", alice); as != nil {
		t.Errorf("alice is %+v in a cluster that nothing maps her to", as)
	}
	ops := &access.Identity{User: "o", Groups: []string{"ops", "system:masters"}, Source: access.TokenFile}
	if as := p.In("dev", ops); as == nil || as.User != "o" || !slices.Equal(as.Groups, []string{"ops", access.Authenticated}) {
		t.Errorf("ops in dev are %+v, want no reserved group of the file's", as)
	}
	robot := &access.Identity{User: "system:serviceaccount:a:b", Cluster: "dev", Source: access.Cluster}
	want := access.Virtual("add", "queues", "q")
	if _, ok := p.Allows(robot, &want); !ok {
		t.Error("a service account that is mapped to the policy has no rights in it")
	}
	elsewhere := *robot
	elsewhere.Cluster = "prod"
	if _, ok := p.Allows(&elsewhere, &want); ok {
		t.Error("the same name of another cluster has its rights")
	}
	if as := p.In("dev", robot); as != robot {
		t.Errorf("%+v in its own cluster is %+v", robot, as)
	}
	for id, ok := range map[*access.Identity]bool{
		{User: "system:node:n1", Groups: []string{"system:nodes"}, Source: access.Certificate}: true,
		{User: "system:node:n2", Source: access.Certificate}:                                   false,
		{User: "x", Groups: []string{"system:masters"}, Source: access.TokenFile}:              false,
		{User: "system:serviceaccount:a:b", Cluster: "dev", Source: access.Cluster}:            true,
		alice: true,
	} {
		if p.Vouches(id) != ok {
			t.Errorf("%+v is somebody: %v, want %v", id, !ok, ok)
		}
	}
}

func TestTheNamesOfCallersAndKeysAreUnique(t *testing.T) {
	t.Parallel()
	names, keys := map[string]bool{}, map[string]bool{}
	list := []*access.Identity{
		{User: "a", Source: access.TokenFile},
		{User: "a", Source: access.Certificate, Subject: "CN=a"},
		{User: "a", Source: access.Cluster, Cluster: "dev"},
		{User: "a", Source: access.Cluster, Cluster: "prod"},
	}
	for _, id := range list {
		names[id.Name()] = true
	}
	if len(names) != len(list) {
		t.Errorf("%d callers have the names %v", len(list), names)
	}
	others := []*access.Identity{
		{User: "a"},
		{User: "a", UID: "1"},
		{User: "a", Groups: []string{"b"}},
		{User: "a", Groups: []string{"b", "c"}},
		{User: "a", Groups: []string{"b c"}},
		{User: "a", Extra: map[string][]string{"k": {"v"}}},
		{User: "a", Extra: map[string][]string{"k": {"v", "w"}}},
		{User: "a", Cluster: "dev"},
	}
	for _, id := range others {
		keys[id.Key()] = true
	}
	if len(keys) != len(others) {
		t.Errorf("%d identities have the keys %v", len(others), keys)
	}
	if (*access.Identity)(nil).Name() != "" {
		t.Error("nobody has a name")
	}
}

func TestNamesAreGrantedByTheirPrefixes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"jobs":                  {"jobs"},
		"team-a/jobs":           {"team-a/jobs", "team-*", "team-a/*"},
		"dev/pods_x":            {"dev/pods_x", "dev/*", "dev/pods_*"},
		"-":                     {"-"},
		"":                      {""},
		"a-b-c-d-e-f-g-h-i-j-k": {"a-b-c-d-e-f-g-h-i-j-k", "a-*", "a-b-*", "a-b-c-*", "a-b-c-d-*", "a-b-c-d-e-*", "a-b-c-d-e-f-*", "a-b-c-d-e-f-g-*", "a-b-c-d-e-f-g-h-*"},
	} {
		if got := access.NamePatterns(name); !slices.Equal(got, want) {
			t.Errorf("%q is granted by %q, want %q", name, got, want)
		}
	}
}
