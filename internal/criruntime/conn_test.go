package criruntime_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

func TestCallsWithoutTheWireShareNothingAndAnswerAsGRPCDoes(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	id := n.sandbox(map[string]string{"note": "a"})
	for range 2 { // what the caller does to an answer is no business of the runtime
		list, err := n.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(list.GetItems()) != 1 || list.GetItems()[0].GetAnnotations()["note"] != "a" {
			t.Fatalf("ListPodSandbox() = %v, %v, want the one sandbox as it was made", list, err)
		}
		list.Items[0].Annotations["note"] = "b"
		list.Items[0].Id = "x"
	}
	if _, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("PodSandboxStatus() of nobody = %v, want NotFound", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.PodSandboxStatus(ended, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id}); status.Code(err) != codes.Canceled {
		t.Errorf("PodSandboxStatus() once the context ended = %v, want Canceled", err)
	}
	err := n.server.Conn().Invoke(t.Context(), "/runtime.v1.RuntimeService/NoSuch", &runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("Invoke() of no method = %v, want Unimplemented", err)
	}
}
