package controller

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/deltaplane/deltaplane/client"
)

// These tests run on a real API server, as those that kubebuilder scaffolds do.

var (
	testEnv      *envtest.Environment
	cfg          *rest.Config
	k8sClient    crclient.Client
	index, queue *grpc.ClientConn
)

func TestControllers(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: it names the folder of etcd and kube-apiserver; `DELTAPLANE_KUBE=1 make controllerruntime-test` builds both and sets it")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "Controller Suite")
}

var _ = BeforeSuite(func() {
	By("bootstrapping test environment")
	testEnv = &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	var err error
	cfg, err = testEnv.Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(testEnv.Stop)
	k8sClient, err = crclient.New(cfg, crclient.Options{Scheme: newScheme(GinkgoTB())})
	Expect(err).NotTo(HaveOccurred())

	By("starting Deltaplane")
	index, queue = startDeltaplane(testEnv.KubeConfig)
})

// startDeltaplane starts `deltaplane up` on the API server of a kubeconfig.
func startDeltaplane(kubeconfig []byte) (index, queue *grpc.ClientConn) {
	dir := GinkgoTB().TempDir()
	program, path := filepath.Join(dir, "deltaplane"), filepath.Join(dir, "kubeconfig")
	Expect(os.WriteFile(path, kubeconfig, 0o600)).To(Succeed())
	build := exec.Command("go", "build", "-o", program, "./cmd/deltaplane")
	build.Dir = filepath.Join("..", "..", "..", "..") // the repository; elsewhere it is installed
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))

	indexAddr, queueAddr := freeAddress(), freeAddress()
	up := exec.Command(program, "up", "--kubeconfig", path, "--data-dir", filepath.Join(dir, "data"),
		"--resources", "sites.example.com", "--resources", "configmaps",
		"--index-listen", indexAddr, "--queue-listen", queueAddr, "--reflector-listen", freeAddress(), "--nats-listen", "off",
		"--index-admin-listen", "off", "--queue-admin-listen", "off", "--reflector-admin-listen", "off", "--controllers-admin-listen", "off",
		"--gateway-listen", "127.0.0.1:0", "--gateway-admin-listen", "off", "--console-listen", "127.0.0.1:0", "--console-admin-listen", "off")
	up.Stdout, up.Stderr = GinkgoWriter, GinkgoWriter
	Expect(up.Start()).To(Succeed())
	DeferCleanup(func() {
		Expect(up.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Expect(up.Wait()).To(Succeed())
	})
	return dial(indexAddr), dial(queueAddr)
}

func freeAddress() string {
	lis, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	defer lis.Close()
	return lis.Addr().String()
}

func dial(addr string) *grpc.ClientConn {
	conn, err := client.Dial(addr, client.DialConfig{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	return conn
}
