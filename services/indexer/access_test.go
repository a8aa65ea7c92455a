package indexer_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	accessv1 "github.com/deltaplane/deltaplane/proto/deltaplane/access/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

const policyHead = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: all}
rules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: all}
roleRef: {kind: ClusterRole, name: all}
subjects: [{kind: User, name: root}]
---
`

// inWeb lets alice read pods of the namespace web.
const inWeb = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: read, namespace: web}
rules: [{verbs: [get, list, watch], apiGroups: [""], resources: [pods]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: alice, namespace: web}
roleRef: {kind: Role, name: read}
subjects: [{kind: User, name: alice}]
`

// limited is a replica whose callers are limited by a policy.
type limited struct {
	*replica
	policy string // its file
}

func (w *world) limited(t *testing.T, policy string) *limited {
	t.Helper()
	return w.limitedBy(t, policy, func(*indexer.Config) {})
}

// limitedBy is limited with other settings too.
func (w *world) limitedBy(t *testing.T, policy string, change func(*indexer.Config)) *limited {
	t.Helper()
	dir := t.TempDir()
	l := &limited{policy: filepath.Join(dir, "policy.yaml")}
	l.write(t, policy)
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte("root-0123456789abcdef root\nalice-0123456789abcdef alice\nnobody-0123456789abcdef nobody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.replica = w.index(t, func(c *indexer.Config) {
		change(c)
		c.RPC.Auth.TokenFile, c.Access.PolicyFile, c.Access.AuditFile = tokens, l.policy, filepath.Join(dir, "audit")
	})
	return l
}

func (l *limited) write(t *testing.T, policy string) {
	t.Helper()
	next := l.policy + ".next"
	if err := os.WriteFile(next, []byte(policyHead+policy), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, l.policy); err != nil {
		t.Fatal(err)
	}
}

func as(ctx context.Context, user string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+user+"-0123456789abcdef")
}

// serve waits until the replica has what was written.
func (w *world) serve(t *testing.T, l *limited) {
	t.Helper()
	eventually(t, func() string {
		resp, err := l.Count(as(t.Context(), "root"), &indexv1.CountRequest{Collection: "dev/pods.v1", Consistency: at(w.w.Epoch(), w.rv)})
		if err != nil {
			return err.Error()
		}
		_ = resp
		return ""
	})
}

// everyMethod calls each method of the service, streams with one message, with what a request needs
// to get as far as the collection.
func everyMethod(ctx context.Context, t *testing.T, conn *grpc.ClientConn, call func(name string, err error)) {
	t.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName("deltaplane.index.v1.IndexService")
	if err != nil {
		t.Fatal(err)
	}
	methods := d.(protoreflect.ServiceDescriptor).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		req := dynamicpb.NewMessage(m.Input())
		set := func(field, value string) {
			if f := m.Input().Fields().ByName(protoreflect.Name(field)); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
				req.Set(f, protoreflect.ValueOfString(value))
			}
		}
		set("collection", "dev/pods.v1")
		set("key", "default/a")
		set("index", "owner")
		set("value", "x")
		set("index_value", "x")
		fill(t, req)
		full := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		if m.Name() == "Query" {
			continue // see below
		}
		if !m.IsStreamingServer() {
			call(string(m.Name()), conn.Invoke(ctx, full, req, dynamicpb.NewMessage(m.Output())))
			continue
		}
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, full)
		if err == nil {
			if err = stream.SendMsg(req); err == nil && stream.CloseSend() == nil {
				err = stream.RecvMsg(dynamicpb.NewMessage(m.Output()))
			}
		}
		call(string(m.Name()), err)
	}
}

// fill adds to single requests what they are refused without.
func fill(t *testing.T, req *dynamicpb.Message) {
	t.Helper()
	var beside proto.Message
	switch req.Descriptor().Name() {
	case "BatchGetRequest":
		beside = &indexv1.BatchGetRequest{Keys: []string{"default/a", "web/b"}}
	case "ByIndexRequest":
		beside = &indexv1.ByIndexRequest{Values: []string{"x"}}
	case "IndexRequest":
		beside = &indexv1.IndexRequest{Object: []byte(`{"metadata":{"name":"a"}}`)}
	case "AddIndexersRequest":
		beside = &indexv1.AddIndexersRequest{Indexers: []*indexv1.IndexerDefinition{{Name: "x", Source: &indexv1.IndexerDefinition_Label{Label: "app"}}}}
	case "RemoveIndexersRequest":
		beside = &indexv1.RemoveIndexersRequest{Names: []string{"x"}}
	default:
		return
	}
	data, err := proto.Marshal(beside)
	if err == nil {
		err = proto.UnmarshalOptions{Merge: true}.Unmarshal(data, req)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestACallerWithoutRightsIsRefusedByEveryMethod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("default/a", options{}), pod("web/b", options{}))
	l := w.limited(t, inWeb)
	w.serve(t, l)
	open := map[string]bool{
		"ListCollections": true, // which shows an outline
		"WaitForRevision": true, // revisions are no secret
	}
	everyMethod(as(t.Context(), "nobody"), t, l.connect(t), func(name string, err error) {
		if !open[name] && (rpc.Code(err) != codes.PermissionDenied || rpc.Reason(err) != "PERMISSION_DENIED" || rpc.Info(err).GetMetadata()["verb"] == "") {
			t.Errorf("%s: %v", name, err)
		}
	})
	everyMethod(t.Context(), t, l.connect(t), func(name string, err error) {
		if rpc.Code(err) != codes.Unauthenticated {
			t.Errorf("%s without a name: %v", name, err)
		}
	})
	everyMethod(as(t.Context(), "root"), t, l.connect(t), func(name string, err error) {
		if code := rpc.Code(err); code == codes.PermissionDenied || code == codes.Unauthenticated {
			t.Errorf("%s of somebody who may do everything: %v", name, err)
		}
	})
}

