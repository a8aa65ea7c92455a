package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func TestOtherMessagesPassThroughTheCodec(t *testing.T) {
	t.Parallel()
	c := newCodec()
	want := &indexv1.CountResponse{Count: 7}
	parts, err := c.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &indexv1.CountResponse{}
	if err := c.Unmarshal(parts, got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, got) {
		t.Errorf("another message is %v, want %v", got, want)
	}
	if c.Name() != "proto" {
		t.Errorf("codec is called %q, so stock clients cannot read it", c.Name())
	}
}

func TestEveryMethodIsServedByItsNameInTheContract(t *testing.T) {
	t.Parallel()
	for i, m := range indexv1.IndexService_ServiceDesc.Methods {
		if serviceDesc.Methods[i].MethodName != m.MethodName {
			t.Errorf("method %d is %s, want %s", i, serviceDesc.Methods[i].MethodName, m.MethodName)
		}
	}
	if len(serviceDesc.Streams) != len(indexv1.IndexService_ServiceDesc.Streams) || serviceDesc.ServiceName != indexv1.IndexService_ServiceDesc.ServiceName {
		t.Error("the description lost a stream or its name")
	}
}
