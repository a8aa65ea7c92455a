package authority

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

const (
	// bindingsAwaited is how long a call waits for the first list of a cluster's bindings.
	bindingsAwaited = 5 * time.Second
	bindingsPage    = 500
)

// bindings are the namespaces in which a cluster's RoleBindings name somebody. They grant nothing:
// they suggest which namespaces to ask about.
type bindings struct {
	ready chan struct{} // closed once they have been listed

	mu        sync.Mutex                // guards the rest
	listed    bool                      // ready is closed
	subjects  map[string][]string       // by "namespace/name" of the binding
	namespace map[string]map[string]int // by subject and namespace, the bindings
}

func newBindings() bindings {
	return bindings{ready: make(chan struct{}), subjects: map[string][]string{}, namespace: map[string]map[string]int{}}
}

// Subjects are kept as "user NAME" and "group NAME"; service accounts are users.
func subjectsOf(b *binding) (list []string) {
	for _, s := range b.Subjects {
		switch access.SubjectKind(s.Kind) {
		case access.UserSubject:
			list = append(list, "user "+s.Name)
		case access.GroupSubject:
			list = append(list, "group "+s.Name)
		case access.ServiceAccountSubject:
			namespace := s.Namespace
			if namespace == "" {
				namespace = b.Metadata.Namespace
			}
			list = append(list, "user "+access.ServiceAccountPrefix+namespace+":"+s.Name)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// list reads all bindings, and returns the version to watch from.
func (b *bindings) list(ctx context.Context, from kube.Lister, r kube.Resource) (rv string, err error) {
	all := newBindings()
	o := kube.ListOptions{Limit: bindingsPage}
	for {
		page, err := from.List(ctx, r, o)
		if err != nil {
			return "", err
		}
		for _, item := range page.Items {
			if err := all.put(item, false); err != nil {
				return "", err
			}
		}
		if o.Continue, rv = page.Continue, page.RV; o.Continue == "" {
			break
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subjects, b.namespace = all.subjects, all.namespace
	if !b.listed {
		b.listed = true
		close(b.ready)
	}
	return rv, nil
}

// put takes in a binding as it is now, or that it is gone.
func (b *bindings) put(object []byte, gone bool) error {
	var in binding
	if err := json.Unmarshal(object, &in); err != nil {
		return fmt.Errorf("a RoleBinding cannot be read: %w", err)
	}
	key, namespace := in.Metadata.Namespace+"/"+in.Metadata.Name, in.Metadata.Namespace
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subjects[key] {
		if b.namespace[s][namespace]--; b.namespace[s][namespace] > 0 {
			continue
		}
		if delete(b.namespace[s], namespace); len(b.namespace[s]) == 0 {
			delete(b.namespace, s)
		}
	}
	delete(b.subjects, key)
	if gone {
		return nil
	}
	b.subjects[key] = subjectsOf(&in)
	for _, s := range b.subjects[key] {
		if b.namespace[s] == nil {
			b.namespace[s] = map[string]int{}
		}
		b.namespace[s][namespace]++
	}
	return nil
}

// of are the namespaces in which an identity, or a group of it, is named.
func (b *bindings) of(ctx context.Context, id *access.Identity) ([]string, error) {
	timer := time.NewTimer(bindingsAwaited)
	defer timer.Stop()
	select {
	case <-b.ready:
	case <-timer.C:
		return nil, errors.New("its role bindings are not listed yet")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	add := func(subject string) {
		for ns := range b.namespace[subject] {
			list = append(list, ns)
		}
	}
	add("user " + id.User)
	for _, g := range id.Groups {
		add("group " + g)
	}
	return list, nil
}

// Namespaces are those in which the policy or a RoleBinding of the cluster grants something to the
// caller of ctx, sorted, each once. What it is, and whether it is in force, only the cluster can
// tell. An error says that nobody can tell yet.
func (a *Authority) Namespaces(ctx context.Context, clusterName string) ([]string, error) {
	return a.NamespacesOf(ctx, rpc.Caller(ctx), clusterName)
}

// NamespacesOf is [Authority.Namespaces] for somebody who is not the caller of a call.
func (a *Authority) NamespacesOf(ctx context.Context, id *access.Identity, clusterName string) ([]string, error) {
	policy := a.policy.get()
	list := policy.Namespaces(id)
	if c := a.cluster(clusterName); c != nil {
		if as := policy.In(c.name, id); as != nil {
			bound, err := c.bound.of(ctx, as)
			if err != nil {
				return nil, undecided(id, &access.Attributes{Verb: "list", Group: roleGroup, Resource: bindingsResource, Cluster: c.name}, err)
			}
			list = append(list, bound...)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
