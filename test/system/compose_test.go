package system

import (
	"cmp"
	"net/http"
	"os"
	"os/exec"
	"testing"

	"github.com/deltaplane/deltaplane/internal/certs"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// TestCompose runs on deploy/compose.yaml, or on deploy/compose.secure.yaml as its administrator.
func TestCompose(t *testing.T) {
	t.Parallel()
	if os.Getenv("DELTAPLANE_COMPOSE") == "" {
		t.Skip("DELTAPLANE_COMPOSE is not set: `make compose-test` starts the deployment and runs this")
	}
	port := func(name, fallback string) string { return "127.0.0.1:" + cmp.Or(os.Getenv(name), fallback) }
	api, dial := &API{Base: "http://" + port("API_PORT", "7448"), Client: http.DefaultClient}, rpc.DialConfig{}
	if os.Getenv("SECURE") != "" {
		const admin = "../../.tmp/compose/admin/"
		dial.TLS = rpc.TLSConfig{CAFile: admin + "ca.crt", CertFile: admin + "tls.crt", KeyFile: admin + "tls.key"}
		conf, err := certs.Client(dial.TLS, "")
		if err != nil {
			t.Fatal(err)
		}
		api = &API{Base: "https://" + port("API_PORT", "7448"), Client: &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}}
	}
	runSuite(t, &Target{
		Name: "compose", Index: port("INDEX_PORT", "7441"), Queue: port("QUEUE_PORT", "7442"), Reflector: port("REFLECTOR_PORT", "7443"),
		API: api, Dial: dial,
		Nodes: true,
		Restart: func(t *testing.T, service string) {
			// Both replicas, one after the other: the published one is among them.
			containers := map[string][]string{
				"reflector": {"reflector"}, "indexer": {"indexer-1", "indexer-2"},
				"queue": {"queue-1", "queue-2"}, "controllers": {"controllers-1", "controllers-2"},
				"nodes": {"node"},
			}[service]
			for _, name := range containers {
				compose(t, "restart", name)
			}
		},
		// As a machine's power cut has it, stores and dev cluster included; then what a user would type.
		Kill: func(t *testing.T) {
			compose(t, "kill", "--signal", "KILL")
			compose(t, "up", "--detach", "--wait", "--wait-timeout", "180")
		},
		KillJobs: 20,
	})
}

// compose runs a docker compose command on the deployment, with the same stand-ins it was started
// with.
func compose(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../compose/compose.sh", append([]string{"compose"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("docker compose %v: %v\n%s", args, err, out)
	}
}
