package console

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

const root = "../.."

// shared is what all tests use: one system and one browser, in which each test has a tab of its
// own.
var shared struct {
	program string
	up      *up
	browser context.Context
	axe     string
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "deltaplane-console")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	axe, err := os.ReadFile(filepath.Join(root, "services/console/web/node_modules/axe-core/axe.min.js"))
	if err != nil {
		return 0, fmt.Errorf("make console-test installs axe-core: %w", err)
	}
	shared.axe = string(axe)
	shared.program = filepath.Join(dir, "deltaplane")
	build := exec.Command("go", "build", "-o", shared.program, "./cmd/deltaplane")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build: %w\n%s", err, out)
	}
	shared.up, err = startUp(dir)
	if err != nil {
		return 0, err
	}
	defer func() {
		stopped := shared.up.stop()
		if stopped != nil || code != 0 {
			fmt.Fprintf(os.Stderr, "deltaplane up: %v\n%s\n", stopped, shared.up.output())
		}
		if stopped != nil {
			code = 1
		}
	}()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx); err != nil {
		return 0, fmt.Errorf("start Chromium: %w", err)
	}
	shared.browser = ctx
	return m.Run(), nil
}
