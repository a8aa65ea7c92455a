package controllers

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestMain(m *testing.M) {
	// Most of these tests wait: run more at once than there are processors, unless -parallel is set.
	_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	// A connection to a real API server outlives its client by a minute.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"))
}

// cluster runs a dev cluster without nodes until the test ends and returns a client of it.
func cluster(t *testing.T) *kube.Client {
	t.Helper()
	kc, err := kube.Load(kube.Config{URL: devclustertest.Start(t, devcluster.Config{}).URL()})
	if err != nil {
		t.Fatal(err)
	}
	return kc
}
