package explain_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/explain"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// part answers calls by what they ask; what it answers with nil hangs.
type part func(request any) proto.Message

// Invoke implements [grpc.ClientConnInterface].
func (p part) Invoke(ctx context.Context, _ string, request, reply any, _ ...grpc.CallOption) error {
	answer := p(request)
	if answer == nil || ctx.Err() != nil {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	proto.Merge(reply.(proto.Message), answer)
	return nil
}

// NewStream implements [grpc.ClientConnInterface].
func (part) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	panic("nothing is streamed")
}

// hangs is a part that takes calls and does not answer.
func hangs(any) proto.Message { return nil }

// queues are some that hold every key, of which some hang.
func queues(count, hanging int) part {
	return func(request any) proto.Message {
		switch r := request.(type) {
		case *queuev1.ListQueuesRequest:
			all := &queuev1.ListQueuesResponse{}
			for n := range count {
				all.Queues = append(all.Queues, &queuev1.QueueStatus{Config: &queuev1.QueueConfig{Name: fmt.Sprintf("dev/q%02d", n)}})
			}
			return all
		case *queuev1.InspectRequest:
			if r.GetQueue() < fmt.Sprintf("dev/q%02d", hanging) {
				return nil
			}
			return &queuev1.InspectResponse{Item: &queuev1.Item{Key: r.GetKey(), State: queuev1.State_STATE_READY}}
		}
		return nil
	}
}

// pods is an index that has one, of an owner and a node.
func pods(request any) proto.Message {
	if _, get := request.(*indexv1.GetRequest); get {
		return &indexv1.GetResponse{Object: &indexv1.Object{
			ResourceVersion: "7", Payload: []byte(`{"metadata":{"ownerReferences":[{"name":"own"}]},"spec":{"nodeName":"node-1"}}`),
		}}
	}
	return &indexv1.ListCollectionsResponse{}
}

func mirrors(any) proto.Message { return &reflectorv1.ListReflectionsResponse{} }

// ask returns what is known of an object, as "queue key" of each answer and as silences.
func ask(t *testing.T, queue, index, reflector part) (woken, silent string) {
	t.Helper()
	p := &explain.Parts{
		Queue: explain.Part{Address: "Q", Conn: queue}, Index: explain.Part{Address: "I", Conn: index}, Reflector: explain.Part{Address: "R", Conn: reflector},
		Timeout: time.Second,
	}
	o, err := p.Object(t.Context(), "dev/pods.v1", "ns/pod")
	if err != nil {
		t.Fatal(err)
	}
	var w, s strings.Builder
	for _, a := range o.Queues {
		fmt.Fprintf(&w, "%s %s, ", a.Queue, a.Key)
	}
	for _, one := range o.Silent {
		fmt.Fprintf(&s, "%s: %s\n", one.Part, one.Why)
	}
	return w.String(), s.String()
}

func TestQueuesAreAskedWhileOtherPartsHang(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		index, reflector part
		woken, silent    string
	}{
		"all answer":          {pods, mirrors, "dev/q00 node-1, dev/q00 ns/own, dev/q00 ns/pod, ", ""},
		"the reflector hangs": {pods, hangs, "dev/q00 node-1, dev/q00 ns/own, dev/q00 ns/pod, ", "reflector: R: no answer within 1s\n"},
		"the index hangs":     {hangs, mirrors, "dev/q00 ns/pod, ", "index: I: no answer within 1s\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if woken, silent := ask(t, queues(1, 0), c.index, c.reflector); woken != c.woken || silent != c.silent {
					t.Errorf("woken %q, silent %q", woken, silent)
				}
			})
		})
	}
}

func TestQueuesThatDoNotAnswerAreCounted(t *testing.T) {
	t.Parallel()
	for hanging, want := range map[int]string{
		1: "queue: dev/q00: no answer within 1s\n",
		5: "queue: dev/q00: no answer within 1s; nor did 4 others of 40 queues\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			woken, silent := ask(t, queues(40, hanging), pods, mirrors)
			if silent != want || strings.Count(woken, "ns/pod,") != 40-hanging {
				t.Errorf("woken %q, silent %q", woken, silent)
			}
		})
	}
}
