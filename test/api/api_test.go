package api_test

import (
	"context"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/test/api"
)

// kubeconfigEnv names the kubeconfig of a real cluster to run the suite on as well.
const kubeconfigEnv = "DELTAPLANE_KUBECONFIG"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDevCluster(t *testing.T) {
	t.Parallel()
	c, err := devcluster.New(devcluster.Config{Listen: "127.0.0.1:0", FreshTimeout: 100 * time.Millisecond, BookmarkEvery: time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil on a clean stop", err)
		}
		transport.CloseIdleConnections()
	})
	<-c.Ready()
	api.Run(t, api.Target{URL: c.URL(), Client: &http.Client{Transport: transport}, Compact: c.Compact})
}

func TestRealAPIServer(t *testing.T) {
	t.Parallel()
	file := os.Getenv(kubeconfigEnv)
	if file == "" {
		t.Skipf("%s is not set: the suite runs on the dev cluster only (a real kube-apiserver: cd test/kube && go run ./cmd/kube up)", kubeconfigEnv)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	cfg.NextProtos = []string{"http/1.1"} // a connection per watch ends with its test
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	api.Run(t, api.Target{URL: cfg.Host, Client: client})
}
