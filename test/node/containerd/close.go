//go:build linux

package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const closeTime = 60 * time.Second

// Close removes every sandbox, stops the daemon, ends shims that are left, unmounts
// what is mounted below its directory, and removes the directory. The error names what stays.
func (c *Containerd) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	var faults []error
	if c.daemon != nil {
		faults = append(faults, c.removeAll(ctx), c.terminate())
	}
	if c.conn != nil {
		faults = append(faults, c.conn.Close())
	}
	for range 20 { // a shim's end frees its mounts, a moment later
		left := c.shims()
		for _, pid := range left {
			// A shim is the parent of what runs in its sandbox, which would go on without it.
			for _, child := range children(pid) {
				_ = syscall.Kill(child, syscall.SIGKILL)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	faults = append(faults, c.unmount(), os.RemoveAll(c.dir))
	c.removeCgroups()
	faults = append(faults, c.Leftovers())
	return errors.Join(faults...)
}

func (c *Containerd) terminate() error {
	if err := c.daemon.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-c.ended:
	case <-time.After(closeTime / 4):
		_ = c.daemon.Process.Kill()
		<-c.ended
	}
	c.daemon = nil
	return nil
}

func (c *Containerd) removeAll(ctx context.Context) error {
	client := runtimeapi.NewRuntimeServiceClient(c.conn)
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes to remove them: %w", err)
	}
	if containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{}); err == nil {
		for _, one := range containers.Containers {
			c.made[one.Id] = true
		}
	}
	var faults []error
	for _, box := range list.Items {
		c.made[box.Id] = true
		_, err := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: box.Id})
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// shims are the processes that name our socket on their command line, the daemon excepted.
func (c *Containerd) shims() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(line, []byte("containerd-shim")) && bytes.Contains(line, []byte(c.socket)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func children(pid int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var out []int
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for word := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// mounts are what is mounted below the directory, the innermost first.
func (c *Containerd) mounts() []string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], c.dir+"/") {
			out = append(out, fields[4])
		}
	}
	slices.Reverse(out)
	return out
}

func (c *Containerd) unmount() error {
	var faults []error
	for _, at := range c.mounts() {
		if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			faults = append(faults, fmt.Errorf("unmount %s: %w", at, err))
		}
	}
	return errors.Join(faults...)
}

// settled is the age from which a control group without a process is one that was forgotten, not
// one being filled.
const settled = 10 * time.Second

// removeCgroups removes the control groups that a killed containerd forgot, which hold no process,
// and their parent where nobody else has one below it.
func (c *Containerd) removeCgroups() {
	for _, pattern := range []string{"/sys/fs/cgroup/k8s.io/*", "/sys/fs/cgroup/*/k8s.io/*"} {
		found, _ := filepath.Glob(pattern)
		for _, at := range found {
			info, err := os.Stat(at)
			if err != nil || !info.IsDir() || (!c.made[filepath.Base(at)] && time.Since(info.ModTime()) < settled) {
				continue
			}
			if procs, err := os.ReadFile(filepath.Join(at, "cgroup.procs")); err == nil && len(procs) == 0 {
				_ = syscall.Rmdir(at)
			}
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/k8s.io", "/sys/fs/cgroup/*/k8s.io"} {
		found, _ := filepath.Glob(pattern)
		for _, at := range found {
			_ = syscall.Rmdir(at) // refused when it is not empty
		}
	}
}

// cgroups are the control groups that name one of our sandboxes or containers.
func (c *Containerd) cgroups() []string {
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup/k8s.io/*", "/sys/fs/cgroup/*/k8s.io/*"} {
		found, _ := filepath.Glob(pattern)
		for _, at := range found {
			if c.made[filepath.Base(at)] {
				out = append(out, at)
			}
		}
	}
	return out
}

// Leftovers says what of this containerd is still on the machine, as an error: shims, mounts,
// control groups, its directory.
func (c *Containerd) Leftovers() error {
	var faults []error
	if pids := c.shims(); len(pids) > 0 {
		faults = append(faults, fmt.Errorf("shims are left: %v", pids))
	}
	if at := c.mounts(); len(at) > 0 {
		faults = append(faults, fmt.Errorf("mounts are left: %v", at))
	}
	if at := c.cgroups(); len(at) > 0 {
		faults = append(faults, fmt.Errorf("control groups are left: %v", at))
	}
	if _, err := os.Stat(c.dir); !errors.Is(err, fs.ErrNotExist) {
		faults = append(faults, fmt.Errorf("%s is left", c.dir))
	}
	return errors.Join(faults...)
}

// TaskPID is the process of a running container on this machine, for tests that kill it from
// outside.
func (c *Containerd) TaskPID(containerID string) (int, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "state", "io.containerd.runtime.v2.task", "k8s.io", containerID, "init.pid"))
	if err != nil {
		return 0, fmt.Errorf("container %s: %w", containerID, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
