package indexer_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// wire sends messages and receives bytes.
type wire struct{}

func (wire) Name() string { return "proto" }

func (wire) Marshal(v any) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }

func (wire) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

// pairOf asks two replicas on one log the same, one of them over TLS.
type pairOf struct {
	t     *testing.T
	conns [2]*grpc.ClientConn
}

// agree compares what both answered, as it came over the wire. Generated code may
// write the fields in another order, but no more and no less: nothing is unknown,
// repeated, or longer than it need be.
func (p *pairOf) agree(what string, got [2][]byte, into proto.Message) {
	p.t.Helper()
	for i, over := range []string{"TCP", "TLS"} {
		if err := proto.Unmarshal(got[i], into); err != nil || len(got[i]) == 0 || len(got[i]) != proto.Size(into) {
			p.t.Errorf("%s over %s: %d bytes, generated code writes %d, %v: %.500s", what, over, len(got[i]), proto.Size(into), err, prototext.Format(into))
		}
	}
	if !bytes.Equal(got[0], got[1]) {
		p.t.Errorf("%s: %d bytes, over TLS %d, or others", what, len(got[0]), len(got[1]))
	}
}

func (p *pairOf) call(method string, req, into proto.Message) {
	p.t.Helper()
	var got [2][]byte
	for i, conn := range p.conns {
		if err := conn.Invoke(p.t.Context(), method, req, &got[i], grpc.ForceCodec(wire{})); err != nil {
			p.t.Fatalf("%s %v: %v", method, req, err)
		}
	}
	p.agree(fmt.Sprint(method, " ", req), got, into)
}

// open begins the same stream on both.
func (p *pairOf) open(name string) [2]grpc.ClientStream {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	p.t.Cleanup(cancel)
	var streams [2]grpc.ClientStream
	for i, conn := range p.conns {
		var err error
		desc := &grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true}
		if streams[i], err = conn.NewStream(ctx, desc, "/deltaplane.index.v1.IndexService/"+name, grpc.ForceCodec(wire{})); err != nil {
			p.t.Fatal(err)
		}
	}
	return streams
}

// turn sends a message on both, unless it is nil, and compares what comes next.
func (p *pairOf) turn(what string, streams [2]grpc.ClientStream, send, into proto.Message) {
	p.t.Helper()
	var got [2][]byte
	for i, s := range streams {
		if send != nil {
			if err := s.SendMsg(send); err != nil {
				p.t.Fatalf("%s: %v", what, err)
			}
		}
		if _, one := send.(*indexv1.WatchRequest); one {
			_ = s.CloseSend() // the server begins then
		}
		if err := s.RecvMsg(&got[i]); err != nil {
			p.t.Fatalf("%s: %v", what, err)
		}
	}
	p.agree(what, got, into)
}

