package upstream

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/gateway"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/reflector"
)

// mirrored are the resources that the specs are about.
var mirrored = []string{
	"pods", "nodes", "namespaces", "services", "serviceaccounts", "deployments.apps", "replicasets.apps",
	"unconventionallisttypes.chaosapps.metamagical.io", // a suite defines it
}

// environment is a real API server and a Deltaplane that mirrors it, for one run of a suite.
type environment struct {
	programs, kubeconfig, index, queue string
	gateway                            string // kubeconfig of the Kubernetes endpoint
}

func newEnvironment(t *testing.T) environment {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	programs, err := filepath.Abs(os.Getenv("DELTAPLANE_KUBE_PROGRAMS"))
	fail(t, err)
	kubernetes := &envtest.Environment{BinaryAssetsDirectory: programs}
	_, err = kubernetes.Start()
	fail(t, err)
	t.Cleanup(func() {
		if err := kubernetes.Stop(); err != nil {
			t.Errorf("API server: %v", err)
		}
	})
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	fail(t, os.WriteFile(kubeconfig, kubernetes.KubeConfig, 0o600))
	api, err := kube.Load(kube.Config{Kubeconfig: kubeconfig})
	fail(t, err)
	t.Cleanup(api.Close)

	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: filepath.Join(dir, "nats")})
	fail(t, err)
	t.Cleanup(nats.Stop)
	connect := func(name string) *stream.Conn {
		c := stream.Config{Name: name, Memory: true}
		c.Options = append(c.Options, nats.InProcess())
		conn, err := stream.Connect(t.Context(), c)
		fail(t, err)
		t.Cleanup(conn.Close)
		return conn
	}
	reports := func(name string) *telemetry.Telemetry {
		tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: name, LogOutput: io.Discard})
		fail(t, err)
		return tel
	}
	off := telemetry.AdminConfig{Listen: "off"}
	queues, err := queue.New(queue.Config{Admin: off}, reports("queue"))
	fail(t, err)
	index, err := indexer.New(indexer.Config{Admin: off, DiscoverEvery: 100 * time.Millisecond}, connect("indexer"), reports("indexer"))
	fail(t, err)
	var resources []reflector.Resource
	for _, name := range mirrored {
		resources = append(resources, reflector.Resource{Name: name, Transform: kube.Transform{KeepManagedFields: true}})
	}
	mirror, err := reflector.New(reflector.Config{Admin: off, Resources: resources, DiscoverEvery: time.Second}, connect("reflector"), api, reports("reflector"))
	fail(t, err)
	serve(t, mirror)
	e := environment{programs: programs, kubeconfig: kubeconfig, index: serve(t, index), queue: serve(t, queues), gateway: filepath.Join(dir, "gateway")}
	e.serveGateway(t, dir, api, reports("gateway"))
	return e
}

// serveGateway serves the Kubernetes API from the index, and writes a kubeconfig for it.
func (e environment) serveGateway(t *testing.T, dir string, api *kube.Client, tel *telemetry.Telemetry) {
	t.Helper()
	authority, ca, err := certs.NewAuthority("suite", time.Now(), time.Hour)
	fail(t, err)
	pair, err := authority.Issue(certs.Subject{User: "gateway", Hosts: []string{"127.0.0.1"}}, time.Now(), time.Hour)
	fail(t, err)
	tls := certs.Config{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	fail(t, os.WriteFile(tls.CertFile, pair.Cert, 0o600))
	fail(t, os.WriteFile(tls.KeyFile, pair.Key, 0o600))
	source := kube.Config{Kubeconfig: e.kubeconfig}
	upstream, err := kube.LoadUpstream(source, kube.Credentials{})
	fail(t, err)
	t.Cleanup(upstream.Close)
	conn, err := client.Dial(e.index, client.DialConfig{})
	fail(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	svc, err := gateway.New(gateway.Config{Listen: "127.0.0.1:0", TLS: tls, Admin: telemetry.AdminConfig{Listen: "off"}},
		gateway.Deps{Index: client.NewIndex(conn), Kube: api, Upstream: upstream}, tel)
	fail(t, err)
	addr := serve(t, svc)
	// The kubeconfig of the environment shows a certificate, which cannot be passed on.
	withToken := clientcmdapi.NewConfig()
	withToken.CurrentContext = "suite"
	withToken.Contexts["suite"] = &clientcmdapi.Context{Cluster: "suite", AuthInfo: "suite"}
	withToken.AuthInfos["suite"] = &clientcmdapi.AuthInfo{Token: administrator(t, api)}
	withToken.Clusters["suite"] = &clientcmdapi.Cluster{Server: "https://" + addr, CertificateAuthorityData: ca.Cert}
	fail(t, clientcmd.WriteToFile(*withToken, e.gateway))
}

// administrator is the token of a service account that may do everything.
func administrator(t *testing.T, api *kube.Client) string {
	t.Helper()
	create := func(ref kube.Ref, body string) []byte {
		answer, err := api.Create(t.Context(), ref, []byte(body), kube.WriteOptions{})
		fail(t, err)
		return answer
	}
	accounts := kube.Resource{Version: "v1", Name: "serviceaccounts", Namespaced: true}
	create(kube.Ref{Resource: accounts, Namespace: "kube-system"}, `{"metadata":{"name":"suite"}}`)
	create(kube.Ref{Resource: kube.Resource{Group: "rbac.authorization.k8s.io", Version: "v1", Name: "clusterrolebindings"}},
		`{"metadata":{"name":"suite"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"kind":"ServiceAccount","namespace":"kube-system","name":"suite"}]}`)
	ref := accounts.Ref("kube-system", "suite")
	ref.Subresource = "token"
	var token struct{ Status struct{ Token string } }
	fail(t, json.Unmarshal(create(ref, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":7200}}`), &token))
	return token.Status.Token
}

// variables tell a suite of the environment.
func (e environment) variables() []string {
	return []string{
		"KUBEBUILDER_ASSETS=" + e.programs, "USE_EXISTING_CLUSTER=true", "KUBECONFIG=" + e.kubeconfig,
		"DELTAPLANE_INDEX=" + e.index, "DELTAPLANE_QUEUE=" + e.queue,
	}
}

type service interface {
	Run(ctx context.Context) error
	Addr(ctx context.Context) (string, error)
}

// serve runs a service until the test ends.
func serve(t *testing.T, s service) (addr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%T: %v", s, err)
		}
	})
	addr, err := s.Addr(t.Context())
	fail(t, err)
	return addr
}

func fail(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
