package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
)

const talking = `apiVersion: v1
kind: Pod
metadata: {name: talk, namespace: default, annotations: {deltaplane.io/run-seconds: "0", deltaplane.io/log: "hello there", deltaplane.io/run-seconds.side: forever, deltaplane.io/log.side: "and hello"}}
spec: {containers: [{name: main, image: none}, {name: side, image: none}]}
`

func TestLogsPrintsWhatContainersOfThisMachineWrote(t *testing.T) {
	t.Parallel()
	r := startUp(t, "--crash-loop-initial", "2m", "--crash-loop-max", "2m")
	if _, errs, code := command(t.Context(), talking, append([]string{"apply", "-f", "-"}, r.api...)...); code != cli.ExitOK {
		t.Fatal(errs)
	}
	logs := func(args ...string) (string, string, int) {
		return command(t.Context(), "", slices.Concat([]string{"logs", "talk", "--log-dir", filepath.Join(r.dir, "nodes", "logs")}, args, r.ask[:2])...)
	}
	until(t, func() bool { // it has run twice
		out, _, code := logs("--previous")
		return code == cli.ExitOK && strings.Contains(out, "hello there\n")
	})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, cli.ExitOK, "hello there\n"},
		{[]string{"-c", "side"}, cli.ExitOK, "and hello\n"},
		{[]string{"--timestamps"}, cli.ExitOK, "T"},
		{[]string{"-c", "none"}, cli.ExitUsage, "there are main, side"},
		{[]string{"-c", "side", "--previous"}, cli.ExitNotFound, "no log of that instance"},
		{[]string{"-n", "other"}, cli.ExitNotFound, "other/talk"},
		{[]string{"--log-dir", t.TempDir()}, cli.ExitNotFound, "--log-dir"},
	} {
		out, errs, code := logs(c.args...)
		if code != c.code || !strings.Contains(out+errs, c.says) || c.code == cli.ExitOK && strings.Contains(out, "stdout F") {
			t.Errorf("logs %v exited with %d, want %d: %s%s, want %q in it", c.args, code, c.code, out, errs, c.says)
		}
	}
}
