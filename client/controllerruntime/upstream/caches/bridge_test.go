// Package caches is where controller-runtime's tests of pkg/cache are compiled, see package
// upstream. What is here takes the place of the environment that those tests start and of the
// constructor that they call.
package caches

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controllerruntime"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer"
	"github.com/deltaplane/deltaplane/services/reflector"
)

func TestSource(t *testing.T) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "Cache Suite")
}

var (
	testenv   *envtest.Environment
	cfg       *rest.Config
	clientset *kubernetes.Clientset
	conn      *grpc.ClientConn
	stop      []func()
)

// mirrored are the resources that the specs are about.
var mirrored = []string{"pods", "nodes", "namespaces", "services", "serviceaccounts", "deployments.apps"}

var _ = ginkgo.BeforeSuite(func() {
	ctrl.SetLogger(zap.New(zap.WriteTo(ginkgo.GinkgoWriter), zap.UseDevMode(true)))
	testenv = &envtest.Environment{BinaryAssetsDirectory: os.Getenv("DELTAPLANE_KUBE_PROGRAMS")}
	var err error
	cfg, err = testenv.Start()
	must(err)
	clientset, err = kubernetes.NewForConfig(cfg)
	must(err)
	must(startPlane())
})

var _ = ginkgo.AfterSuite(func() {
	for i := range stop {
		stop[len(stop)-1-i]()
	}
	must(testenv.Stop())
})

func must(err error) { gomega.ExpectWithOffset(1, err).NotTo(gomega.HaveOccurred()) }

// startPlane starts a log, an index and a reflector of the environment's API server.
func startPlane() error {
	dir, err := os.MkdirTemp("", "deltaplane-cache-suite")
	if err != nil {
		return err
	}
	stop = append(stop, func() { _ = os.RemoveAll(dir) })
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, testenv.KubeConfig, 0o600); err != nil {
		return err
	}
	api, err := kube.Load(kube.Config{Kubeconfig: kubeconfig})
	if err != nil {
		return err
	}
	stop = append(stop, api.Close)
	nats, err := embedded.StartNATS(embedded.NATSConfig{Dir: filepath.Join(dir, "nats")})
	if err != nil {
		return err
	}
	stop = append(stop, nats.Stop)
	connect := func(name string) (*stream.Conn, *telemetry.Telemetry, error) {
		c := stream.Config{Name: name, Memory: true}
		c.Options = append(c.Options, nats.InProcess())
		conn, err := stream.Connect(context.Background(), c)
		if err != nil {
			return nil, nil, err
		}
		stop = append(stop, conn.Close)
		tel, err := telemetry.Setup(context.Background(), telemetry.Config{Service: name, LogOutput: io.Discard})
		return conn, tel, err
	}
	off := telemetry.AdminConfig{Listen: "off"}
	log, tel, err := connect("indexer")
	if err != nil {
		return err
	}
	index, err := indexer.New(indexer.Config{Admin: off, DiscoverEvery: 100 * time.Millisecond}, log, tel)
	if err != nil {
		return err
	}
	background(index.Run)
	if log, tel, err = connect("reflector"); err != nil {
		return err
	}
	var resources []reflector.Resource
	for _, name := range mirrored {
		resources = append(resources, reflector.Resource{Name: name, Transform: kube.Transform{KeepManagedFields: true}})
	}
	mirror, err := reflector.New(reflector.Config{Admin: off, Resources: resources}, log, api, tel)
	if err != nil {
		return err
	}
	background(mirror.Run)
	addr, err := index.Addr(context.Background())
	if err != nil {
		return err
	}
	if conn, err = client.Dial(addr, client.DialConfig{}); err != nil {
		return err
	}
	stop = append(stop, func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return await(ctx, cfg)
}

func background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = append(stop, func() { cancel(); <-done })
}

// resources are those of mirrored.
var resources = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "namespaces"}, {Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "serviceaccounts"}, {Group: "apps", Version: "v1", Resource: "deployments"},
}

// await returns once the index has the objects that the API server has: the specs read what they
// wrote before they made the cache.
func await(ctx context.Context, cfg *rest.Config) error {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	api, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	index := client.NewIndex(conn)
	for _, r := range resources {
		collection := "dev/" + r.Resource + "." + r.Version
		if r.Group != "" {
			collection += "." + r.Group
		}
		for {
			there, here := map[string]bool{}, map[string]bool{}
			list, err := api.Resource(r).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, o := range list.Items {
				there[o.Namespace+"/"+o.Name+"@"+o.ResourceVersion] = true
			}
			objects, _, err := index.List(ctx, collection, client.ListOptions{ReadOptions: client.ReadOptions{View: client.ViewMetadata}})
			for _, o := range objects {
				key := o.Key
				if !strings.Contains(key, "/") {
					key = "/" + key
				}
				here[key+"@"+o.ResourceVersion] = true
			}
			if err == nil && maps.Equal(there, here) {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%w: %s: the index has %d objects, the API server %d: %w", ctx.Err(), collection, len(here), len(there), err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

// newCache is cache.New.
func newCache(cfg *rest.Config, o cache.Options) (cache.Cache, error) {
	op, err := controllerruntime.New(conn, nil, controllerruntime.Options{
		Name: "suite", Local: os.Getenv("DELTAPLANE_CACHE") == "local", Log: slog.New(slog.NewTextHandler(ginkgo.GinkgoWriter, nil)),
	})
	if err != nil {
		return nil, err
	}
	if cfg.Host != "" {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := await(ctx, cfg); err != nil {
			return nil, err
		}
	}
	return op.NewCache(cfg, o)
}