func TestAnswersAreByteForByteTheSameOverTLS(t *testing.T) {
	t.Parallel()
	tls := certificate(t)
	w := newWorld(t)
	broken := pod("x/broken", options{node: "n1"})
	broken.Payload = []byte("x")
	w.start(t, append(fleet(), pod("big/pod", options{node: "n1", pad: 60_000}), broken)...)
	for _, tier := range []indexer.Tier{indexer.TierRaw, indexer.TierCompact} {
		p := &pairOf{t: t}
		for i := range p.conns {
			r := w.index(t, func(c *indexer.Config) {
				if c.Tier = tier; i == 1 {
					c.RPC.TLS = tls
				}
			})
			w.caughtUp(t, r)
			p.conns[i] = r.connect(t)
		}
		mask := &fieldmaskpb.FieldMask{Paths: []string{"metadata.name", "status"}}
		get := &indexv1.GetRequest{Collection: "pods", Key: "big/pod"}
		masked := &indexv1.GetRequest{Collection: "pods", Key: "a/one", FieldMask: mask}
		batch := &indexv1.BatchGetRequest{Collection: "pods", Keys: []string{"a/one", "x/y", "big/pod", "x/broken"}}
		all := &indexv1.ListRequest{Collection: "pods"}
		keys := &indexv1.ListRequest{Collection: "pods", View: indexv1.View_VIEW_KEYS}
		heads := &indexv1.ListRequest{Collection: "pods", View: indexv1.View_VIEW_METADATA}
		wide := &indexv1.ListRequest{Collection: "pods.v1", Clusters: []string{"*"}}
		by := &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"n1", "n2"}}
		like := &indexv1.IndexRequest{Collection: "pods", Index: "node", Object: []byte(`{"metadata":{"name":"x"},"spec":{"nodeName":"n1"}}`)}
		under := &indexv1.IndexKeysRequest{Collection: "pods", Index: "node", Value: "n1"}
		values := &indexv1.ListIndexFuncValuesRequest{Collection: "pods", Index: "node"}
		count := &indexv1.CountRequest{Collection: "pods", LabelSelector: "app"}

		p.call(indexv1.IndexService_Get_FullMethodName, get, &indexv1.GetResponse{})
		p.call(indexv1.IndexService_Get_FullMethodName, masked, &indexv1.GetResponse{})
		p.call(indexv1.IndexService_BatchGet_FullMethodName, batch, &indexv1.BatchGetResponse{})
		for _, req := range []*indexv1.ListRequest{all, keys, heads, wide} {
			p.call(indexv1.IndexService_List_FullMethodName, req, &indexv1.ListResponse{})
		}
		p.call(indexv1.IndexService_ByIndex_FullMethodName, by, &indexv1.ByIndexResponse{})
		p.call(indexv1.IndexService_Index_FullMethodName, like, &indexv1.IndexResponse{})
		p.call(indexv1.IndexService_IndexKeys_FullMethodName, under, &indexv1.IndexKeysResponse{})
		p.call(indexv1.IndexService_ListIndexFuncValues_FullMethodName, values, &indexv1.ListIndexFuncValuesResponse{})
		p.call(indexv1.IndexService_Count_FullMethodName, count, &indexv1.CountResponse{})

		query := p.open("Query")
		for i, req := range []*indexv1.QueryRequest{
			{Call: &indexv1.QueryRequest_Get{Get: get}},
			{Call: &indexv1.QueryRequest_Get{Get: masked}},
			{Call: &indexv1.QueryRequest_BatchGet{BatchGet: batch}},
			{Call: &indexv1.QueryRequest_List{List: all}},
			{Call: &indexv1.QueryRequest_List{List: heads}},
			{Call: &indexv1.QueryRequest_List{List: wide}},
			{Call: &indexv1.QueryRequest_ByIndex{ByIndex: by}},
			{Call: &indexv1.QueryRequest_Index{Index: like}},
			{Call: &indexv1.QueryRequest_IndexKeys{IndexKeys: under}},
			{Call: &indexv1.QueryRequest_ListIndexFuncValues{ListIndexFuncValues: values}},
			{Call: &indexv1.QueryRequest_Count{Count: count}},
		} {
			req.Tag = uint64(i + 1)
			p.turn(fmt.Sprint("Query ", req), query, req, &indexv1.QueryResponse{})
		}

		watch := p.open("Watch")
		req := &indexv1.WatchRequest{Collection: "pods", BookmarkInterval: durationpb.New(time.Hour)}
		p.turn("the state", watch, req, &indexv1.WatchResponse{})
		p.turn("the end of the state", watch, nil, &indexv1.WatchResponse{})
		w.put(t, pod("a/one", options{node: "n2"}))
		p.turn("an update", watch, nil, &indexv1.WatchResponse{})
		w.put(t, pod("big/pod", options{node: "n2", pad: 70_000}))
		p.turn("a large update", watch, nil, &indexv1.WatchResponse{})
		w.put(t, gone("big/pod"))
		p.turn("a deletion", watch, nil, &indexv1.WatchResponse{})
		w.put(t, pod("big/pod", options{node: "n1", pad: 60_000}))
		p.turn("an addition", watch, nil, &indexv1.WatchResponse{})
	}
}

// What waits to be sent must not become another answer's: many ask at once, for
// answers of all lengths, some compressed, some over TLS.
func TestAnswersToManyAreNotMixedUp(t *testing.T) {
	t.Parallel()
	tls := certificate(t)
	w := newWorld(t)
	records := fleet()
	for i := range 30 {
		r := pod(fmt.Sprintf("many/%s-%02d", strings.Repeat("n", 60), i), options{node: fmt.Sprint("m", i%3), pad: 400 * i})
		noise := make([]byte, 200*i) // or what is compressed would be short
		_, _ = rand.Read(noise)
		r.Payload = bytes.Replace(r.Payload, bytes.Repeat([]byte("x"), 400*i), hex.AppendEncode(nil, noise), 1)
		records = append(records, r)
	}
	w.start(t, records...)
	for _, tier := range []indexer.Tier{indexer.TierRaw, indexer.TierCompact} {
		r := w.index(t, func(c *indexer.Config) {
			if c.Tier = tier; tier == indexer.TierCompact {
				c.RPC.TLS = tls
			}
		})
		w.caughtUp(t, r)
		method := indexv1.IndexService_List_FullMethodName
		asked := []proto.Message{
			&indexv1.ListRequest{Collection: "pods", PageSize: 500},
			&indexv1.ListRequest{Collection: "pods", PageSize: 500, View: indexv1.View_VIEW_KEYS},
			&indexv1.ListRequest{Collection: "pods", PageSize: 500, View: indexv1.View_VIEW_METADATA},
			&indexv1.ListRequest{Collection: "pods", PageSize: 500, Namespaces: []string{"many"}},
			&indexv1.ListRequest{Collection: "pods", PageSize: 7},
		}
		first := r.connect(t)
		want := make([]*indexv1.ListResponse, len(asked))
		for i, req := range asked {
			want[i] = &indexv1.ListResponse{}
			if err := first.Invoke(t.Context(), method, req, want[i]); err != nil {
				t.Fatal(err)
			}
			want[i].NextPageToken = ""
		}
		var group errgroup.Group
		for c := range 4 {
			conn := first
			if c%2 == 1 {
				conn = r.connect(t)
			}
			for range 3 {
				group.Go(func() error {
					for n := range 10 {
						got := &indexv1.ListResponse{}
						i := (n + c) % len(asked)
						if err := conn.Invoke(t.Context(), method, asked[i], got); err != nil {
							return err
						}
						if got.NextPageToken = ""; !proto.Equal(got, want[i]) {
							return fmt.Errorf("%v: %d objects, or others than before", asked[i], len(got.GetObjects()))
						}
					}
					return nil
				})
			}
		}
		if err := group.Wait(); err != nil {
			t.Error(tier, err)
		}
	}
}
