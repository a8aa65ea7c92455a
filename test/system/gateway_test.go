package system

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Clients that nobody has changed read and write through the gateway, with no more than another
// server in their kubeconfig: kubectl, and the official clients for Python and JavaScript. The
// programs that are not installed are left out, unless DELTAPLANE_CLIENTS=1 wants them all.
func TestRealClientsOfOthersReadThroughTheGateway(t *testing.T) {
	t.Parallel()
	kubeconfig := os.Getenv("DELTAPLANE_KUBECONFIG")
	if kubeconfig == "" {
		t.Skip("DELTAPLANE_KUBECONFIG is not set: `make kube` starts a real API server and prints one")
	}
	u := newUp(t, kubeconfig)
	u.start(t, "up", append(u.upArgs(), "--resources", "*", "--skip", "controllers,nodes")...)
	mine := u.gatewayKubeconfig(t)
	gateway := loadKubeconfig(t, mine)
	namespace := fmt.Sprintf("clients-%d", time.Now().UnixNano()%1e9)
	eventually(t, time.Minute, "the gateway answers from the index", func(ctx context.Context) error {
		return gateway.servedByIndex(ctx, "/api/v1/configmaps?resourceVersion=0")
	})
	direct := loadKubeconfig(t, kubeconfig)
	object := map[string]any{"metadata": metav1.ObjectMeta{Name: namespace}}
	if err := direct.create(t.Context(), "/api/v1/namespaces", object, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = direct.delete(context.WithoutCancel(t.Context()), "/api/v1/namespaces/"+namespace, "Background") // the cluster is thrown away
	})

	for _, c := range []struct {
		name string
		need func(t *testing.T) string // what must be there, or why it is not
		args []string
	}{
		{"kubectl", program(os.Getenv("DELTAPLANE_KUBECTL"), "kubectl"), []string{"bash", "../clients/kubectl.sh", "PROGRAM", namespace}},
		{"python", module("/usr/bin/python3", "-c", "import kubernetes"), []string{"/usr/bin/python3", "../clients/python_client.py", namespace}},
		{"node", npm, []string{"node", "PROGRAM", namespace}},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := c.need(t)
			if found == "" && os.Getenv("DELTAPLANE_CLIENTS") != "1" {
				t.Skip("it is not installed here")
			}
			args := append([]string{}, c.args...)
			for i := range args {
				if args[i] == "PROGRAM" {
					args[i] = found
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+mine)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %v\n%s", args, err, tail(out, 4000))
			}
		})
	}
}

// gatewayKubeconfig is the cluster's, with the gateway as its server. The gateway's authority is
// there once the gateway is.
func (u *upTarget) gatewayKubeconfig(t *testing.T) string {
	t.Helper()
	made := filepath.Join(t.TempDir(), "kubeconfig")
	eventually(t, time.Minute, "the gateway has its authority", func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, u.binary, "kubeconfig", "--kubeconfig", u.kubeconfig, "--server", "https://"+u.ports["gateway"],
			"--certificate-authority", filepath.Join(u.dir, "data", "gateway", "ca.crt"), "-o", made).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return made
}

// program is the path of an executable: one that was named, or one of the PATH.
func program(named, name string) func(*testing.T) string {
	return func(*testing.T) string {
		if named != "" {
			return named
		}
		path, _ := exec.LookPath(name) // none is the answer
		return path
	}
}

// module reports whether an interpreter has a module.
func module(args ...string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		if exec.CommandContext(t.Context(), args[0], args[1:]...).Run() != nil {
			return ""
		}
		return args[0]
	}
}

// npm puts the script beside the packages of test/clients/package.json, where they are installed.
func npm(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("..", "..", ".tmp", "clients")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@kubernetes", "client-node")); err != nil {
		return ""
	}
	script, err := os.ReadFile("../clients/node_client.mjs")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "client.mjs"), script, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "client.mjs")
}

// servedByIndex returns nil when the index answers.
func (a *API) servedByIndex(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.Base+path, nil)
	if err != nil {
		return err
	}
	resp, err := a.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if by := resp.Header.Get("X-Deltaplane-Served-By"); by != "index" {
		return fmt.Errorf("%s %s is answered by %q", resp.Status, path, by)
	}
	return nil
}
