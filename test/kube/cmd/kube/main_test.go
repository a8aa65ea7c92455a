package main

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/test/kube/cluster"
)

func TestFaultsOfTheCommandLineAreExplained(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                  "usage: kube COMMAND",
		"frob":              `unknown command "frob"`,
		"up extra":          `unexpected argument "extra"`,
		"up --nodes -1":     "--nodes is -1",
		"up --frob":         "flag provided but not defined: -frob",
		"save":              "which folder?",
		"restore":           "which folder?",
		"save --from x":     "flag provided but not defined: -from",
		"build --dir x":     "flag provided but not defined: -dir",
		"down --nodes 3":    "flag provided but not defined: -nodes",
		"up --port 80 8080": `unexpected argument "8080"`,
	} {
		var stderr bytes.Buffer
		err := run(t.Context(), strings.Fields(line), nil, io.Discard, &stderr)
		if !errors.Is(err, errUsage) || !strings.Contains(stderr.String(), want) {
			t.Errorf("kube %s = %v, saying %q, want %q", line, err, &stderr, want)
		}
	}
}

func TestCommandsWithoutACluster(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	var stdout bytes.Buffer
	for _, command := range []string{"kubeconfig", "check", "seed", "compact", "save --to x", "restore --from " + t.TempDir()} {
		if err := run(t.Context(), append(strings.Fields(command), "--dir", dir), nil, &stdout, io.Discard); !errors.Is(err, cluster.ErrNotRunning) {
			t.Errorf("kube %s = %v, want ErrNotRunning", command, err)
		}
	}
	if stdout.Len() > 0 {
		t.Errorf("standard output is %q, want none", &stdout)
	}
	if err := run(t.Context(), []string{"status", "--dir", dir}, nil, &stdout, io.Discard); err != nil || strings.Count(stdout.String(), "not running\n") != 5 {
		t.Errorf("kube status = %v, printing %q", err, &stdout)
	}
	if err := run(t.Context(), []string{"down", "--dir", dir}, nil, &stdout, io.Discard); err != nil {
		t.Errorf("kube down = %v", err)
	}
	if err := run(t.Context(), []string{"up", "--help"}, nil, &stdout, io.Discard); err != nil {
		t.Errorf("kube up --help = %v", err)
	}
}
