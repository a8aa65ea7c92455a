package delta

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ErrCollection is wrapped by every error about a malformed collection name.
var ErrCollection = errors.New("delta: malformed collection")

// ErrKey is wrapped by every error about a malformed key.
var ErrKey = errors.New("delta: malformed key")

// Collection names one watched resource of one cluster. It is comparable and safe as a map key.
// Resource version comparisons hold only inside one collection and epoch. The zero value names
// nothing.
type Collection struct {
	// Cluster is the name given to the cluster in the configuration; it holds no "/".
	Cluster string
	// Group is the API group; empty for the core group.
	Group string
	// Version is the API version, such as "v1".
	Version string
	// Resource is the plural resource name, such as "pods".
	Resource string
}

// String gives the collection's full name: "dev/jobs.v1.batch", or "dev/pods.v1" for the core
// group.
func (c Collection) String() string { return c.Cluster + "/" + c.ResourceName() }

// ResourceName gives the name without the cluster: "jobs.v1.batch" or "pods.v1".
func (c Collection) ResourceName() string {
	if c.Group == "" {
		return c.Resource + "." + c.Version
	}
	return c.Resource + "." + c.Version + "." + c.Group
}

// APIVersion gives the value of an object's apiVersion field: "batch/v1", or "v1" for the core
// group.
func (c Collection) APIVersion() string {
	if c.Group == "" {
		return c.Version
	}
	return c.Group + "/" + c.Version
}

// IsZero reports whether c names nothing.
func (c Collection) IsZero() bool { return c == Collection{} }

// Validate reports every missing or malformed part of c, wrapping [ErrCollection].
func (c Collection) Validate() error {
	var errs []error
	for _, part := range []struct {
		name, value string
		dots, empty bool
	}{
		{"cluster", c.Cluster, true, false},
		{"group", c.Group, true, true},
		{"version", c.Version, false, false},
		{"resource", c.Resource, false, false},
	} {
		switch {
		case part.value == "" && !part.empty:
			errs = append(errs, fmt.Errorf("%w: %s is empty", ErrCollection, part.name))
		case !part.dots && strings.Contains(part.value, "."):
			errs = append(errs, fmt.Errorf("%w: %s %q holds a dot", ErrCollection, part.name, part.value))
		case strings.ContainsFunc(part.value, func(r rune) bool { return r == '/' || r == '%' || r <= ' ' || r == 0x7f }):
			errs = append(errs, fmt.Errorf("%w: %s %q holds a character that is not allowed", ErrCollection, part.name, part.value))
		case len(part.value) > 253:
			errs = append(errs, fmt.Errorf("%w: %s is longer than 253 characters", ErrCollection, part.name))
		}
	}
	if c.Group == coreGroup {
		errs = append(errs, fmt.Errorf("%w: group %q stands for the core group, which is written as no group", ErrCollection, c.Group))
	}
	return errors.Join(errs...)
}

// ParseCollection reads the form written by [Collection.String]:
// "cluster/resource.version[.group]". Errors wrap [ErrCollection] and quote s.
func ParseCollection(s string) (Collection, error) {
	cluster, rest, ok := strings.Cut(s, "/")
	if !ok {
		return Collection{}, fmt.Errorf("%w: %q has no cluster, want cluster/resource.version[.group]", ErrCollection, s)
	}
	c, err := ParseResource(cluster, rest)
	if err != nil {
		return Collection{}, fmt.Errorf("%w (in %q)", err, s)
	}
	return c, nil
}

// ParseResource reads "resource.version[.group]" as a collection of cluster. Errors wrap
// [ErrCollection].
func ParseResource(cluster, s string) (Collection, error) {
	resource, rest, ok := strings.Cut(s, ".")
	if !ok {
		return Collection{}, fmt.Errorf("%w: %q has no version, want resource.version[.group]", ErrCollection, s)
	}
	version, group, dotted := strings.Cut(rest, ".")
	if dotted && group == "" {
		return Collection{}, fmt.Errorf("%w: %q ends in a dot", ErrCollection, s)
	}
	c := Collection{Cluster: cluster, Group: group, Version: version, Resource: resource}
	if err := c.Validate(); err != nil {
		return Collection{}, err
	}
	return c, nil
}

// Key names one object of a collection: "namespace/name", or "name" when the resource is
// cluster-scoped.
type Key string

// NewKey joins a namespace, empty for cluster-scoped objects, and a name. It does not check them;
// see [ParseKey].
func NewKey(namespace, name string) Key {
	if namespace == "" {
		return Key(name)
	}
	return Key(namespace + "/" + name)
}

// ParseKey checks s and returns it as a key. Errors wrap [ErrKey] and quote s.
func ParseKey(s string) (Key, error) {
	if _, _, err := Key(s).Split(); err != nil {
		return "", err
	}
	return Key(s), nil
}

// Split returns the key's namespace, empty for a cluster-scoped object, and its name. Errors wrap
// [ErrKey] and quote the key: it is empty, has an empty part, or more than one slash, or is not
// UTF-8, which no message could carry.
func (k Key) Split() (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(string(k), "/")
	if !ok {
		namespace, name = "", namespace
	}
	switch {
	case name == "" || ok && namespace == "":
		return "", "", fmt.Errorf("%w: %q has an empty part", ErrKey, string(k))
	case strings.Contains(name, "/"):
		return "", "", fmt.Errorf("%w: %q has more than one slash", ErrKey, string(k))
	case strings.ContainsFunc(string(k), func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", "", fmt.Errorf("%w: %q holds a control character", ErrKey, string(k))
	case !utf8.ValidString(string(k)):
		return "", "", fmt.Errorf("%w: %q is not UTF-8", ErrKey, string(k))
	case len(namespace) > 253 || len(name) > 253:
		return "", "", fmt.Errorf("%w: %.64q... has a part longer than 253 characters", ErrKey, string(k))
	}
	return namespace, name, nil
}

// Namespace returns the key's namespace, empty for a cluster-scoped object. It does not check the
// key.
func (k Key) Namespace() string {
	if namespace, _, ok := strings.Cut(string(k), "/"); ok {
		return namespace
	}
	return ""
}

// Name returns the key's name. It does not check the key.
func (k Key) Name() string {
	if _, name, ok := strings.Cut(string(k), "/"); ok {
		return name
	}
	return string(k)
}
