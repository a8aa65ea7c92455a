package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// seedWith adds messages and pieces of them.
func seedWith(f *testing.F, list ...proto.Message) {
	f.Helper()
	for _, m := range list {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)/2])
		f.Add(append(data, data...))
	}
}

// agree fails when the hand-written reading of a request and the generated one
// differ, in what they accept or in what they read.
func agree(t *testing.T, err error, got proto.Message, data []byte, want proto.Message) {
	t.Helper()
	wantErr := proto.Unmarshal(data, want)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("accepted with %v, by the generated code with %v", err, wantErr)
	}
	if err == nil && !proto.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

func FuzzGetRequestsAreReadLikeByTheGeneratedCode(f *testing.F) {
	seedWith(f, &indexv1.GetRequest{Collection: "pods", Key: "n/a", View: indexv1.View_VIEW_KEYS}, &indexv1.GetRequest{
		Key: "n/a", Consistency: &indexv1.Consistency{AtLeast: &deltav1.Revision{Epoch: 3, ResourceVersion: "7"}}, FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"a"}},
	})
	used := newGetRequest()
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &getRequest{}
		agree(t, r.decode(data), &r.GetRequest, data, &indexv1.GetRequest{})
		if used.seldom { // release keeps those out of the pool
			used = &getRequest{}
		} else {
			used.Collection, used.Key, used.View, used.Consistency = "", "", 0, nil
			used.scratch.reset()
		}
		agree(t, used.decode(data), &used.GetRequest, data, &indexv1.GetRequest{})
	})
}

func FuzzByIndexRequestsAreReadLikeByTheGeneratedCode(f *testing.F) {
	seedWith(f, &indexv1.ByIndexRequest{Collection: "pods", Index: "node", Values: []string{"a", "b"}, PageSize: -1, View: 2}, &indexv1.ByIndexRequest{
		Consistency: &indexv1.Consistency{AtLeast: &deltav1.Revision{Epoch: 3, ResourceVersion: "7"}}, PageToken: "x",
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &byIndexRequest{}
		agree(t, r.decode(data), &r.ByIndexRequest, data, &indexv1.ByIndexRequest{})
	})
}

func FuzzQueryRequestsAreReadOrRefused(f *testing.F) {
	seedWith(f, &indexv1.QueryRequest{Tag: 7, Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Key: "a"}}}, &indexv1.QueryRequest{Tag: 8, Call: &indexv1.QueryRequest_Cancel{Cancel: 7}})
	f.Fuzz(func(t *testing.T, data []byte) {
		var q queryRequest
		var want indexv1.QueryRequest
		if err := q.decode(data); err != nil || q.several || proto.Unmarshal(data, &want) != nil {
			return
		}
		if q.tag != want.GetTag() {
			t.Errorf("tag %d, want %d", q.tag, want.GetTag())
		}
		if (q.kind == 0) != (want.GetCall() == nil) {
			t.Errorf("a call of kind %d, want %v", q.kind, want.GetCall())
		}
		if q.kind == queryCancel && q.cancel != want.GetCancel() {
			t.Errorf("cancels %d, want %d", q.cancel, want.GetCancel())
		}
	})
}
