package reflector_test

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/goldentest"
)

func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	svc, tel, _ := startSeen(t, quick(), clientOf(t, newFleet(t).URL), embeddedtest.NATS(t).URL(), logs(t))
	reflection(t, dial(t, svc), "pods", "pods are watched", watching)
	goldentest.Metrics(t, "metrics.txt", tel.Registry)
}
