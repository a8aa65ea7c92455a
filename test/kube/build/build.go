// Package build makes the programs of a Kubernetes control plane, etcd, KWOK and upstream's
// end-to-end suite from Go modules and keeps them in a cache folder, so that only the first start
// on a machine pays for compiling them.
package build

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// The programs that Ensure makes, by file name.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubectl           = "kubectl"
	Kwok              = "kwok"
)

// Suite is the file name of upstream's end-to-end tests, which [EnsureSuite] makes.
const Suite = "e2e.test"

const (
	modulePath = "github.com/deltaplane/deltaplane/test/kube"
	kubernetes = "k8s.io/kubernetes"
	etcdServer = "go.etcd.io/etcd/server/v3"
	kwok       = "sigs.k8s.io/kwok"
)

// Versions are the module versions a set of programs was made from, as go.mod names them (with the
// v).
type Versions struct {
	Kubernetes, Etcd, Kwok string
}

// Key names the cache folder of these versions for the Go release and platform of the running
// program.
func (v Versions) Key() string {
	return fmt.Sprintf("%s-etcd%s-kwok%s-%s-%s-%s",
		v.Kubernetes, strings.TrimPrefix(v.Etcd, "v"), strings.TrimPrefix(v.Kwok, "v"),
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Module is the folder of this module's source, from which the programs are built.
type Module string

// FindModule looks for the module in dir and its parents, each time also under test/kube. The error
// says where it looked.
func FindModule(dir string) (Module, error) {
	for at := dir; ; at = filepath.Dir(at) {
		for _, candidate := range []string{at, filepath.Join(at, "test", "kube")} {
			text, err := os.ReadFile(filepath.Join(candidate, "go.mod"))
			if err == nil && strings.Contains(string(text), "module "+modulePath+"\n") {
				return Module(candidate), nil
			}
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("build: module %s is neither in %s nor above it: run this from its folder", modulePath, dir)
		}
	}
}

// Versions reads the versions that the module pins.
func (m Module) Versions() (Versions, error) {
	var v Versions
	for _, want := range []struct {
		file, module string
		into         *string
	}{
		{"go.mod", kubernetes, &v.Kubernetes},
		{"go.mod", etcdServer, &v.Etcd},
		{filepath.Join("kwok", "go.mod"), kwok, &v.Kwok},
	} {
		file := filepath.Join(string(m), want.file)
		text, err := os.ReadFile(file)
		if err != nil {
			return Versions{}, fmt.Errorf("build: read versions: %w", err)
		}
		if *want.into = required(text, want.module); *want.into == "" {
			return Versions{}, fmt.Errorf("build: %s requires no %s", file, want.module)
		}
	}
	return v, nil
}

// required returns the version of module in the text of a go.mod file, or "".
func required(text []byte, module string) string {
	for line := range bytes.Lines(text) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(string(line)), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1]
		}
	}
	return ""
}

// CacheDir is the folder that holds programs and, by default, the running cluster, for the current
// user.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	return filepath.Join(base, "deltaplane-kube"), nil
}

// program is one thing to build: go build -o NAME PACKAGE in a folder of the module, or go test -c
// for the tests of the package.
type program struct {
	name, pkg, dir, ldflags string
	tests                   bool
}

