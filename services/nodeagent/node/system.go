package node

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The least that must be free, as the kubelet has it for memory and disk: 100 MiB of
// memory, a tenth of the file system, a twentieth of its inodes; and a twentieth
// of the process numbers.
const (
	minMemory    = 100 << 20
	minDiskPart  = 10
	minInodePart = 20
	minPIDPart   = 20
)

// System are the readings of this machine: memory available, the file system that holds
// dir, and process numbers.
func System(dir string) Sources {
	return Sources{
		Memory: func() (Pressure, error) {
			_, available, err := memory()
			return Pressure{On: available < minMemory, Message: fmt.Sprintf("%d MiB of memory are available, less than %d", available>>20, minMemory>>20)}, err
		},
		Disk: func() (Pressure, error) {
			fs, err := disk(dir)
			return Pressure{
				On:      fs.free*minDiskPart < fs.size || fs.inodes > 0 && fs.freeInodes*minInodePart < fs.inodes,
				Message: fmt.Sprintf("of the file system of %s less than a tenth is free, or of its inodes less than a twentieth", dir),
			}, err
		},
		PID: func() (Pressure, error) {
			used, most, err := processes()
			return Pressure{On: (most-used)*minPIDPart < most, Message: fmt.Sprintf("%d of %d process IDs are in use", used, most)}, err
		},
	}
}

// Capacity is what this machine has: processors, memory, the file system that holds dir
// when it is named, and 110 pods. What cannot be found out is left out.
func Capacity(dir string) corev1.ResourceList {
	out := corev1.ResourceList{
		corev1.ResourceCPU:  *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourcePods: *resource.NewQuantity(110, resource.DecimalSI),
	}
	if total, _, err := memory(); err == nil {
		out[corev1.ResourceMemory] = *resource.NewQuantity(total, resource.BinarySI)
	}
	if fs, err := disk(dir); dir != "" && err == nil {
		out[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(fs.size, resource.BinarySI)
	}
	return out
}

// memory is this machine's in bytes.
func memory() (total, available int64, err error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	found := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		into := map[string]*int64{"MemTotal": &total, "MemAvailable": &available}[name]
		if into == nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/meminfo: %s: %w", name, err)
		}
		*into = n << 10
		found++
	}
	if found != 2 {
		return 0, 0, errors.New("/proc/meminfo has no MemTotal or MemAvailable")
	}
	return total, available, nil
}

// processes counts those in use, threads too, and the most there can be.
func processes() (used, most int64, err error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, 0, err
	}
	limit, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(load))
	if len(fields) < 4 {
		return 0, 0, errors.New("/proc/loadavg is malformed")
	}
	_, all, _ := strings.Cut(fields[3], "/")
	used, err = strconv.ParseInt(all, 10, 64)
	if err == nil {
		most, err = strconv.ParseInt(strings.TrimSpace(string(limit)), 10, 64)
	}
	return used, most, err
}

// filesystem is one in bytes.
type filesystem struct{ size, free, inodes, freeInodes int64 }

// systemInfo is what this machine says of itself; it does not change while it runs.
var systemInfo = sync.OnceValue(func() corev1.NodeSystemInfo {
	read := func(path string) string {
		b, _ := os.ReadFile(path)
		return strings.TrimSpace(string(b))
	}
	info := corev1.NodeSystemInfo{
		MachineID: read("/etc/machine-id"), BootID: read("/proc/sys/kernel/random/boot_id"), KernelVersion: read("/proc/sys/kernel/osrelease"),
		SystemUUID: read("/sys/class/dmi/id/product_uuid"),
	}
	for line := range strings.Lines(read("/etc/os-release")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			info.OSImage = strings.Trim(name, `"`)
		}
	}
	return info
})

const instanceFile = "instance"

// Instance is a name kept in a file in dir: the same whenever an agent is started on it.
// The caller must hold dir for itself.
func Instance(dir string) (string, error) {
	path := filepath.Join(dir, instanceFile)
	b, err := os.ReadFile(path)
	if name := strings.TrimSpace(string(b)); err == nil && name != "" {
		return name, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("node: instance: %w", err)
	}
	name := rand.Text()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("node: instance: %w", err)
	}
	// Written beside and renamed: a file that is there holds a name.
	if err := os.WriteFile(path+".new", []byte(name+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("node: instance: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("node: instance: %w", err)
	}
	return name, nil
}
