package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// repoRoot is the folder of the module this is run in.
func repoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "test", "kube", "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside the repository", dir)
		}
	}
}

// ErrNoCluster says that no real API server could be started here.
var ErrNoCluster = errors.New("no cluster")

// TestCluster is a cluster of test/kube that this bench started.
type TestCluster struct {
	module, dir string
	stderr      *bytes.Buffer
}

// BareCluster starts a cluster without nodes in dir.
func BareCluster(ctx context.Context, b *harness.Bench, dir string, args ...string) (*TestCluster, error) {
	root, err := repoRoot()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCluster, err)
	}
	c := &TestCluster{module: filepath.Join(root, "test", "kube"), dir: dir, stderr: &bytes.Buffer{}}
	b.Say("  starting a cluster; the first time compiles Kubernetes, some minutes")
	if err := c.Run(ctx, nil, "up", append([]string{"--detach", "--nodes", "0"}, args...)...); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCluster, err)
	}
	return c, nil
}

// Kubeconfig is the path of the file that leads to the cluster.
func (c *TestCluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// PID is that of one of the cluster's programs; empty when it does not run.
func (c *TestCluster) PID(program string) string {
	text, _ := os.ReadFile(filepath.Join(c.dir, "pids", program))
	return strings.TrimSpace(string(text))
}

// Run runs a command of test/kube.
func (c *TestCluster) Run(ctx context.Context, in []byte, command string, args ...string) error {
	return c.Feed(ctx, bytes.NewReader(in), command, args...)
}

// Feed runs a command of test/kube with an input.
func (c *TestCluster) Feed(ctx context.Context, in io.Reader, command string, args ...string) error {
	c.stderr.Reset()
	//nolint:gosec // our own program
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "./cmd/kube", command, "--dir", c.dir}, args...)...)
	cmd.Dir, cmd.Stderr, cmd.Stdin = c.module, c.stderr, in
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kube %s: %w: %s", command, err, c.stderr)
	}
	return nil
}

// Down ends the cluster.
func (c *TestCluster) Down() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also when the run was interrupted
	defer cancel()
	return c.Run(ctx, nil, "down")
}
