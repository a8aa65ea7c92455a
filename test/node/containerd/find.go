package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// ErrMissing says what is not there that a containerd needs.
var ErrMissing = errors.New("containerd cannot run here")

// Programs are the files of one containerd.
type Programs struct {
	// Folder holds containerd, containerd-shim-runc-v2 and ctr; Runc is a path.
	Folder, Runc string
	// Version is what containerd says of itself, "v2.4.2"; Major its first number.
	Version string
	Major   int
}

// BinEnv names the folder of the built programs, where they are not in the module's
// .tmp/containerd.
const BinEnv = "DELTAPLANE_CONTAINERD_BIN"

// Built finds the containerd that `make containerd` made. Errors: [ErrMissing].
func Built(ctx context.Context) (Programs, error) {
	folder := os.Getenv(BinEnv)
	if folder == "" {
		root, err := moduleRoot()
		if err != nil {
			return Programs{}, err
		}
		folder = filepath.Join(root, ".tmp", "containerd", "bin")
	}
	if _, err := os.Stat(filepath.Join(folder, "containerd")); err != nil {
		return Programs{}, fmt.Errorf("%w: it is not built: run make containerd", ErrMissing)
	}
	return find(ctx, folder)
}

// Installed finds the distribution's containerd. Errors: [ErrMissing].
func Installed(ctx context.Context) (Programs, error) {
	path, err := exec.LookPath("containerd")
	if err != nil {
		return Programs{}, fmt.Errorf("%w: no containerd on PATH (Debian: apt-get install containerd)", ErrMissing)
	}
	return find(ctx, filepath.Dir(path))
}

func find(ctx context.Context, folder string) (Programs, error) {
	p := Programs{Folder: folder}
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return p, fmt.Errorf("%w: it needs Linux and root", ErrMissing)
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		if runc = filepath.Join(folder, "runc"); !executable(runc) {
			return p, fmt.Errorf("%w: no runc on PATH (Debian: apt-get install runc)", ErrMissing)
		}
	}
	p.Runc = runc
	out, err := exec.CommandContext(ctx, filepath.Join(folder, "containerd"), "--version").Output()
	if err != nil {
		return p, fmt.Errorf("%w: %s --version: %w", ErrMissing, filepath.Join(folder, "containerd"), err)
	}
	// "containerd github.com/containerd/containerd/v2 v2.4.2 revision", with Debian's suffix after ~.
	if words := strings.Fields(string(out)); len(words) > 2 {
		p.Version, _, _ = strings.Cut(words[2], "~")
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(p.Version, "v"), ".")
	if p.Major, err = strconv.Atoi(major); err != nil {
		return p, fmt.Errorf("%w: unknown version %q", ErrMissing, out)
	}
	return p, nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&0o111 != 0
}

// moduleRoot is the folder of the main module, above the working directory.
func moduleRoot() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		text, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/deltaplane/deltaplane\n") {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%w: the working directory is not in the module", ErrMissing)
		}
	}
}
