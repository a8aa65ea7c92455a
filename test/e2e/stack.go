//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/deltaplane/deltaplane/test/node/containerd"
)

const (
	nodeName  = "e2e-1"
	startTime = 3 * time.Minute
	// managed are the controllers of kube-controller-manager that the specs need. Those that
	// Deltaplane has are not among them: its own are judged.
	managed = "garbage-collector-controller,namespace-controller,root-ca-certificate-publisher-controller,serviceaccount-controller,serviceaccount-token-controller"
	ours    = "job,nodelifecycle,podgc,tainteviction"
)

// stack is what the specs run on.
type stack struct {
	kubeconfig string
	specs      string // the kubeconfig of the specs
	parts      []*process
	undo       []func() error // run from the last to the first
}

// start starts everything and waits until the node is ready. When it fails nothing goes on.
func start(ctx context.Context, m made, gateway bool, logs string, out io.Writer) (*stack, error) {
	s := &stack{}
	// Sockets are below it, whose paths are short.
	dir, err := os.MkdirTemp("", "dp-e2e-")
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, func() error { return os.RemoveAll(dir) })
	began := time.Now()
	if err := s.begin(ctx, m, gateway, dir, logs); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	fmt.Fprintf(out, "Kubernetes %s, containerd %s and node %s are ready in %.0fs; logs in %s\n", m.version, m.runtime.Version, nodeName, time.Since(began).Seconds(), logs)
	return s, nil
}

func (s *stack) begin(ctx context.Context, m made, gateway bool, dir, logs string) error {
	runtime, err := containerd.Start(ctx, m.runtime, filepath.Join(dir, "ctd"))
	if err != nil {
		return err
	}
	s.undo = append(s.undo, runtime.Close)
	if err := images(ctx, m, runtime); err != nil {
		return err
	}
	kube := filepath.Join(dir, "kube")
	if err := s.part("kube", logs, filepath.Join(m.root, "test", "kube"), m.kube, "up", "--dir", kube, "--nodes", "0", "--controllers", managed); err != nil {
		return err
	}
	s.undo = append(s.undo, func() error { return keepLogs(filepath.Join(kube, "logs"), logs) })
	s.kubeconfig = filepath.Join(kube, "kubeconfig")
	if err := s.until(ctx, "the API server answers", func(ctx context.Context) error {
		return kubectl(ctx, m, s.kubeconfig, "get", "serviceaccount", "default")
	}); err != nil {
		return err
	}
	ports, err := freePorts(5)
	if err != nil {
		return err
	}
	plane := []string{
		"up", "--kubeconfig", s.kubeconfig, "--controllers", ours, "--data-dir", filepath.Join(dir, "plane"),
		"--index-listen", ports[0], "--queue-listen", ports[1], "--reflector-listen", ports[2], "--nats-listen", ports[3],
		"--index-admin-listen", "off", "--queue-admin-listen", "off", "--reflector-admin-listen", "off", "--controllers-admin-listen", "off",
		"--log-level", "info",
	}
	if gateway {
		plane = append(plane, "--skip", "nodes,console", "--resources", "*", "--gateway-listen", ports[4], "--gateway-admin-listen", "off")
	} else {
		plane = append(plane, "--skip", "nodes,gateway,console")
	}
	if err := s.part("deltaplane", logs, dir, m.deltaplane, plane...); err != nil {
		return err
	}
	if s.specs = s.kubeconfig; gateway {
		s.specs = filepath.Join(dir, "gateway.kubeconfig")
		if err := s.until(ctx, "the gateway answers", func(ctx context.Context) error {
			if _, err := output(ctx, m.root, io.Discard, m.deltaplane, "kubeconfig", "--kubeconfig", s.kubeconfig, "--server", "https://"+ports[4],
				"--certificate-authority", filepath.Join(dir, "plane", "gateway", "ca.crt"), "-o", s.specs); err != nil {
				return err
			}
			return kubectl(ctx, m, s.specs, "get", "serviceaccount", "default")
		}); err != nil {
			return err
		}
	}
	// On a disk that is nearly full the node would have disk pressure, and pods no place to go.
	node := filepath.Join(dir, "node")
	if err := os.Mkdir(node, 0o700); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", node, "tmpfs", 0, "size=256m"); err != nil {
		return fmt.Errorf("mount %s: %w", node, err)
	}
	s.undo = append(s.undo, func() error { return syscall.Unmount(node, syscall.MNT_DETACH) })
	if err := s.part("node", logs, dir, m.deltaplane,
		"serve", "node", "--kubeconfig", s.kubeconfig, "--node-name", nodeName, "--cri", runtime.Endpoint(), "--index-url", ports[0],
		"--root-dir", node, "--log-dir", filepath.Join(dir, "pods"), "--admin-listen", "off", "--host-network-only", "--log-level", "debug",
	); err != nil {
		return err
	}
	return s.until(ctx, "the node is ready", func(ctx context.Context) error {
		return kubectl(ctx, m, s.kubeconfig, "wait", "--for=condition=Ready", "--timeout=1s", "node/"+nodeName)
	})
}

// part starts a process that ends with the stack.
func (s *stack) part(name, logs, dir, program string, args ...string) error {
	p, err := startProcess(name, logs, dir, program, args...)
	if err != nil {
		return err
	}
	s.parts = append(s.parts, p)
	s.undo = append(s.undo, p.stop)
	return nil
}

// until asks until there is no error, a part has ended, or the time is over.
func (s *stack) until(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		for _, p := range s.parts {
			if err := p.failure(); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, startTime, err)
		}
	}
}

func kubectl(ctx context.Context, m made, kubeconfig string, args ...string) error {
	_, err := output(ctx, m.root, io.Discard, m.kubectl, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	return err
}

// stop ends what runs, the last started first.
func (s *stack) stop() error {
	var faults []error
	for _, undo := range slices.Backward(s.undo) {
		faults = append(faults, undo())
	}
	return errors.Join(faults...)
}

// keepLogs copies what a cluster said to a folder that stays.
func keepLogs(from, to string) error {
	found, err := filepath.Glob(filepath.Join(from, "*.log"))
	if err != nil {
		return err
	}
	var faults []error
	for _, file := range found {
		text, err := os.ReadFile(file)
		faults = append(faults, err, os.WriteFile(filepath.Join(to, filepath.Base(file)), text, 0o644))
	}
	return errors.Join(faults...)
}

// freePorts returns addresses on which nobody listens. All are held until all are known, so that
// they differ.
func freePorts(n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		addresses[i] = l.Addr().String()
	}
	return addresses, nil
}
