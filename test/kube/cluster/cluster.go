// Package cluster runs a real Kubernetes API server with what the tests need beside it: etcd, the
// scheduler, the garbage collector, the service account and namespace controllers, and KWOK, which
// plays the kubelets of simulated nodes. The Job controller is not among them: Deltaplane brings
// its own.
//
// Everything listens on 127.0.0.1 and keeps its files in one folder:
//
//	DIR/kubeconfig   an administrator's way in, mode 0600
//	DIR/logs         what each part said
//	DIR/pids         a file per running part, for Down in another process
//	DIR/lock         held by Up while it starts a cluster, and while it supervises one
//	DIR/data, DIR/pki, DIR/config
//
// A cluster starts empty: Up removes what an earlier one left in DIR.
package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrRunning says that a cluster already runs in the folder.
var ErrRunning = errors.New("cluster: already running")

// ErrNotRunning says that no cluster runs in the folder.
var ErrNotRunning = errors.New("cluster: not running")

// Config says what to start. Only Bin and Dir have no default.
type Config struct {
	Bin   string // folder of the programs, as build.Ensure returns it
	Dir   string // folder of the cluster, created with mode 0700 if missing
	Nodes int    // simulated nodes; zero means 5, negative means none
	Zones int    // the nodes are in, the first ones in z1 and so on; zero means no zone labels
	// LeaseSeconds is how long the leases of simulated nodes last; they are renewed four times as
	// often. Zero means 40.
	LeaseSeconds int
	// Controllers of kube-controller-manager, as its flag takes them. Empty means DefaultControllers.
	Controllers string
	// APIServerArgs and ManagerArgs are further arguments of kube-apiserver and
	// kube-controller-manager.
	APIServerArgs, ManagerArgs []string
	// Ports on 127.0.0.1; zero means a free one.
	Port, EtcdPort, EtcdPeerPort int
	// Detach lets the parts outlive the process that started them; otherwise they die with it where
	// the operating system can promise that (Linux), and with Cluster.Stop.
	Detach bool
	Out    io.Writer // progress, a line for each part; nil means none
}

// DefaultControllers are what everything else needs: neither the Job controller nor those of nodes
// are among them, which Deltaplane brings.
const DefaultControllers = "garbage-collector-controller,serviceaccount-controller,serviceaccount-token-controller,namespace-controller"

// KubeletLabel is on the nodes that are simulated, with the value KubeletKwok. A node that loses it
// falls silent: its lease is no longer renewed and its pods are left alone until it has the label
// again.
const (
	KubeletLabel = "deltaplane.io/kubelet"
	KubeletKwok  = "kwok"
)

func (c Config) withDefaults() Config {
	c.Nodes = cmp.Or(c.Nodes, 5)
	c.LeaseSeconds = cmp.Or(c.LeaseSeconds, 40)
	c.Controllers = cmp.Or(c.Controllers, DefaultControllers)
	if c.Out == nil {
		c.Out = io.Discard
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Bin == "" {
		errs = append(errs, errors.New("Bin is empty"))
	}
	if !filepath.IsAbs(c.Dir) {
		errs = append(errs, fmt.Errorf("Dir %q is not an absolute path", c.Dir))
	}
	for name, n := range map[string]int{"Zones": c.Zones, "LeaseSeconds": c.LeaseSeconds} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("%s %d is negative", name, n))
		}
	}
	for name, port := range map[string]int{"Port": c.Port, "EtcdPort": c.EtcdPort, "EtcdPeerPort": c.EtcdPeerPort} {
		if port < 0 || port > 65535 {
			errs = append(errs, fmt.Errorf("%s %d is not a port", name, port))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cluster config: %w", err)
	}
	return nil
}

// folder is the cluster's DIR.
type folder string

func (f folder) path(parts ...string) string {
	return filepath.Join(append([]string{string(f)}, parts...)...)
}

// Kubeconfig is the path of the administrator's kubeconfig of the cluster in dir, whether it runs
// or not.
func Kubeconfig(dir string) string { return folder(dir).path("kubeconfig") }

// lock takes DIR/lock without waiting. It reports ErrRunning when another process has it. The lock
// goes with the process, so it never needs to be cleaned up.
func (f folder) lock() (*os.File, error) {
	file, err := os.OpenFile(f.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: another process holds %s; kube down stops it", ErrRunning, f.path("lock"))
		}
		return nil, fmt.Errorf("cluster: lock %s: %w", f.path("lock"), err)
	}
	return file, nil
}

// pid reads the process id in DIR/pids/NAME; zero means there is none.
func (f folder) pid(name string) (int, error) {
	text, err := os.ReadFile(f.path("pids", name))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cluster: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("cluster: %s holds %q, not a process id", f.path("pids", name), text)
	}
	return pid, nil
}

// Part is one process of a cluster.
type Part struct {
	Name string
	PID  int // zero when it does not run
}

// Status lists the parts in the order in which they start, with the processes that still run.
func Status(dir string) ([]Part, error) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	f := folder(dir)
	parts := make([]Part, 0, len(startOrder))
	for _, name := range startOrder {
		pid, err := f.pid(name)
		if err != nil {
			return nil, err
		}
		if pid != 0 && !f.owns(pid) {
			pid = 0
		}
		parts = append(parts, Part{Name: name, PID: pid})
	}
	return parts, nil
}

// Running tells whether every part of the cluster in dir runs.
func Running(dir string) (bool, error) {
	parts, err := Status(dir)
	for _, p := range parts {
		if p.PID == 0 {
			return false, err
		}
	}
	return err == nil, err
}
