package queue_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// Of team's queues the producer adds to those of "team-*", and the worker works on all of a team.
const policy = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: root}
rules: [{verbs: ["*"], apiGroups: [deltaplane.io], resources: [queues, backoffs]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: root}
roleRef: {kind: ClusterRole, name: root}
subjects: [{kind: User, name: root}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: team}
rules:
- {verbs: [add, work, get], apiGroups: [deltaplane.io], resources: [queues], resourceNames: ["team-*"]}
- {verbs: [list], apiGroups: [deltaplane.io], resources: [queues], resourceNames: ["team-*"]}
`

const teamBound = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: team}
roleRef: {kind: ClusterRole, name: team}
subjects: [{kind: Group, name: team}]
`

// team is a queue server that limits them, each with a rig of its own.
type team struct {
	policy              string
	root, alice, nobody *queuetest.Rig
	conn                *grpc.ClientConn // of nobody
}

func limited(t *testing.T) *team {
	t.Helper()
	dir := t.TempDir()
	c := &team{policy: filepath.Join(dir, "policy")}
	c.write(t, policy+teamBound)
	tokens := filepath.Join(dir, "tokens")
	put(t, tokens, "root-0123456789abcdef root\nalice-0123456789abcdef alice groups=team\nnobody-0123456789abcdef nobody\n")
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := queue.Config{RPC: rpc.ServerConfig{Auth: rpc.AuthConfig{TokenFile: tokens}}}
	cfg.Access.PolicyFile, cfg.Access.AuditFile = c.policy, filepath.Join(dir, "audit")
	r := queuetest.Serve(t, cfg, e)
	as := func(user string) *grpc.ClientConn {
		file := filepath.Join(dir, user)
		put(t, file, user+"-0123456789abcdef")
		conn, err := rpc.Dial(r.Addr, rpc.DialConfig{TokenFile: file})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	c.conn = as("nobody")
	c.root, c.alice, c.nobody = queuetest.Calling(as("root")), queuetest.Calling(as("alice")), queuetest.Calling(c.conn)
	for _, name := range []string{"team-a", "other"} {
		if _, err := c.root.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (c *team) write(t *testing.T, text string) {
	t.Helper()
	put(t, c.policy+".next", text)
	if err := os.Rename(c.policy+".next", c.policy); err != nil {
		t.Fatal(err)
	}
}

func wantDenied(t *testing.T, what string, err error, verb, name string) {
	t.Helper()
	if meta := rpc.Info(err).GetMetadata(); rpc.Code(err) != codes.PermissionDenied || meta["verb"] != verb || meta["name"] != name || meta["resource"] != "queues" {
		t.Errorf("%s: %v with %v, want it denied to %s %s", what, err, meta, verb, name)
	}
}

func TestACallerWithoutRightsIsRefusedByEveryMethod(t *testing.T) {
	t.Parallel()
	c := limited(t)
	own := map[string]bool{"ShutDown": true, "ShutDownWithDrain": true, "Produce": true} // of the caller's own session; batches are judged one by one
	for _, service := range []string{"QueueService", "QueueAdminService", "BackoffService"} {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("deltaplane.queue.v1." + service))
		if err != nil {
			t.Fatal(err)
		}
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			m := methods.Get(i)
			if own[string(m.Name())] {
				continue
			}
			if err := call(t.Context(), c.conn, m); rpc.Code(err) != codes.PermissionDenied || rpc.Reason(err) != "PERMISSION_DENIED" {
				t.Errorf("%s: %v", m.Name(), err)
			}
		}
	}
}

// call sends one request that names a queue where it can.
func call(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor) error {
	req := dynamicpb.NewMessage(m.Input())
	if f := m.Input().Fields().ByName("queue"); f != nil {
		req.Set(f, protoreflect.ValueOfString("team-a"))
	}
	var beside proto.Message
	switch m.Name() {
	case "ConfigureQueue":
		beside = &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: "team-a"}}
	case "Settle":
		beside = &queuev1.SettleRequest{Settlements: []*queuev1.Settlement{{Queue: "team-a", Key: "k", Token: 1}}}
	case "Extend":
		beside = &queuev1.ExtendRequest{Leases: []*queuev1.LeaseRef{{Queue: "team-a", Key: "k", Token: 1}}}
	case "Work":
		beside = &queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "s", Queues: []string{"team-a"}}}}
	}
	if beside != nil {
		data, err := proto.Marshal(beside)
		if err == nil {
			err = proto.UnmarshalOptions{Merge: true}.Unmarshal(data, req)
		}
		if err != nil {
			return err
		}
	}
	full := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	if !m.IsStreamingServer() {
		return conn.Invoke(ctx, full, req, dynamicpb.NewMessage(m.Output()))
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, full)
	if err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil {
		return err
	}
	return s.RecvMsg(dynamicpb.NewMessage(m.Output()))
}

