package harness

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// report is a run as JSON.
type report struct {
	Family  string    `json:"family"`
	Quick   bool      `json:"quick"`
	Seed    uint64    `json:"seed"`
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	Machine machine   `json:"machine"`
	Figures []Figure  `json:"figures"`
	Notes   []string  `json:"notes"`
	LeftOut []string  `json:"left_out,omitempty"`
	Failed  []string  `json:"failed,omitempty"`
}

// machine is what the figures were measured on.
type machine struct {
	OS       string            `json:"os"`
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Load     string            `json:"load_average"`
	Go       string            `json:"go"`
	GC       string            `json:"gc"`
	Versions map[string]string `json:"versions"`
}

// quoted are the modules whose versions matter to a reader.
var quoted = []string{
	"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/nats-io/nats-server/v2", "github.com/redis/go-redis/v9",
	"github.com/hibiken/asynq", "k8s.io/client-go",
}

func newReport(family string, o options) report {
	m := machine{
		OS: runtime.GOOS + "/" + runtime.GOARCH, CPU: cpuModel(), Cores: runtime.NumCPU(), Load: loadAverage(),
		Go: runtime.Version(), GC: fmt.Sprintf("GOGC=%s GOMEMLIMIT=%s", os.Getenv("GOGC"), os.Getenv("GOMEMLIMIT")),
		Versions: map[string]string{},
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			for _, path := range quoted {
				if dep.Path == path {
					m.Versions[path] = dep.Version
				}
			}
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" || s.Key == "vcs.modified" {
				m.Versions[s.Key] = s.Value
			}
		}
	}
	return report{Family: family, Quick: o.Quick, Seed: o.Seed, At: time.Now().UTC().Truncate(time.Second), Machine: m}
}

// Version adds the first line a program prints about itself.
func (b *Bench) Version(ctx context.Context, name string, args ...string) {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput() //nolint:gosec // programs this bench runs anyway
	if err == nil {
		line, _, _ := strings.Cut(string(out), "\n")
		b.Report.Machine.Versions[name] = line
	}
}

func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}
