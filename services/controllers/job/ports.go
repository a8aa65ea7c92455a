package job

import (
	"context"
	"errors"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Explainer is an error that has a text for the user, shorter than the one for
// the log.
type Explainer interface{ Explain() string }

// said is what an event tells the user about an error.
func said(err error) string {
	var e Explainer
	if errors.As(err, &e) {
		return e.Explain()
	}
	return err.Error()
}

// ErrLeaseLost is what a [Lease] answers when its token is stale or its
// deadline has passed by this process's clock. The sync ends at once and the key
// belongs to somebody else.
var ErrLeaseLost = errors.New("lease lost")

// Reader reads the index at the lease's barrier. Each answer is the JSON of
// objects as the API server sent them and the revision it was read at.
type Reader interface {
	// Job is nil when there is none.
	Job(ctx context.Context, namespace, name string) ([]byte, delta.Revision, error)
	// OwnedPods are the pods with an owner reference to uid.
	OwnedPods(ctx context.Context, namespace string, uid types.UID) ([][]byte, delta.Revision, error)
	// PodKeys are the names of the pods a label selector matches.
	PodKeys(ctx context.Context, namespace, selector string) ([]string, delta.Revision, error)
	// Pods are the named pods; those that are gone are left out.
	Pods(ctx context.Context, namespace string, names []string) ([][]byte, delta.Revision, error)
}

// Writer calls the API server, under the terms of the calls of package kube, whose
// predicates tell the errors apart: nothing is read from a cache, and a creation
// that may have reached the server is not repeated. Of what creations and patches
// answer only the metadata are there for sure.
type Writer interface {
	Job(ctx context.Context, namespace, name string) (*batchv1.Job, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// ListPods reads all pods a label selector matches, in one consistent list,
	// and the list's resource version.
	ListPods(ctx context.Context, namespace, selector string) ([]corev1.Pod, delta.RV, error)
	CreatePod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	// PatchPod applies a strategic merge patch; metadata.uid and
	// metadata.resourceVersion in it are preconditions.
	PatchPod(ctx context.Context, namespace, name string, patch []byte) (*corev1.Pod, error)
	// DeletePod deletes the pod with this UID. It returns the resource version of
	// the pod marked for deletion, or "" when the answer has none.
	DeletePod(ctx context.Context, namespace, name string, uid types.UID) (rv string, err error)
	// DeleteJob deletes the Job with this UID once its pods are gone (foreground).
	DeleteJob(ctx context.Context, namespace, name string, uid types.UID) error
	// PatchJobStatus applies a merge patch to the status sub-resource;
	// metadata.uid and metadata.resourceVersion in it are preconditions.
	PatchJobStatus(ctx context.Context, namespace, name string, patch []byte) (*batchv1.Job, error)
}

// Lease is the right to sync one key, bound to its token.
type Lease interface {
	// Alive is nil while the lease holds by this process's own clock, with time
	// left for one call; else it wraps ErrLeaseLost. It does no I/O.
	Alive() error
	// Save keeps up to 4 KiB with the key. A stale token is ErrLeaseLost.
	Save(ctx context.Context, state []byte) error
	// Expect replaces what is expected of the key. A stale token is ErrLeaseLost.
	Expect(ctx context.Context, owner string, creations, deletions []string) error
	// Observe takes names off.
	Observe(ctx context.Context, owner string, creations, deletions []string) error
}

// Expected is what an earlier sync expected and nobody has observed yet.
type Expected struct {
	Owner                string
	Creations, Deletions []string
	// Token is the lease it was stored under.
	Token uint64
}

// Request is one key to sync.
type Request struct {
	Key   string
	Token uint64
	// Attempt is how many leases of the key were handed out since it was last
	// settled. Above one, an earlier holder did not say what it had written.
	Attempt int64
	// State is what Save kept, nil for nothing.
	State    []byte
	Expected Expected
	Reader   Reader
	Lease    Lease
}

// Settle says how a lease is to be ended.
type Settle int

// Ways to end a lease.
const (
	// Forget: done, and the failures are forgotten.
	Forget Settle = iota
	// After: done, forgotten, and due again after Result.After.
	After
	// RateLimited: try again when the rate limiter allows.
	RateLimited
	// Lost: the lease is gone, or what it has to remember could not be saved: let
	// it run out, so that the next holder reads live.
	Lost
	// Dead: the key can never be synced.
	Dead
)

func (s Settle) String() string {
	return [...]string{"forget", "after", "rate_limited", "lost", "dead"}[s]
}

// Revisions are one revision for each collection.
type Revisions struct {
	Jobs, Pods delta.Revision
}

// Result is how a sync went.
type Result struct {
	Settle Settle
	After  time.Duration
	// ReadAt is what the index showed. The next sync of the key must read at or
	// above Wrote: it holds the highest revisions of the sync's own writes, and of
	// what it has seen. Zero where it neither read nor wrote.
	ReadAt, Wrote Revisions
	// Err is why, nil for a success.
	Err error
}
