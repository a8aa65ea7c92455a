package harness

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times under /proc.
const tick = 10 * time.Millisecond

// machineBusy is the CPU time the whole machine has spent since it started,
// stolen time included; 0 where /proc does not say.
func machineBusy() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var sum int64
	for i, field := range strings.Fields(line) {
		// cpu user nice system idle iowait irq softirq steal guest...; guests are part of user.
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		n, _ := strconv.ParseInt(field, 10, 64)
		sum += n
	}
	return time.Duration(sum) * tick
}

// ProcessCPU is the CPU time, user and system, of a process.
func ProcessCPU(pid string) (time.Duration, error) {
	if pid == "" {
		return 0, errors.New("the process does not run")
	}
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}

// FamilyBusy is the CPU time of this process and its descendants, those that
// have ended and been waited for included.
func FamilyBusy() time.Duration {
	type process struct {
		parent int
		ticks  int64
	}
	all := map[int]process{}
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		end := bytes.LastIndexByte(text, ')') // the name before may hold anything
		fields := strings.Fields(string(text[end+1:]))
		if end < 0 || len(fields) < 15 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(fields[1])
		p := process{parent: parent}
		for _, field := range fields[11:15] { // utime stime cutime cstime
			n, _ := strconv.ParseInt(field, 10, 64)
			p.ticks += n
		}
		all[pid] = p
	}
	var sum int64
	for pid, p := range all {
		for at, depth := pid, 0; at > 1 && depth < 64; at, depth = all[at].parent, depth+1 {
			if at == os.Getpid() {
				sum += p.ticks
				break
			}
		}
	}
	return time.Duration(sum) * tick
}

// peakRSS is the most memory this process has held, in bytes. Getrusage would
// tell the parent's, which is inherited across exec.
func peakRSS() int64 { return statusBytes("VmHWM") }

// statusBytes is a size of this process from /proc, in bytes; 0 where it does not say.
func statusBytes(name string) int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	return sizeIn(string(text), name)
}

// sizeIn reads a named size in bytes from a file under /proc; 0 when it is not there.
func sizeIn(text, name string) int64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			value, ok = strings.CutSuffix(strings.TrimSpace(value), " kB")
			if kb, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); ok && err == nil {
				return kb << 10
			}
		}
	}
	return 0
}

// Heap is what a process holds after everything dead has been collected.
type Heap struct {
	Live    int64 `json:"live"`     // HeapAlloc, bytes
	Objects int64 `json:"objects"`  // on the heap
	RSS     int64 `json:"rss"`      // bytes held now
	PeakRSS int64 `json:"peak_rss"` // bytes held at most so far
	Stacks  int64 `json:"stacks"`   // of goroutines, bytes
}

// heapNow collects three times and looks.
func heapNow() Heap {
	h := Heap{PeakRSS: statusBytes("VmHWM")} // before the collections, which grow nothing
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h.Live, h.Objects, h.Stacks = int64(m.HeapAlloc), int64(m.HeapObjects), int64(m.StackInuse)
	debug.FreeOSMemory()
	h.RSS = statusBytes("VmRSS")
	return h
}

// CollectionCost is what a full collection takes: CPU of the process, and time.
type CollectionCost struct {
	CPU  time.Duration `json:"cpu"`
	Wall time.Duration `json:"wall"`
}

// collectOnce collects the heap while nothing else runs here, several times, and
// returns the middle one.
func collectOnce() (CollectionCost, error) {
	var all []CollectionCost
	for range 5 {
		before, err := cpuTime()
		if err != nil {
			return CollectionCost{}, err
		}
		began := time.Now()
		runtime.GC()
		wall := time.Since(began)
		after, err := cpuTime()
		if err != nil {
			return CollectionCost{}, err
		}
		all = append(all, CollectionCost{CPU: after - before, Wall: wall})
	}
	slices.SortFunc(all, func(a, b CollectionCost) int { return cmp.Compare(a.CPU, b.CPU) })
	return all[len(all)/2], nil
}