// stamped are the linker's flags for a program of Kubernetes.
func stamped(v Versions) string {
	const stamp = " -X k8s.io/component-base/version."
	major, minor, _ := strings.Cut(strings.TrimPrefix(v.Kubernetes, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	// kubectl refuses or warns about servers that report the version of an unstamped build,
	// v0.0.0-master.
	return "-s -w" + stamp + "gitVersion=" + v.Kubernetes + stamp + "gitMajor=" + major +
		stamp + "gitMinor=" + minor + stamp + "gitTreeState=clean"
}

func programs(v Versions) []program {
	ldflags := stamped(v)
	return []program{
		{name: Etcd, pkg: "./cmd/etcd", dir: ".", ldflags: "-s -w"},
		{name: APIServer, pkg: kubernetes + "/cmd/" + APIServer, dir: ".", ldflags: ldflags},
		{name: ControllerManager, pkg: kubernetes + "/cmd/" + ControllerManager, dir: ".", ldflags: ldflags},
		{name: Scheduler, pkg: kubernetes + "/cmd/" + Scheduler, dir: ".", ldflags: ldflags},
		{name: Kubectl, pkg: kubernetes + "/cmd/" + Kubectl, dir: ".", ldflags: ldflags},
		{name: Kwok, pkg: kwok + "/cmd/" + Kwok, dir: "kwok", ldflags: "-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=" + v.Kwok},
	}
}

func suite(v Versions) []program {
	return []program{{name: Suite, pkg: kubernetes + "/test/e2e", dir: ".", ldflags: stamped(v), tests: true}}
}

// Ensure returns the folder that holds every program of the module's versions, building those that
// are missing. Callers at the same time, also in other processes, build each program once. Progress
// goes to out, a line every 15 seconds. A failed or interrupted build leaves no half program
// behind.
func Ensure(ctx context.Context, m Module, out io.Writer) (string, error) {
	return ensure(ctx, m, out, programs)
}

// EnsureSuite is Ensure for [Suite] alone, which takes as long as all the programs.
func EnsureSuite(ctx context.Context, m Module, out io.Writer) (string, error) {
	return ensure(ctx, m, out, suite)
}

func ensure(ctx context.Context, m Module, out io.Writer, wanted func(Versions) []program) (string, error) {
	v, err := m.Versions()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(cache, v.Key())
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	unlock, err := lock(filepath.Join(bin, ".lock"))
	if err != nil {
		return "", fmt.Errorf("build: lock the cache: %w", err)
	}
	defer unlock()
	var missing []program
	all := wanted(v)
	for _, p := range all {
		has, err := p.built(m, bin)
		if err != nil {
			return "", fmt.Errorf("build: %w", err)
		}
		if !has {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return bin, nil
	}
	fmt.Fprintf(out, "building %d of %d programs into %s; all of them take five to ten minutes on two cores\n", len(missing), len(all), bin)
	for _, p := range missing {
		if err := p.build(ctx, m, bin, out); err != nil {
			return "", err
		}
	}
	return bin, nil
}

// built tells whether bin holds the program. The versions in bin's name say all about a program
// from another module; one of ours is also compared with the age of its source.
func (p program) built(m Module, bin string) (bool, error) {
	binary, err := os.Stat(filepath.Join(bin, p.name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil || !strings.HasPrefix(p.pkg, "./") {
		return err == nil, err
	}
	source, err := os.Stat(filepath.Join(string(m), p.dir, p.pkg, "main.go"))
	if err != nil {
		return false, err
	}
	return source.ModTime().Before(binary.ModTime()), nil
}

func (p program) build(ctx context.Context, m Module, bin string, out io.Writer) error {
	began := time.Now()
	fmt.Fprintf(out, "  %-24s building\n", p.name)
	unfinished := filepath.Join(bin, "."+p.name+".unfinished")
	defer os.Remove(unfinished)
	args := []string{"go", "build"}
	if p.tests {
		// To vet all that the suite is made of takes as long as to compile it.
		args = []string{"go", "test", "-c", "-vet=off"}
	}
	args = append(args, "-v", "-buildvcs=false", "-ldflags", p.ldflags, "-o", unfinished, p.pkg)
	if nice, err := exec.LookPath("nice"); err == nil {
		args = append([]string{nice, "-n", "10"}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = filepath.Join(string(m), p.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build %s: %w", p.name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", p.name, err)
	}
	var compiled atomic.Int64
	// Of tests the go command does not say what it compiles.
	progress := func() string {
		if p.tests {
			return time.Since(began).Round(time.Second).String()
		}
		return fmt.Sprintf("%s, %d packages compiled", time.Since(began).Round(time.Second), compiled.Load())
	}
	ticker := time.NewTicker(15 * time.Second)
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintf(out, "  %-24s still building, %s\n", p.name, progress())
			case <-done:
				return
			}
		}
	}()
	// With -v the go command names each package it compiles on a line of its own; what else it writes
	// there is worth showing when the build fails.
	var said []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		compiled.Add(1)
		if said = append(said, lines.Text()); len(said) > 20 {
			said = said[1:]
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("build %s: %w", p.name, context.Cause(ctx))
		}
		return fmt.Errorf("build %s: %w; the go command's last lines:\n%s", p.name, err, strings.Join(said, "\n"))
	}
	if err := os.Rename(unfinished, filepath.Join(bin, p.name)); err != nil {
		return fmt.Errorf("build %s: %w", p.name, err)
	}
	fmt.Fprintf(out, "  %-24s built in %s\n", p.name, progress())
	return nil
}

// lock waits for the exclusive lock on file and returns what releases it.
func lock(file string) (func(), error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}