func TestAQueueIsGrantedByThePrefixOfItsName(t *testing.T) {
	t.Parallel()
	c := limited(t)
	ctx := t.Context()
	items := []*queuev1.AddItem{{Key: "k"}}
	if _, err := c.alice.Add(ctx, &queuev1.AddRequest{Queue: "team-a", Items: items}); err != nil {
		t.Error(err)
	}
	_, err := c.alice.Add(ctx, &queuev1.AddRequest{Queue: "other", Items: items})
	wantDenied(t, "another team's queue", err, "add", "other")
	_, err = c.alice.PauseQueue(ctx, &queuev1.PauseQueueRequest{Queue: "team-a"})
	wantDenied(t, "an operation", err, "administer", "team-a")
	if _, err := c.alice.ListItems(ctx, &queuev1.ListItemsRequest{Queue: "team-a"}); err != nil {
		t.Error(err)
	}
	_, err = c.alice.ListItems(ctx, &queuev1.ListItemsRequest{Queue: "team-a", WithState: true})
	wantDenied(t, "what workers saved", err, "administer", "team-a")
	if all, err := c.alice.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: "team-"}); err != nil || len(all.GetQueues()) != 1 {
		t.Errorf("ListQueues = %v, %v", all, err)
	}
	_, err = c.alice.ListQueues(ctx, &queuev1.ListQueuesRequest{})
	wantDenied(t, "all queues", err, "list", "")
	_, err = c.alice.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: "t"})
	wantDenied(t, "a shorter prefix", err, "list", "t*")
}

func TestAQueueThatIsDeniedConcernsNoOtherOfTheStream(t *testing.T) {
	t.Parallel()
	c := limited(t)
	w, err := c.alice.TryWork(t, &queuev1.Hello{SessionId: "w", Partial: true, Queues: []string{"team-a", "other"}})
	if err != nil {
		t.Fatal(err)
	}
	if refused := w.Welcome.GetRefused(); len(refused) != 1 || refused[0].GetQueue() != "other" || codes.Code(refused[0].GetCode()) != codes.PermissionDenied {
		t.Errorf("refused %v", refused)
	}
	if _, err := c.alice.TryWork(t, &queuev1.Hello{SessionId: "v", Queues: []string{"other"}}); rpc.Code(err) != codes.PermissionDenied {
		t.Errorf("of one queue that is denied: %v", err)
	}
	p, err := c.alice.Produce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(m *queuev1.ProduceRequest) *queuev1.ProduceResponse {
		t.Helper()
		if err := p.Send(m); err != nil {
			t.Fatal(err)
		}
		resp, err := p.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: "p"}}})
	for id, x := range []struct {
		queue  string
		denied bool
	}{{"team-a", false}, {"other", true}, {"team-a", false}} {
		batch := &queuev1.ProduceBatch{RequestId: uint64(id + 1), Queue: x.queue, Ops: []*queuev1.ProduceOp{{Key: "k"}}}
		got := send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: batch}}).GetProduced()
		if denied := codes.Code(got.GetError().GetCode()) == codes.PermissionDenied; denied != x.denied || !x.denied && got.GetError() != nil {
			t.Errorf("batch for %s: %v", x.queue, got)
		}
	}
}

func TestAWorkerThatLosesTheRightIsCutOff(t *testing.T) {
	t.Parallel()
	c := limited(t)
	w, err := c.alice.TryWork(t, &queuev1.Hello{SessionId: "w", Queues: []string{"team-a"}})
	if err != nil {
		t.Fatal(err)
	}
	w.Give(1)
	if _, err := c.root.Add(t.Context(), &queuev1.AddRequest{Queue: "team-a", Items: []*queuev1.AddItem{{Key: "k"}}}); err != nil {
		t.Fatal(err)
	}
	queuetest.Wait(t, w.Leases)
	if _, err := c.root.Add(t.Context(), &queuev1.AddRequest{Queue: "team-a", Items: []*queuev1.AddItem{{Key: "l"}}}); err != nil {
		t.Fatal(err)
	}
	held, err := c.alice.Get(t.Context(), &queuev1.GetRequest{Queue: "team-a", SessionId: "g", Wait: queuetest.Seconds(10)})
	if err != nil || len(held.GetLeases()) != 1 {
		t.Fatalf("Get = %v, %v", held, err)
	}
	c.write(t, policy)
	if err := queuetest.Wait(t, w.End); rpc.Code(err) != codes.PermissionDenied {
		t.Errorf("the stream ended with %v", err)
	}
	_, err = c.alice.Extend(t.Context(), &queuev1.ExtendRequest{SessionId: "g"})
	wantDenied(t, "Extend of all that the session holds", err, "work", "team-a")
	_, err = c.alice.Settle(t.Context(), &queuev1.SettleRequest{SessionId: "g", Settlements: []*queuev1.Settlement{
		{Queue: "team-a", Key: "l", Token: held.GetLeases()[0].GetToken(), Outcome: queuetest.Done},
	}})
	wantDenied(t, "Settle", err, "work", "team-a")
}
