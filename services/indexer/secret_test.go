package indexer_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/seal"
	"github.com/deltaplane/deltaplane/internal/seal/sealtest"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// lists lets alice list and watch pods of the namespace web, and get none of them.
const lists = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: list, namespace: web}
rules: [{verbs: [list, watch], apiGroups: [""], resources: [pods]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: alice, namespace: web}
roleRef: {kind: Role, name: list}
subjects: [{kind: User, name: alice}]
`

// The rights are the same on a replica that encrypts pods and on one that encrypts nothing.
func TestContentOfEncryptedResourcesTakesTheRightToGetIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("web/b", options{}), pod("default/a", options{}))
	keys, _ := sealtest.Open(t, sealtest.Line())
	encrypting := w.limitedBy(t, lists, func(c *indexer.Config) { c.Encryption = seal.Policy{Keys: keys, Resources: []string{"pods"}} })
	w.serve(t, encrypting)
	open := w.limited(t, lists)
	w.serve(t, open)

	const c = "dev/pods.v1"
	web, onlyKeys, ctx := []string{"web"}, indexv1.View_VIEW_KEYS, as(t.Context(), "alice")
	watch := func(l *limited, req *indexv1.WatchRequest) error {
		stream, err := l.Watch(ctx, req)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for name, tc := range map[string]struct {
		call    func(l *limited) error
		content bool
	}{
		"objects": {content: true, call: func(l *limited) error {
			_, err := l.List(ctx, &indexv1.ListRequest{Collection: c, Namespaces: web})
			return err
		}},
		"their keys": {call: func(l *limited) error {
			_, err := l.List(ctx, &indexv1.ListRequest{Collection: c, Namespaces: web, View: onlyKeys})
			return err
		}},
		"their metadata, where annotations may hold all": {content: true, call: func(l *limited) error {
			_, err := l.List(ctx, &indexv1.ListRequest{Collection: c, Namespaces: web, View: indexv1.View_VIEW_METADATA})
			return err
		}},
		"a mask": {content: true, call: func(l *limited) error {
			_, err := l.List(ctx, &indexv1.ListRequest{Collection: c, Namespaces: web, FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"kind"}}})
			return err
		}},
		"keys by a field": {content: true, call: func(l *limited) error {
			_, err := l.List(ctx, &indexv1.ListRequest{Collection: c, Namespaces: web, View: onlyKeys, FieldSelector: "status.phase=Running"})
			return err
		}},
		"keys by a name": {call: func(l *limited) error {
			_, err := l.List(ctx, &indexv1.ListRequest{Collection: c, Namespaces: web, View: onlyKeys, FieldSelector: "metadata.name=b"})
			return err
		}},
		"objects of a namespace by the index": {content: true, call: func(l *limited) error {
			_, err := l.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: c, Index: "namespace", Values: web})
			return err
		}},
		"keys of a namespace by the index": {call: func(l *limited) error {
			_, err := l.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: c, Index: "namespace", Value: "web"})
			return err
		}},
		"keys by an index of content": {content: true, call: func(l *limited) error {
			_, err := l.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: c, Index: "node", Values: []string{"n1"}, Namespaces: web, View: onlyKeys})
			return err
		}},
		"a count": {call: func(l *limited) error {
			_, err := l.Count(ctx, &indexv1.CountRequest{Collection: c, Namespaces: web})
			return err
		}},
		"a count by a field": {content: true, call: func(l *limited) error {
			_, err := l.Count(ctx, &indexv1.CountRequest{Collection: c, Namespaces: web, FieldSelector: "status.phase=Running"})
			return err
		}},
		"a watch": {content: true, call: func(l *limited) error { return watch(l, &indexv1.WatchRequest{Collection: c, Namespaces: web}) }},
		"a watch of keys": {call: func(l *limited) error {
			return watch(l, &indexv1.WatchRequest{Collection: c, Namespaces: web, View: onlyKeys})
		}},
	} {
		if err := tc.call(open); err != nil {
			t.Errorf("%s, where nothing is encrypted: %v", name, err)
		}
		err := tc.call(encrypting)
		refused := rpc.Code(err) == codes.PermissionDenied && rpc.Info(err).GetMetadata()["verb"] == "get"
		if refused != tc.content || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	seen := func(view indexv1.View) int {
		resp, err := encrypting.List(ctx, &indexv1.ListRequest{Collection: c, VisibleOnly: true, View: view})
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.GetObjects())
	}
	if n := seen(indexv1.View_VIEW_FULL); n != 0 {
		t.Errorf("%d objects are visible", n)
	}
	if n := seen(onlyKeys); n != 1 {
		t.Errorf("%d keys are visible, want that of web", n)
	}
}
