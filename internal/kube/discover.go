package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// GroupError says that discovery could not tell what one group serves.
type GroupError struct {
	Group string
	Err   error
}

func (e *GroupError) Error() string {
	return fmt.Sprintf("discovery of group %q: %v", e.Group, e.Err)
}

// Unwrap is the cause.
func (e *GroupError) Unwrap() error { return e.Err }

// Undiscovered reports, of an error of [Client.DiscoverAll], for which groups the answer says
// nothing: those that failed, or all when the groups themselves are not known.
func Undiscovered(err error) func(group string) bool {
	groups, all := map[string]bool{}, false
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // the tree is walked by hand: every leaf counts
		case nil:
		case *GroupError:
			groups[e.Group] = true
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				walk(one)
			}
		default:
			all = true
		}
	}
	walk(err)
	return func(group string) bool { return all || groups[group] }
}

// aggregated asks for everything under /api or /apis in one answer; a server that does not know the
// form answers with the list of groups.
const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

// DiscoverAll asks for every resource in its preferred version: that of its group, or where the
// resource is not part of it the first that has it. Subresources are left out. Groups that fail are
// reported as [GroupError]s in the error beside what could be found, as an aggregated API may be
// down while the rest works.
func (c *Client) DiscoverAll(ctx context.Context) ([]Resource, error) {
	var out []Resource
	var errs []error
	for _, path := range []string{"/api", "/apis"} {
		rs, err := c.discoverRoot(ctx, path)
		out, errs = append(out, rs...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// groupList is an answer of /api or /apis in any of its three forms.
type groupList struct {
	Kind     string   `json:"kind"`
	Versions []string `json:"versions"` // of /api: APIVersions
	Groups   []struct {
		Name     string `json:"name"`
		Versions []struct {
			Version string `json:"version"`
		} `json:"versions"`
		PreferredVersion struct {
			Version string `json:"version"`
		} `json:"preferredVersion"`
	} `json:"groups"`
	Items []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Versions []struct {
			Version   string `json:"version"`
			Freshness string `json:"freshness"`
			Resources []struct {
				Resource     string `json:"resource"`
				ResponseKind struct {
					Kind string `json:"kind"`
				} `json:"responseKind"`
				Scope            string   `json:"scope"`
				SingularResource string   `json:"singularResource"`
				Verbs            []string `json:"verbs"`
				ShortNames       []string `json:"shortNames"`
			} `json:"resources"`
		} `json:"versions"`
	} `json:"items"`
}

func (c *Client) discoverRoot(ctx context.Context, path string) ([]Resource, error) {
	body, err := c.do(ctx, request{method: http.MethodGet, path: path, accept: aggregated})
	if IsNotFound(err) && path == "/api" { // a server without a list of its core versions has v1
		return c.discoverVersions(ctx, "", []string{"v1"})
	}
	if err != nil {
		return nil, err
	}
	var list groupList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("%w: discovery of %s: %w", ErrBadAnswer, path, err)
	}
	if list.Kind == "APIGroupDiscoveryList" {
		return list.aggregated()
	}
	if path == "/api" {
		if len(list.Versions) == 0 {
			list.Versions = []string{"v1"}
		}
		return c.discoverVersions(ctx, "", list.Versions)
	}
	if list.Groups == nil && list.Kind != "APIGroupList" { // JSON of somebody in between; taken for no groups it would be taken for all of them gone
		return nil, fmt.Errorf("%w: discovery of %s: want a list of groups, got kind %q", ErrBadAnswer, path, list.Kind)
	}
	var out []Resource
	var errs []error
	for _, g := range list.Groups {
		versions := []string{g.PreferredVersion.Version}
		for _, v := range g.Versions {
			if v.Version != g.PreferredVersion.Version {
				versions = append(versions, v.Version)
			}
		}
		rs, err := c.discoverVersions(ctx, g.Name, slices.DeleteFunc(versions, func(v string) bool { return v == "" }))
		out, errs = append(out, rs...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// discoverVersions asks for the resources of a group, each in the first version that has it.
func (c *Client) discoverVersions(ctx context.Context, group string, versions []string) ([]Resource, error) {
	var out []Resource
	var errs []error
	for _, version := range versions {
		rs, err := c.Discover(ctx, group, version)
		if err != nil {
			errs = append(errs, &GroupError{Group: group, Err: err})
			continue
		}
		out = addNew(out, rs)
	}
	return out, errors.Join(errs...)
}

// addNew appends the resources whose names are not there.
func addNew(out, more []Resource) []Resource {
	have := len(out)
	for _, r := range more {
		if !slices.ContainsFunc(out[:have], func(o Resource) bool { return o.Name == r.Name }) {
			out = append(out, r)
		}
	}
	return out
}

// aggregated reads the form that holds everything. A version that is stale is what the API server
// last knew of an aggregated API that does not answer now.
func (l *groupList) aggregated() ([]Resource, error) {
	var out []Resource
	var errs []error
	for _, g := range l.Items {
		var group []Resource
		for _, v := range g.Versions {
			if v.Freshness == "Stale" {
				errs = append(errs, &GroupError{Group: g.Metadata.Name, Err: errors.New("the API server's knowledge of it is stale")})
			}
			var rs []Resource
			for _, r := range v.Resources {
				rs = append(rs, Resource{
					Group: g.Metadata.Name, Version: v.Version, Name: r.Resource, Kind: r.ResponseKind.Kind, Namespaced: r.Scope == "Namespaced",
					Verbs: r.Verbs, ShortNames: r.ShortNames, Singular: cmp.Or(r.SingularResource, strings.ToLower(r.ResponseKind.Kind)),
				})
			}
			group = addNew(group, rs)
		}
		out = append(out, group...)
	}
	return out, errors.Join(errs...)
}
