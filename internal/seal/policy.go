package seal

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Secrets is the resource that is encrypted when no others are named.
const Secrets = "secrets"

// Policy says which resources' payloads are encrypted. The zero value encrypts nothing.
type Policy struct {
	// Keys encrypt and decrypt; nil encrypts nothing.
	Keys *Keys
	// Resources whose payloads are encrypted, as resource or resource.group: "secrets",
	// "jobs.batch". Default: [Secrets].
	Resources []string
}

// Names are the resources that the policy is for, whether there are keys or not.
func (p Policy) Names() []string {
	if len(p.Resources) == 0 {
		return []string{Secrets}
	}
	return p.Resources
}

// Lists reports whether a resource is one of the policy's.
func (p Policy) Lists(group, resource string) bool {
	if group != "" {
		resource += "." + group
	}
	return slices.Contains(p.Names(), resource)
}

// Covers reports whether a resource's payloads are encrypted.
func (p Policy) Covers(group, resource string) bool { return p.Keys != nil && p.Lists(group, resource) }

// Check returns why the file of keys, as it is now, cannot be used; nil without one.
func (p Policy) Check() error {
	if p.Keys == nil {
		return nil
	}
	return p.Keys.Check()
}

// Validate reports every fault of p together. Resources without keys are one.
func (p Policy) Validate() error {
	var errs []error
	if p.Keys == nil && len(p.Resources) > 0 {
		errs = append(errs, errors.New("encrypted resources need a file of encryption keys"))
	}
	for _, r := range p.Resources {
		if r == "" || r != strings.ToLower(r) || strings.ContainsAny(r, "/* \t:") || strings.HasPrefix(r, ".") || strings.HasSuffix(r, ".") {
			errs = append(errs, fmt.Errorf(`encrypted resource %q: want resource or resource.group, as "secrets" or "jobs.batch"`, r))
		}
	}
	return errors.Join(errs...)
}
