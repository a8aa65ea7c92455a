package api_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/devcluster/devclustertest"
	"github.com/deltaplane/deltaplane/test/api"
)

// kubeconfigEnv names the kubeconfig of a real cluster to run the suite on as well.
const kubeconfigEnv = "DELTAPLANE_KUBECONFIG"

// etcdEnv names that cluster's etcd, over plain HTTP, so that history can be compacted.
const etcdEnv = "DELTAPLANE_ETCD"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDevCluster(t *testing.T) {
	t.Parallel()
	c := devclustertest.Start(t, devcluster.Config{FreshTimeout: 100 * time.Millisecond, BookmarkEvery: time.Second})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
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
	target := api.Target{URL: cfg.Host, Client: client, CachesWatches: true}
	if etcd := os.Getenv(etcdEnv); etcd != "" {
		target.Compact = func() { compact(t, etcd) }
	}
	api.Run(t, target)
}

// compact does what a second API server's compactor would: it announces the revision
// under the key that API servers watch, and makes etcd forget what is older.
func compact(t *testing.T, etcd string) {
	t.Helper()
	post := func(path, body string) []byte {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, etcd+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v: %s", path, resp.Status, err, raw)
		}
		return raw
	}
	var state struct{ Header struct{ Revision string } }
	if err := json.Unmarshal(post("/v3/kv/range", `{"key":"AA=="}`), &state); err != nil {
		t.Fatal(err)
	}
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	post("/v3/kv/put", fmt.Sprintf(`{"key":%q,"value":%q}`, encode("compact_rev_key"), encode(state.Header.Revision)))
	post("/v3/kv/compaction", fmt.Sprintf(`{"revision":%q,"physical":true}`, state.Header.Revision))
	http.DefaultClient.CloseIdleConnections()
}