func TestACallerReadsTheNamespaceItMayReadAndNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("default/a", options{node: "n1"}), pod("web/b", options{node: "n1"}), pod("web/c", options{}))
	l := w.limited(t, inWeb)
	w.serve(t, l)
	ctx := as(t.Context(), "alice")
	const c = "dev/pods.v1"
	denied := func(what string, err error, namespace string) {
		t.Helper()
		if meta := rpc.Info(err).GetMetadata(); rpc.Code(err) != codes.PermissionDenied || meta["namespace"] != namespace || meta["resource"] != "pods" || meta["cluster"] != "dev" {
			t.Errorf("%s: %v with %v", what, err, meta)
		}
	}
	list, err := l.List(ctx, &indexv1.ListRequest{Collection: c, Namespace: "web"})
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, "List", list.GetObjects(), "web/b", "web/c")
	_, err = l.List(ctx, &indexv1.ListRequest{Collection: c})
	denied("List of all", err, "")
	_, err = l.List(ctx, &indexv1.ListRequest{Collection: c, Namespaces: []string{"web", "default"}})
	denied("List of two", err, "default")
	_, err = l.List(ctx, &indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}})
	denied("List of all clusters", err, "")
	if _, err := l.Get(ctx, &indexv1.GetRequest{Collection: c, Key: "web/b"}); err != nil {
		t.Error(err)
	}
	_, err = l.Get(ctx, &indexv1.GetRequest{Collection: c, Key: "default/a"})
	denied("Get", err, "default")
	_, err = l.Get(ctx, &indexv1.GetRequest{Collection: c, Key: "default/missing"})
	denied("Get of what is not there", err, "default")
	if _, err := l.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: c, Keys: []string{"web/b", "web/c", "web/missing"}}); err != nil {
		t.Error(err)
	}
	_, err = l.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: c, Keys: []string{"web/b", "default/a"}})
	denied("BatchGet", err, "default")
	if n, err := l.Count(ctx, &indexv1.CountRequest{Collection: c, Namespace: "web"}); err != nil || n.GetCount() != 2 {
		t.Errorf("Count = %v, %v", n, err)
	}
	_, err = l.Count(ctx, &indexv1.CountRequest{Collection: c})
	denied("Count", err, "")
	by, err := l.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: c, Index: "node", Values: []string{"n1"}, Namespaces: []string{"web"}})
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, "ByIndex", by.GetObjects(), "web/b")
	_, err = l.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: c, Index: "node", Values: []string{"n1"}})
	denied("ByIndex", err, "")
	if by, err = l.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: c, Index: "namespace", Values: []string{"web"}}); err != nil || len(by.GetObjects()) != 2 {
		t.Errorf("ByIndex of the namespace: %v, %v", by, err)
	}
	if keys, err := l.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: c, Index: "namespace", Value: "web"}); err != nil || len(keys.GetKeys()) != 2 {
		t.Errorf("IndexKeys of the namespace: %v, %v", keys, err)
	}
	_, err = l.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: c, Index: "namespace", Value: "default"})
	denied("IndexKeys", err, "default")
	_, err = l.ListIndexFuncValues(ctx, &indexv1.ListIndexFuncValuesRequest{Collection: c, Index: "namespace"})
	denied("ListIndexFuncValues", err, "")
	all, err := l.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil || len(all.GetCollections()) != 1 || !all.GetCollections()[0].GetSynced() || all.GetCollections()[0].GetObjects() != 0 || all.GetCollections()[0].GetBytes() != 0 {
		t.Errorf("ListCollections = %v, %v; want an outline that counts nothing", all, err)
	}
	access := accessv1.NewAccessServiceClient(l.connect(t))
	if who, err := access.WhoAmI(ctx, &accessv1.WhoAmIRequest{}); err != nil || who.GetIdentity().GetUser() != "alice" || !who.GetLimited() || who.GetSource() != accessv1.Source_SOURCE_TOKEN_FILE {
		t.Errorf("WhoAmI = %v, %v", who, err)
	}
	for namespace, want := range map[string]bool{"web": true, "default": false, "": false} {
		if can, err := access.CanI(ctx, &accessv1.CanIRequest{Verb: "list", Resource: "pods", Namespace: namespace}); err != nil || can.GetAllowed() != want {
			t.Errorf("CanI in %q = %v, %v", namespace, can, err)
		}
	}
}

func TestAQueryMeansNoMoreThanItsParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("default/a", options{}), pod("web/b", options{}))
	l := w.limited(t, inWeb)
	w.serve(t, l)
	stream, err := l.Query(as(t.Context(), "alice"))
	if err != nil {
		t.Fatal(err)
	}
	const c = "dev/pods.v1"
	requests := []*indexv1.QueryRequest{
		{Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: c, Key: "web/b"}}},
		{Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: c, Key: "default/a"}}},
		{Call: &indexv1.QueryRequest_List{List: &indexv1.ListRequest{Collection: c, Namespace: "web"}}},
		{Call: &indexv1.QueryRequest_List{List: &indexv1.ListRequest{Collection: c}}},
		{Call: &indexv1.QueryRequest_Count{Count: &indexv1.CountRequest{Collection: c}}},
	}
	want := map[uint64]bool{0: true, 2: true}
	for i, r := range requests {
		r.Tag = uint64(i)
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	for range requests {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e := resp.GetError(); (e == nil) != want[resp.GetTag()] || e != nil && (codes.Code(e.GetCode()) != codes.PermissionDenied || e.GetReason() != "PERMISSION_DENIED") {
			t.Errorf("call %d: %v", resp.GetTag(), resp)
		}
	}
}

func TestAWatchEndsWhenItsCallerLosesTheRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("web/b", options{}))
	l := w.limited(t, inWeb)
	w.serve(t, l)
	open := func(user string) grpc.ServerStreamingClient[indexv1.WatchResponse] {
		stream, err := l.Watch(as(t.Context(), user), &indexv1.WatchRequest{Collection: "dev/pods.v1", Namespace: "web"})
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	alice, root := open("alice"), open("root")
	l.write(t, "")
	for {
		_, err := alice.Recv()
		if err == nil {
			continue
		}
		if rpc.Code(err) != codes.PermissionDenied || rpc.Info(err).GetMetadata()["namespace"] != "web" {
			t.Errorf("the watch ended with %v", err)
		}
		break
	}
	w.put(t, pod("web/c", options{}))
	for seen := false; !seen; {
		resp, err := root.Recv()
		if err != nil {
			t.Fatalf("the watch of somebody who keeps the right: %v", err)
		}
		seen = strings.Contains(resp.String(), "web/c")
	}
	l.write(t, inWeb)
	eventually(t, func() string {
		if _, err := l.List(as(t.Context(), "alice"), &indexv1.ListRequest{Collection: "dev/pods.v1", Namespace: "web"}); err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestAWaitThatOutlastsItsCallersRightAnswersNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("web/b", options{}))
	l := w.limited(t, inWeb)
	w.serve(t, l)
	done := make(chan error, 1)
	go func() {
		consistency := at(w.w.Epoch(), w.rv+1)
		consistency.Timeout = durationpb.New(20 * time.Second)
		_, err := l.Get(as(t.Context(), "alice"), &indexv1.GetRequest{Collection: "dev/pods.v1", Key: "web/b", Consistency: consistency})
		done <- err
	}()
	l.write(t, "")
	eventually(t, func() string {
		if _, err := l.Get(as(t.Context(), "alice"), &indexv1.GetRequest{Collection: "dev/pods.v1", Key: "web/b"}); rpc.Code(err) != codes.PermissionDenied {
			return "she still may"
		}
		return ""
	})
	w.put(t, pod("web/b", options{phase: "Running"}))
	if err := <-done; rpc.Code(err) != codes.PermissionDenied {
		t.Errorf("the answer of the wait: %v", err)
	}
}

func TestWhatAnIndexLacksIsNotToldToThoseWhoSeeAPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("web/b", options{}), pod("secret/x", options{}))
	l := w.limited(t, inWeb)
	w.serve(t, l)
	ctx := as(t.Context(), "root")
	_, err := l.AddIndexers(ctx, &indexv1.AddIndexersRequest{Collection: "dev/pods.v1", Indexers: []*indexv1.IndexerDefinition{
		{Name: "bad", Source: &indexv1.IndexerDefinition_Cel{Cel: `[object.spec.missing]`}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	req := &indexv1.ByIndexRequest{Collection: "dev/pods.v1", Index: "bad", Values: []string{"x"}, Namespaces: []string{"web"}}
	all, err := l.ByIndex(ctx, req)
	if err != nil || !strings.Contains(all.String(), "secret/x") {
		t.Fatalf("the index does not fail as this test needs: %v, %v", all, err)
	}
	some, err := l.ByIndex(as(t.Context(), "alice"), req)
	if err != nil || len(some.GetUnindexed()) != 1 || some.GetUnindexed()[0].GetCount() != 0 || strings.Contains(some.String(), "secret") {
		t.Errorf("alice gets %v, %v", some, err)
	}
	req.Strict = true
	_, err = l.ByIndex(as(t.Context(), "alice"), req)
	if rpc.Reason(err) != "INDEX_FAILED" || strings.Contains(err.Error(), "secret") || strings.Contains(rpc.Info(err).String(), "secret") {
		t.Errorf("strict: %v", err)
	}
}
