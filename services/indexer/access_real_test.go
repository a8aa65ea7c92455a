package indexer_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// robot is a service account of a real API server, which decides about it, and its connection to a
// replica with a pod in its namespace.
type robot struct {
	indexv1.IndexServiceClient
	t   *testing.T
	api *kube.Client
	ns  string
}

var realAccounts = kube.Resource{Version: "v1", Name: "serviceaccounts", Namespaced: true}

var realBindings = kube.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Name: "rolebindings", Namespaced: true}

func newRobot(t *testing.T) *robot {
	t.Helper()
	file := os.Getenv("DELTAPLANE_KUBECONFIG")
	if file == "" {
		t.Skip("DELTAPLANE_KUBECONFIG is not set: `make kube` starts a real API server and prints one")
	}
	client, err := kube.Load(kube.Config{Kubeconfig: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	b := &robot{t: t, api: client, ns: fmt.Sprintf("watch-%d", time.Now().UnixNano()%1e9)}
	b.create(kube.Ref{Resource: kube.Resource{Version: "v1", Name: "namespaces"}}, fmt.Sprintf(`{"metadata":{"name":%q}}`, b.ns))
	b.create(kube.Ref{Resource: realAccounts, Namespace: b.ns}, `{"metadata":{"name":"robot"}}`)
	roles := realBindings
	roles.Name = "roles"
	b.create(kube.Ref{Resource: roles, Namespace: b.ns}, `{"metadata":{"name":"view"},"rules":[{"verbs":["list","watch"],"apiGroups":[""],"resources":["pods"]}]}`)
	var token struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	ref := realAccounts.Ref(b.ns, "robot")
	ref.Subresource = "token"
	if err := json.Unmarshal(b.create(ref, fmt.Sprintf(`{"spec":{"audiences":[%q]}}`, authority.Audience)), &token); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.start(t, pod(b.ns+"/a", options{}), pod("secret/a", options{}))
	r := w.index(t, func(c *indexer.Config) {
		c.Access.Clusters = []authority.Cluster{{Name: "dev", Kube: client}}
		c.Access.AuditFile = filepath.Join(t.TempDir(), "audit")
	})
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token.Status.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(r.addr, rpc.DialConfig{TokenFile: path, Dialer: r.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	b.IndexServiceClient = indexv1.NewIndexServiceClient(conn)
	return b
}

func (b *robot) create(ref kube.Ref, body string) []byte {
	b.t.Helper()
	answer, err := b.api.Create(b.t.Context(), ref, []byte(body), kube.WriteOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

// bind lets it list and watch the pods of its namespace.
func (b *robot) bind() (at time.Time) {
	b.t.Helper()
	at = time.Now()
	b.create(kube.Ref{Resource: realBindings, Namespace: b.ns}, fmt.Sprintf(`{"metadata":{"name":"view"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"view"},
		"subjects":[{"kind":"ServiceAccount","namespace":%q,"name":"robot"}]}`, b.ns))
	return at
}

func (b *robot) unbind() (at time.Time) {
	b.t.Helper()
	at = time.Now()
	if _, err := b.api.Delete(b.t.Context(), realBindings.Ref(b.ns, "view"), kube.DeleteOptions{}); err != nil {
		b.t.Fatal(err)
	}
	return at
}

// middle and longest are of what was measured.
func middle(list []time.Duration) (median, longest time.Duration) {
	slices.Sort(list)
	return list[len(list)/2], list[len(list)-1]
}

// TestRealABindingThatIsDeletedEndsItsWatches has a real API server decide about a service account.
// It logs how long a watch outlives its binding, and how soon a new binding is enough for one.
func TestRealABindingThatIsDeletedEndsItsWatches(t *testing.T) {
	t.Parallel()
	b := newRobot(t)
	var granted, withdrawn []time.Duration
	for range 20 {
		began := b.bind()
		eventually(t, func() string {
			stream, err := b.Watch(t.Context(), &indexv1.WatchRequest{Collection: "dev/pods.v1", Namespace: b.ns})
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				if c := rpc.Code(err); c != codes.PermissionDenied && !strings.Contains(err.Error(), "COLLECTION_NOT") && rpc.Reason(err) == "" {
					t.Fatal(err)
				}
				return err.Error()
			}
			granted = append(granted, time.Since(began))
			began = b.unbind()
			for err == nil {
				_, err = stream.Recv()
			}
			withdrawn = append(withdrawn, time.Since(began))
			if rpc.Code(err) != codes.PermissionDenied || rpc.Info(err).GetMetadata()["namespace"] != b.ns {
				t.Errorf("the watch ended with %v", err)
			}
			return ""
		})
	}
	median, longest := middle(granted)
	outlived, most := middle(withdrawn)
	t.Logf("a new binding counts after %v (median), %v (longest); a watch outlives its binding by %v, %v", median, longest, outlived, most)
}

// TestRealAServiceAccountThatIsDeletedEndsItsWatches logs how long a watch outlives its caller.
func TestRealAServiceAccountThatIsDeletedEndsItsWatches(t *testing.T) {
	t.Parallel()
	b := newRobot(t)
	b.bind()
	var stream indexv1.IndexService_WatchClient
	eventually(t, func() string {
		var err error
		if stream, err = b.Watch(t.Context(), &indexv1.WatchRequest{Collection: "dev/pods.v1", Namespace: b.ns}); err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	began := time.Now()
	if _, err := b.api.Delete(t.Context(), realAccounts.Ref(b.ns, "robot"), kube.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var err error
	for err == nil {
		_, err = stream.Recv()
	}
	if rpc.Code(err) != codes.Unauthenticated {
		t.Errorf("the watch ended with %v", err)
	}
	t.Logf("a watch outlives its service account by %v", time.Since(began))
}

// TestRealAWatchOfWhatIsVisibleFollowsItsBindings logs how soon an open watch has what a new
// binding shows, and has lost what a deleted one showed.
func TestRealAWatchOfWhatIsVisibleFollowsItsBindings(t *testing.T) {
	t.Parallel()
	b := newRobot(t)
	var stream indexv1.IndexService_WatchClient
	eventually(t, func() string { // the collection is found within moments
		var err error
		if stream, err = b.Watch(t.Context(), &indexv1.WatchRequest{Collection: "dev/pods.v1", VisibleOnly: true}); err == nil {
			var first *indexv1.WatchResponse
			if first, err = stream.Recv(); err == nil && first.GetInitialStateEnd() == nil {
				t.Fatalf("who may see nothing was sent %v", first)
			}
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	next := func() *indexv1.Event {
		for {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if events := resp.GetEvents().GetEvents(); len(events) == 1 && events[0].GetObject().GetKey() == b.ns+"/a" {
				return events[0]
			} else if len(events) > 0 || resp.GetGap() != nil {
				t.Fatalf("was sent %v", resp)
			}
		}
	}
	var shown, hidden []time.Duration
	for range 20 {
		began := b.bind()
		if e := next(); e.GetType() != deltav1.DeltaType_DELTA_TYPE_ADDED {
			t.Fatalf("a new binding shows %v", e)
		}
		shown = append(shown, time.Since(began))
		began = b.unbind()
		if e := next(); e.GetDeleteReason() != deltav1.DeleteReason_DELETE_REASON_NOT_VISIBLE {
			t.Fatalf("without the binding: %v", e)
		}
		hidden = append(hidden, time.Since(began))
	}
	median, longest := middle(shown)
	outlived, most := middle(hidden)
	t.Logf("a new binding shows its objects after %v (median), %v (longest); they outlive it by %v, %v", median, longest, outlived, most)
}
