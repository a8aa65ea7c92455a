//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopTime is how long a part may take to stop.
const stopTime = 30 * time.Second

// process is a part that runs beside the specs. Its output goes to a file.
type process struct {
	name, log string
	cmd       *exec.Cmd
	done      chan struct{}
	how       error // set before done is closed
}

// startProcess starts a program in dir. It dies with this process.
func startProcess(name, logs, dir, program string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(logs, name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	// A group of its own: Ctrl-C is for this process, which then ends the parts in their order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	go func() {
		p.how = errors.Join(p.cmd.Wait(), log.Close())
		close(p.done)
	}()
	return p, nil
}

// failure is an error if the part has ended by itself, with what it said last.
func (p *process) failure() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	text, err := os.ReadFile(p.log)
	if err != nil {
		text = []byte(err.Error())
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("%s ended: %s; the end of %s:\n%s", p.name, p.cmd.ProcessState, p.log, strings.Join(lines[max(0, len(lines)-10):], "\n"))
}

// stop asks the part to end, and reports one that had ended before or does not end in order.
func (p *process) stop() error {
	if err := p.failure(); err != nil {
		return err
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.how
	case <-time.After(stopTime):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop within %s; its output is in %s", p.name, stopTime, p.log)
	}
}
