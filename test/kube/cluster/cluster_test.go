package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/deltaplane/deltaplane/test/kube/build"
)

// testFolder makes a folder as Up leaves it before it starts the parts.
func testFolder(t *testing.T) folder {
	t.Helper()
	f, err := resolve(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Cluster{dir: f}).clean(); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := Up(t.Context(), Config{Dir: "relative", Port: -1, EtcdPort: 65536, Zones: -2, LeaseSeconds: -3})
	if err == nil {
		t.Fatal("Up with a bad configuration succeeded")
	}
	for _, want := range []string{"Bin is empty", `Dir "relative"`, "Port -1", "EtcdPort 65536", "Zones -2", "LeaseSeconds -3"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not say %q", err, want)
		}
	}
}

func TestAPartThatEndsFailsTheStartAndShowsItsLog(t *testing.T) {
	t.Parallel()
	bin, dir := t.TempDir(), t.TempDir()
	script := []byte("#!/bin/sh\necho no room for data; exit 3\n")
	if err := os.WriteFile(filepath.Join(bin, build.Etcd), script, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Up(t.Context(), Config{Bin: bin, Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "no room for data") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("Up() = %v, want the end of etcd's log and its exit status", err)
	}
	if _, err := os.Stat(Kubeconfig(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed start leaves a kubeconfig: %v", err)
	}
}

func TestOnlyOneProcessMayStartAClusterInAFolder(t *testing.T) {
	t.Parallel()
	f := testFolder(t)
	lock, err := f.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Up(t.Context(), Config{Bin: "/nonesuch", Dir: string(f)}); !errors.Is(err, ErrRunning) {
		t.Errorf("Up in a locked folder = %v, want ErrRunning", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(t.Context(), Config{Bin: "/nonesuch", Dir: string(f)}); err == nil || errors.Is(err, ErrRunning) {
		t.Errorf("Up in a folder no longer locked = %v, want that etcd is missing", err)
	}
}

// sleeper starts a process that would outlive the test, with a path in f on its command line if
// marked.
func sleeper(t *testing.T, f folder, marked bool) int {
	t.Helper()
	name := "sleeper"
	if marked {
		name = f.path("data")
	}
	cmd := exec.Command("sh", "-c", "sleep 600; :", name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-exited
	})
	return cmd.Process.Pid
}

func TestDownEndsThePartsAndNoProcessThatTookTheirNumbers(t *testing.T) {
	t.Parallel()
	f := testFolder(t)
	ours, other := sleeper(t, f, true), sleeper(t, f, false)
	for name, pid := range map[string]int{build.Etcd: ours, build.Kwok: other} {
		if err := os.WriteFile(f.path("pids", name), []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := Status(string(f))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		want := 0
		if p.Name == build.Etcd {
			want = ours
		}
		if p.PID != want {
			t.Errorf("Status says %s is process %d, want %d", p.Name, p.PID, want)
		}
	}
	if _, err := Up(t.Context(), Config{Bin: "/nonesuch", Dir: string(f)}); !errors.Is(err, ErrRunning) {
		t.Errorf("Up beside a running part = %v, want ErrRunning", err)
	}
	if err := Down(t.Context(), string(f)); err != nil {
		t.Fatal(err)
	}
	if f.owns(ours) {
		t.Errorf("process %d still runs", ours)
	}
	if err := syscall.Kill(other, 0); err != nil {
		t.Errorf("a process of somebody else was ended: %v", err)
	}
}

func TestDownOfNothingIsNoError(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "nonesuch")
	if err := Down(t.Context(), missing); err != nil {
		t.Errorf("Down() = %v", err)
	}
	if _, err := os.Stat(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Down made the folder: %v", err)
	}
}

func TestABadProcessFileIsNamedNotKilled(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", "0", "1", "-5"} {
		f := testFolder(t)
		if err := os.WriteFile(f.path("pids", build.Etcd), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Status(string(f)); err == nil || !strings.Contains(err.Error(), f.path("pids", build.Etcd)) {
			t.Errorf("Status with a process id of %q = %v, want an error that names the file", text, err)
		}
	}
}

func TestTheKubeconfigReachesAServerWithTheCertificatesMade(t *testing.T) {
	t.Parallel()
	f := testFolder(t)
	secret, err := f.makeSecrets()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(f.path("pki", "server.crt"), f.path("pki", "server.key"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret.token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"kind":"Status","message":"no such thing"}`)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	defer server.Close()
	if err := f.writeKubeconfig(server.URL, secret); err != nil {
		t.Fatal(err)
	}
	api, err := openClient(Kubeconfig(string(f)))
	if err != nil {
		t.Fatal(err)
	}
	if err := api.do(t.Context(), http.MethodGet, "/x", nil, nil); !missing(err) || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("the answer is %v, want the server's 404", err)
	}
	for _, file := range []string{"kubeconfig", "pki/server.key", "pki/tokens.csv", "pki/service-account.key"} {
		if info, err := os.Stat(f.path(file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", file, info, err)
		}
	}
}

func TestPortsDifferAndATakenOneIsAnError(t *testing.T) {
	t.Parallel()
	ports, err := (&Cluster{}).ports()
	if err != nil || ports[0] == ports[1] || ports[1] == ports[2] || ports[0] == ports[2] {
		t.Errorf("ports() = %v, %v", ports, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	if _, err := (&Cluster{cfg: Config{EtcdPort: taken}}).ports(); err == nil || !strings.Contains(err.Error(), strconv.Itoa(taken)) {
		t.Errorf("ports() with a taken port = %v", err)
	}
}

// A whole cluster, as the command starts it.
func TestARealClusterDoesWhatTestsRelyOn(t *testing.T) {
	if os.Getenv("DELTAPLANE_KUBE") != "1" {
		t.Skip("set DELTAPLANE_KUBE=1 to start a real cluster; the first time it compiles Kubernetes, five to ten minutes on two cores")
	}
	t.Parallel()
	module, err := build.FindModule("..")
	if err != nil {
		t.Fatal(err)
	}
	bin, err := build.Ensure(t.Context(), module, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c, err := Up(t.Context(), Config{Bin: bin, Dir: dir, Nodes: 3, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	if running, err := Running(dir); err != nil || !running {
		t.Errorf("Running() = %v, %v", running, err)
	}
	var out bytes.Buffer
	if err := Check(t.Context(), dir, &out); err != nil {
		t.Errorf("Check() = %v after\n%s", err, &out)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Wait(ended); err != nil {
		t.Errorf("Wait() = %v while all parts run", err)
	}
	if err := c.Stop(); err != nil {
		t.Errorf("Stop() = %v", err)
	}
	parts, err := Status(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if p.PID != 0 {
			t.Errorf("%s still runs as process %d", p.Name, p.PID)
		}
	}
	if err := Check(t.Context(), dir, &out); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Check() of a stopped cluster = %v, want ErrNotRunning", err)
	}
}
