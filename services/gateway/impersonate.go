package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/core/access"
)

const (
	impersonate      = "Impersonate-"
	impersonateUser  = "Impersonate-User"
	impersonateGroup = "Impersonate-Group"
	impersonateUID   = "Impersonate-Uid"
	impersonateExtra = "Impersonate-Extra-"

	anonymous       = "system:anonymous"
	unauthenticated = "system:unauthenticated"
)

// impersonation is somebody else as whom a request is to be judged.
type impersonation struct {
	user, uid string
	groups    []string
	extra     map[string][]string
}

// parseImpersonation reads the headers of an impersonation; nil when there is none, and false when
// they are not ones that an API server takes, or that are known here.
func parseImpersonation(h http.Header) (i *impersonation, ok bool) {
	for name, values := range h {
		if !strings.HasPrefix(name, impersonate) {
			continue
		}
		if i == nil {
			i = &impersonation{extra: map[string][]string{}}
		}
		switch {
		case name == impersonateUser && len(values) == 1:
			i.user = values[0]
		case name == impersonateUID && len(values) == 1:
			i.uid = values[0]
		case name == impersonateGroup:
			i.groups = slices.Clone(values)
		case strings.HasPrefix(name, impersonateExtra):
			key, err := url.PathUnescape(strings.ToLower(name[len(impersonateExtra):]))
			if err != nil {
				return nil, false
			}
			i.extra[key] = append(i.extra[key], values...)
		default:
			return nil, false
		}
	}
	return i, i == nil || i.user != ""
}

// wants are what one must be permitted who impersonates.
func (i *impersonation) wants(cluster string) []access.Attributes {
	one := func(group, resource, subresource, namespace, name string) access.Attributes {
		return access.Attributes{Cluster: cluster, Verb: "impersonate", Group: group, Resource: resource, Subresource: subresource, Namespace: namespace, Name: name}
	}
	const authentication = "authentication.k8s.io"
	var all []access.Attributes
	if namespace, name, ok := i.serviceAccount(); ok {
		all = append(all, one("", "serviceaccounts", "", namespace, name))
	} else {
		all = append(all, one("", "users", "", "", i.user))
	}
	for _, group := range i.groups {
		all = append(all, one("", "groups", "", "", group))
	}
	for key, values := range i.extra {
		for _, value := range values {
			all = append(all, one(authentication, "userextras", key, "", value))
		}
	}
	if i.uid != "" {
		all = append(all, one(authentication, "uids", "", "", i.uid))
	}
	for n := range all {
		if all[n].Group != "" {
			all[n].Version = "v1"
		}
	}
	return all
}

func (i *impersonation) serviceAccount() (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(i.user, access.ServiceAccountPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, ":")
}

// identity is whom it names, with the groups that API servers add.
func (i *impersonation) identity(cluster string) *access.Identity {
	groups := slices.Clone(i.groups)
	if namespace, _, ok := i.serviceAccount(); ok && len(groups) == 0 {
		groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
	}
	switch {
	case i.user == anonymous && !slices.Contains(groups, unauthenticated):
		groups = append(groups, unauthenticated)
	case i.user != anonymous && !slices.Contains(groups, access.Authenticated) && !slices.Contains(groups, unauthenticated):
		groups = append(groups, access.Authenticated)
	}
	return &access.Identity{User: i.user, UID: i.uid, Groups: groups, Extra: i.extra, Cluster: cluster, Source: access.Cluster}
}

// named is whom it names, as that is said to the API server.
func (i *impersonation) named() *access.Identity {
	return &access.Identity{User: i.user, UID: i.uid, Groups: i.groups, Extra: i.extra}
}

// deniedError says that somebody may not impersonate.
type deniedError struct {
	user string
	want access.Attributes
}

// Error says so as API servers do.
func (e *deniedError) Error() string {
	resource := e.want.Resource
	if e.want.Subresource != "" {
		resource += "/" + e.want.Subresource
	}
	where := "at the cluster scope"
	if e.want.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", e.want.Namespace)
	}
	what := resource
	if e.want.Group != "" {
		what += "." + e.want.Group
	}
	return fmt.Sprintf("%s %q is forbidden: User %q cannot impersonate resource %q in API group %q %s", what, e.want.Name, e.user, resource, e.want.Group, where)
}

// impersonated is the identity as which a request counts: its sender's own without an
// impersonation. A [deniedError] says that its sender may not be that.
func (s *Service) impersonated(ctx context.Context, id *access.Identity, i *impersonation) (*access.Identity, error) {
	if i == nil {
		return id, nil
	}
	for _, want := range i.wants(s.cfg.Cluster) {
		allowed, _, err := s.authority.Decide(ctx, id, want)
		if err != nil {
			return nil, err
		}
		if !allowed {
			return nil, &deniedError{id.User, want}
		}
	}
	return s.authority.Known(i.identity(s.cfg.Cluster)), nil
}
