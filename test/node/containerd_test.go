//go:build linux

package node_test

import (
	"context"
	"os"
	"testing"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/criruntime/critest"
	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// start starts a containerd that is gone at the test's end, and skips the test where it cannot run.
func start(t *testing.T, find func(context.Context) (containerd.Programs, error)) *containerd.Containerd {
	t.Helper()
	programs, err := find(t.Context())
	if err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "dp-ctd-") //nolint:usetesting // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	c, err := containerd.Start(t.Context(), programs, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("containerd %s", programs.Version)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of containerd ends with:\n%s", c.LogTail())
		}
		if err := c.Close(); err != nil {
			t.Errorf("closing containerd: %v", err)
		}
	})
	return c
}

func target(c *containerd.Containerd) critest.Target {
	return critest.Target{
		Conn: c.Conn(), Image: containerd.BoxImage, Missing: "registry.deltaplane.invalid/missing/box:1", Slow: 3,
		Restart: func(t *testing.T) grpc.ClientConnInterface {
			t.Helper()
			if err := c.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := c.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			return c.Conn()
		},
	}
}

func TestContainerd2Conforms(t *testing.T) {
	t.Parallel()
	critest.Run(t, target(start(t, containerd.Built)))
}

func TestTheInstalledContainerdConforms(t *testing.T) {
	t.Parallel()
	c := start(t, containerd.Installed)
	target := target(c)
	if c.Programs().Major < 2 {
		target.Differs = map[string]string{
			"stopping a sandbox that never was is fine":   "containerd 1.6 answers NotFound",
			"stopping a container that never was is fine": "containerd 1.6 answers NotFound",
		}
	}
	critest.Run(t, target)
}
