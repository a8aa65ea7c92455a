package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Source is how a caller was authenticated.
type Source int

// The sources of identities.
const (
	// Unknown is the zero value: nobody.
	Unknown Source = iota
	// Certificate is a verified client certificate.
	Certificate
	// TokenFile is a bearer token of a file of this process.
	TokenFile
	// Cluster is a bearer token that a cluster has reviewed.
	Cluster
)

// String implements fmt.Stringer.
func (s Source) String() string {
	return [...]string{"unknown", "certificate", "token file", "cluster"}[s]
}

// Identity is a caller. It is not to be changed once [Identity.Name] or [Identity.Key] was asked
// for, and then safe for concurrent use. A nil identity is nobody.
type Identity struct {
	// User is the caller's name. It means something only together with Cluster.
	User string
	// UID of the user; often empty.
	UID string
	// Groups of the user, as they came.
	Groups []string
	// Extra is what the cluster said beside, for its authorizers.
	Extra map[string][]string
	// Cluster authenticated the caller; empty for a certificate and a token file.
	Cluster string
	// Source is how that was done.
	Source Source
	// Subject of the certificate; empty for the other sources.
	Subject string
}

// Name is unique among callers, and the same for all calls and connections of one. Limits are kept
// by it. It is empty for nobody.
func (id *Identity) Name() string {
	switch {
	case id == nil || id.Source == Unknown:
		return ""
	case id.Source == Certificate:
		return "certificate " + id.Subject
	case id.Source == TokenFile:
		return "token " + id.User
	}
	return "cluster " + id.Cluster + " " + id.User
}

// Key is equal for identities that every authorizer judges alike.
func (id *Identity) Key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %q %q %q", id.Cluster, id.User, id.UID, id.Groups)
	for _, k := range slices.Sorted(maps.Keys(id.Extra)) {
		fmt.Fprintf(&b, " %q=%q", k, id.Extra[k])
	}
	return b.String()
}

const (
	// systemPrefix begins the users and groups that Kubernetes keeps for itself.
	systemPrefix = "system:"
	// Authenticated is the group of every caller that is somebody.
	Authenticated = "system:authenticated"
	// ServiceAccountPrefix begins the users of service accounts:
	// system:serviceaccount:NAMESPACE:NAME.
	ServiceAccountPrefix = "system:serviceaccount:"
)

// Reserved are the user and the groups of an identity that only a cluster may give: those that
// begin with "system:".
func (id *Identity) Reserved() (users, groups []string) {
	if id.Source == Cluster {
		return nil, nil
	}
	if strings.HasPrefix(id.User, systemPrefix) {
		users = []string{id.User}
	}
	for _, g := range id.Groups {
		if strings.HasPrefix(g, systemPrefix) {
			groups = append(groups, g)
		}
	}
	return users, groups
}
