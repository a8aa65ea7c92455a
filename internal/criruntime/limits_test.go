package criruntime_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

func TestTimesBeyondAllMeasureAreNotOverAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, criruntime.Config{})
		id := n.run(map[string]string{criruntime.RunSecondsAnnotation: "2562047h", criruntime.IgnoreTermAnnotation: "true"})
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		if _, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 1<<63 - 1}); err == nil {
			t.Error("StopContainer() = nil within a day")
		}
		if got := n.status(id); got.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("%v after a day, want it to run for centuries", got.State)
		}
	})
}
