package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// TestFaultsOfTheStartAreNamed starts what cannot start: the message names the flag, says it once
// and shows no password, and the exit code is the documented one.
func TestFaultsOfTheStartAreNamed(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	busy := taken.Addr().String()
	up := func(args ...string) []string {
		ports := embeddedtest.Ports(t, 3)
		all := []string{
			"up", "--data-dir", t.TempDir(), "--no-demo", "--nats-listen", "off", "--api-listen", "127.0.0.1:0",
			"--index-listen", ports[0], "--queue-listen", ports[1], "--reflector-listen", ports[2],
			"--index-admin-listen", "off", "--queue-admin-listen", "off", "--reflector-admin-listen", "off", "--controllers-admin-listen", "off", "--nodes-admin-listen", "off",
			"--gateway-listen", "127.0.0.1:0", "--gateway-admin-listen", "off", "--console-listen", "127.0.0.1:0", "--console-admin-listen", "off",
		}
		return append(all, args...)
	}
	inUse := []string{"in use", busy}
	locked := lockedRedis(t)
	wrong := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(wrong, []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	badCA := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(badCA, []byte(`
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: c, cluster: {server: "https://api.example:6443", certificate-authority-data: AAAA}}]
contexts: [{name: one, context: {cluster: c}}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"index port in use":         {up("--index-listen", busy), cli.ExitFailure, append(inUse, "--index-listen: ")},
		"admin port in use":         {up("--controllers-admin-listen", busy), cli.ExitFailure, append(inUse, "--controllers-admin-listen: ")},
		"NATS port in use":          {up("--nats-listen", busy), cli.ExitFailure, append(inUse, "--nats-listen: ")},
		"API port in use":           {up("--api-listen", busy), cli.ExitFailure, append(inUse, "--api-listen: ")},
		"service's port in use":     {[]string{"serve", "queue", "--admin-listen", "off", "--listen", busy}, cli.ExitFailure, append(inUse, "--listen: ")},
		"a ratio beyond 1":          {up("--trace-ratio", "7"), cli.ExitUsage, []string{"trace ratio 7"}},
		"nodes below zero":          {up("--nodes", "-1"), cli.ExitUsage, []string{"--nodes -1 is below zero"}},
		"unknown controller":        {up("--controllers", "foo"), cli.ExitUsage, []string{`"foo"`, "there are job"}},
		"NATS files not there":      {up("--nats-url", "nats://127.0.0.1:1", "--nats-username", "u", "--nats-password-file", "/nonexistent/pw", "--nats-tls-ca", "/nonexistent/ca"), cli.ExitUsage, []string{"/nonexistent/pw", "/nonexistent/ca"}},
		"no NATS URL":               {up("--nats-url", "nats://u:hush@a b"), cli.ExitUsage, []string{"--nats-url"}},
		"no Redis URL":              {up("--redis-url", "foo"), cli.ExitUsage, []string{"--redis-url"}},
		"password in no URL":        {[]string{"serve", "queue", "--redis-url", "redis://:hush@127.0.0.1:bad"}, cli.ExitUsage, []string{"--redis-url"}},
		"sentinel names no master":  {[]string{"serve", "queue", "--redis-url", "redis+sentinel://u:hush@a:1,b"}, cli.ExitUsage, []string{"--redis-url", "name of the master"}},
		"Redis flags without Redis": {[]string{"serve", "queue", "--redis-username", "u", "--redis-tls-cert", "x"}, cli.ExitUsage, []string{"--redis-username is for a Redis", "--redis-tls-cert is for", "--redis-tls-key"}},
		"Redis TLS without TLS":     {[]string{"serve", "queue", "--redis-url", "redis://a:1", "--redis-tls-ca", "x"}, cli.ExitUsage, []string{"--redis-tls-ca has no effect"}},
		"every fault of a service":  {[]string{"serve", "queue", "--listen", "0.0.0.0:1", "--log-level", "loud", "--redis-url", "rediss://a:1", "--redis-password-file", "/nonexistent/pw"}, cli.ExitUsage, []string{`"loud"`, "0.0.0.0:1", "/nonexistent/pw"}},
		"Redis files not there":     {[]string{"serve", "queue", "--redis-url", "rediss+cluster://a,b", "--redis-tls-ca", "/nonexistent/ca", "--redis-password-file", "/nonexistent/pw"}, cli.ExitUsage, []string{"/nonexistent/ca", "/nonexistent/pw"}},
		"queue bounds":              {[]string{"serve", "queue", "--queue-max-pending", "-1"}, cli.ExitUsage, []string{"max pending"}},
		"Redis password is wrong":   {[]string{"serve", "queue", "--listen", "127.0.0.1:0", "--admin-listen", "off", "--redis-url", "redis://" + locked, "--redis-password-file", wrong}, cli.ExitRefused, []string{"--redis-url", "denies access"}},
		"no such service":           {[]string{"serve", "foo"}, cli.ExitUsage, []string{`unknown command "foo"`}},
		"no such queue command":     {[]string{"queue", "foo"}, cli.ExitUsage, []string{`unknown command "foo"`}},
		"no such index command":     {[]string{"index", "foo"}, cli.ExitUsage, []string{`unknown command "foo"`}},
		"index does not answer":     {[]string{"get", "pods", "--index-url", "127.0.0.1:1"}, cli.ExitUnavailable, []string{"cannot connect: dial tcp 127.0.0.1:1"}},
		"API does not answer":       {[]string{"apply", "-f", "-", "--api-url", "http://127.0.0.1:1"}, cli.ExitUnavailable, []string{"127.0.0.1:1"}},
		"kubeconfig not a file":     {up("--kubeconfig", "/nonexistent"), cli.ExitUsage, []string{"/nonexistent"}},
		"context without a file":    {up("--context", "no-such-context"), cli.ExitUsage, []string{"--context: ", "no-such-context"}},
		"cluster's kubeconfig":      {[]string{"serve", "reflector", "--cluster", "a=/nonexistent"}, cli.ExitUsage, []string{"--cluster a: ", "/nonexistent"}},
		"cluster's certificates":    {[]string{"serve", "reflector", "--kubeconfig", badCA}, cli.ExitUsage, []string{"--kubeconfig: ", badCA, "root certificates"}},
		"faults of the log":         {[]string{"serve", "reflector", "--nats-replicas", "7", "--tombstone-ttl", "1ms", "--nats-creds", "/nonexistent"}, cli.ExitUsage, []string{"--nats-replicas: 7", "--tombstone-ttl: 1ms", "--nats-creds: "}},
		"status names its fault":    {[]string{"status", "--index-url", "127.0.0.1:1", "--queue-url", "127.0.0.1:1", "--reflector-url", "127.0.0.1:1"}, cli.ExitUnavailable, []string{"reflector service at 127.0.0.1:1 (--reflector-url): cannot connect", "(--index-url)", "(--queue-url)"}},
		"own callers lack a token":  {up("--auth-token-file", "x"), cli.ExitUsage, []string{"--token-file"}},
		"own callers lack TLS":      {up("--serve-tls-cert", "x", "--serve-tls-key", "y"), cli.ExitUsage, []string{"--tls"}},
		"Redis denies access":       {up("--redis-url", "redis://:hush@"+locked), cli.ExitRefused, []string{"--redis-url", "denies access"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, text, code := command(ctx, manifests, c.args...)
			if ctx.Err() != nil {
				t.Fatal("it did not end by itself")
			}
			if code != c.code {
				t.Errorf("exit code %d, want %d:\n%s", code, c.code, text)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("not said: %q\n%s", want, text)
				}
			}
			if strings.Contains(text, "hush") || strings.Contains(text, "context canceled") || strings.Count(text, "in use") > 1 {
				t.Errorf("says too much:\n%s", text)
			}
		})
	}
}

// lockedRedis is a Redis that wants a password.
func lockedRedis(t *testing.T) string {
	t.Helper()
	server, err := embedded.StartRedis(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	conn, err := net.Dial("tcp", server.Addr()) //nolint:noctx // it has just answered
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, "CONFIG SET requirepass right\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := bufio.NewReader(conn).ReadString('\n'); answer != "+OK\r\n" {
		t.Fatalf("Redis answered %q, %v", answer, err)
	}
	return server.Addr()
}
