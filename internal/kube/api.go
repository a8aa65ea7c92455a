package kube

import "context"

// The calls to the API server, one interface each: who makes some of them declares an interface of
// those, [Client] has them all. Nothing they answer comes from a cache, and a call is sent at most
// once. Objects pass as the JSON that the server sent; lists leave kind and apiVersion of built-in
// types out of their items. The errors are distinguished by the predicates of this package; whether
// a write was done is not known after one that [IsUnresolved].
type (
	// Getter reads one object.
	Getter interface {
		Get(ctx context.Context, ref Ref) ([]byte, error)
	}
	// Lister reads one page of a collection.
	Lister interface {
		List(ctx context.Context, r Resource, o ListOptions) (Page, error)
	}
	// EachLister is a Lister that hands a page over while it arrives.
	EachLister interface {
		ListEach(ctx context.Context, r Resource, o ListOptions, begin func(Page) error, item func([]byte) error) (Page, error)
	}
	// Creator creates an object, or posts to a subresource.
	Creator interface {
		Create(ctx context.Context, ref Ref, body []byte, o WriteOptions) ([]byte, error)
	}
	// Updater replaces an object.
	Updater interface {
		Update(ctx context.Context, ref Ref, body []byte, o WriteOptions) ([]byte, error)
	}
	// Patcher changes an object or its status. UID and resource version in a patch are preconditions.
	Patcher interface {
		Patch(ctx context.Context, ref Ref, t PatchType, patch []byte, o WriteOptions) ([]byte, error)
	}
	// Deleter deletes an object under preconditions.
	Deleter interface {
		Delete(ctx context.Context, ref Ref, o DeleteOptions) ([]byte, error)
	}
	// EventRecorder takes Kubernetes Events to write, without waiting. [Recorder] is one.
	EventRecorder interface {
		Event(about Involved, typ, reason, message string)
	}
)

var _ interface {
	Getter
	Lister
	EachLister
	Creator
	Updater
	Patcher
	Deleter
} = (*Client)(nil)

// Resources that more than one controller works on.
var (
	Pods   = Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	Nodes  = Resource{Version: "v1", Name: "nodes", Kind: "Node"}
	Jobs   = Resource{Group: "batch", Version: "v1", Name: "jobs", Kind: "Job", Namespaced: true}
	Leases = Resource{Group: "coordination.k8s.io", Version: "v1", Name: "leases", Kind: "Lease", Namespaced: true}
)

// NodeLeaseNamespace holds the leases that nodes renew.
const NodeLeaseNamespace = "kube-node-lease"

// Ref names an object of the resource; namespace is empty for one of the cluster.
func (r Resource) Ref(namespace, name string) Ref {
	return Ref{Resource: r, Namespace: namespace, Name: name}
}

// Involved names an object of the resource for Events.
func (r Resource) Involved(namespace, name, uid string) Involved {
	return Involved{APIVersion: r.APIVersion(), Kind: r.Kind, Namespace: namespace, Name: name, UID: uid}
}

// Status names the object's status.
func (r Ref) Status() Ref {
	r.Subresource = "status"
	return r
}
