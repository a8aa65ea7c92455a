package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// roleVariable, set in the environment, makes the test binary play a role instead of running its
// tests.
const roleVariable = "DELTAPLANE_TEST_ROLE"

// Main runs the tests of m. In a process that [Start] made it plays the role instead, until it ends
// or is asked to by SIGTERM.
func Main[R any](m *testing.M, play func(context.Context, R) error) {
	text := os.Getenv(roleVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var role R
	err := json.Unmarshal([]byte(text), &role)
	if err == nil {
		err = play(ctx, role)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", text, err)
		os.Exit(1) //nolint:gocritic // nothing that stop would undo outlives the process
	}
}

// Logger is for what a role runs. It is silent, or writes to standard error from level on when
// DELTAPLANE_TEST_VERBOSE is set.
func Logger(name string, level slog.Level) *slog.Logger {
	if os.Getenv("DELTAPLANE_TEST_VERBOSE") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With(slog.String("process", name))
}

// Process is a process in a role.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start starts this binary in a role, which is handed over as JSON. The process is killed when the
// test ends, and dies with it.
func Start[R any](t *testing.T, role R) *Process {
	t.Helper()
	text, err := json.Marshal(role)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{cmd: exec.Command(os.Args[0], "-test.run=^$"), done: make(chan struct{})} //nolint:gosec // it is ourselves
	p.cmd.Env = append(os.Environ(), roleVariable+"="+string(text), "GOMAXPROCS=2")
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(p.Kill)
	return p
}

// Signal sends a signal, if the process has not ended.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the process, if it has not ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end and returns how it did.
func (p *Process) Stop(timeout time.Duration) error {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if state, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && state.Signal() == syscall.SIGTERM {
			return nil // it had only just been started
		}
		return p.err
	case <-time.After(timeout):
		p.Kill()
		return errors.New("it did not end when it was asked to")
	}
}
