package system

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// parts are the services that run by themselves when builds are mixed; the rest is the log and the
// cluster.
var parts = []string{"indexer", "queue", "reflector", "controllers", "nodes"}

// versions is a deployment whose parts run one build each.
type versions struct {
	*upTarget
	bare string            // the build that has no console yet, if one has none
	of   map[string]string // the binary of a part, and of "up"
}

// run starts a part, or the rest, with the build it has.
func (v *versions) run(t *testing.T, name string) {
	t.Helper()
	args := v.upArgs()
	if name != "up" {
		args = v.serveArgs(name)
	} else if v.of[name] == v.bare {
		args = slices.Delete(args, slices.Index(args, "--console-listen"), slices.Index(args, "--console-listen")+4)
	}
	v.startBuild(t, v.of[name], name, args...)
}

// TestTwoVersionsReplaceEachOther runs the suite while each restart replaces a part by the other
// build, from an older one to the present one and back. What one has written, the other goes on
// with: logs, checkpoints, queues, leases, the cluster's own store.
func TestTwoVersionsReplaceEachOther(t *testing.T) {
	t.Parallel()
	older := os.Getenv("DELTAPLANE_TEST_OLDER_BUILD")
	if older == "" {
		t.Skip("DELTAPLANE_TEST_OLDER_BUILD is not set: `make mixed` builds an older version")
	}
	bare := ""
	if help, err := exec.CommandContext(t.Context(), older, "up", "--help").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", older, err)
	} else if !strings.Contains(string(help), "--console-listen") {
		bare = older
	}
	for name, order := range map[string][2]string{"upgrade": {older, build(t)}, "downgrade": {build(t), older}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := &versions{upTarget: newUp(t, ""), bare: bare, of: map[string]string{}}
			v.apart = strings.Join(parts, ",")
			all := append([]string{"up"}, parts...)
			for _, part := range all {
				v.of[part] = order[0]
				v.run(t, part)
			}
			for _, part := range parts {
				v.awaitStart(t, part)
			}
			x := v.target()
			x.Nodes, x.KillJobs = true, 100
			x.Restart = func(t *testing.T, service string) {
				v.stop(t, service, syscall.SIGTERM)
				v.of[service] = order[1]
				v.run(t, service)
				v.awaitStart(t, service)
			}
			x.Kill = func(t *testing.T) {
				for _, part := range all {
					v.stop(t, part, syscall.SIGKILL)
				}
				v.of["up"] = order[1]
				for _, part := range all {
					v.run(t, part)
				}
			}
			runSuite(t, x)
			for part, binary := range v.of {
				if binary != order[1] {
					t.Errorf("%s was not replaced", part)
				}
			}
		})
	}
}
