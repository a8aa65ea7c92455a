//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// made are the programs of a run.
type made struct {
	deltaplane string
	kube       string // the command of test/kube
	kubectl    string
	suite      string // upstream's e2e.test
	version    string // of Kubernetes
	runtime    containerd.Programs
	root       string // the repository
}

// build makes what is not there yet. The programs of Kubernetes are kept for later runs, and shared
// with the other tests.
func build(ctx context.Context, dir string, out io.Writer) (made, error) {
	var m made
	var err error
	if m.root, err = os.Getwd(); err != nil {
		return m, err
	}
	if _, err := os.Stat(filepath.Join(m.root, "test", "kube", "go.mod")); err != nil {
		return m, fmt.Errorf("run this in the repository's top folder: %w", err)
	}
	if m.runtime, err = containerd.Built(ctx); err != nil {
		return m, err
	}
	m.kube, m.deltaplane = filepath.Join(dir, "kube"), filepath.Join(dir, "deltaplane")
	_, err = output(ctx, filepath.Join(m.root, "test", "kube"), out, "go", "build", "-o", m.kube, "./cmd/kube")
	if err != nil {
		return m, err
	}
	if _, err := output(ctx, m.root, out, "go", "build", "-o", m.deltaplane, "./cmd/deltaplane"); err != nil {
		return m, err
	}
	programs, err := output(ctx, filepath.Join(m.root, "test", "kube"), out, m.kube, "build")
	if err != nil {
		return m, err
	}
	suite, err := output(ctx, filepath.Join(m.root, "test", "kube"), out, m.kube, "build", "--suite")
	if err != nil {
		return m, err
	}
	m.kubectl, m.suite = filepath.Join(programs, "kubectl"), filepath.Join(suite, "e2e.test")
	m.version, err = output(ctx, m.root, out, m.suite, "--version")
	return m, err
}

// output runs a program that prints one thing; what it says besides goes to out.
func output(ctx context.Context, dir string, out io.Writer, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = dir, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", filepath.Base(program), strings.Join(args, " "), errors.Join(err, context.Cause(ctx)))
	}
	return strings.TrimSpace(string(text)), nil
}
