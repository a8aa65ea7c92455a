package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How long a part may take to stop before it is killed. The data is thrown away, so little is lost.
const stopGrace = 5 * time.Second

// process is a part that this process started. exited is closed when it has ended and been waited
// for; only then may err be read.
type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// start runs a program in a process group of its own, its output going to DIR/logs/NAME.log. Its
// command line is kept in DIR/config/NAME.args.
func (f folder) start(name, program string, detach bool, args ...string) (*process, error) {
	log, err := os.OpenFile(f.path("logs", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cluster: start %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = string(f)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup(detach)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cluster: start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	pid := strconv.Itoa(cmd.Process.Pid) + "\n"
	line, err := json.Marshal(cmd.Args)
	if err == nil {
		err = errors.Join(
			os.WriteFile(f.path("pids", name), []byte(pid), 0o600), os.WriteFile(f.path("config", name+".args"), line, 0o600))
	}
	if err != nil {
		f.stop(cmd.Process.Pid)
		return nil, fmt.Errorf("cluster: start %s: %w", name, err)
	}
	return p, nil
}

// failure describes a part that ended by itself, with the end of its log.
func (f folder) failure(p *process) error {
	log, err := os.ReadFile(f.path("logs", p.name+".log"))
	if err != nil {
		log = []byte(err.Error())
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	lines = lines[max(0, len(lines)-8):]
	how := "ended"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("cluster: %s: %s; the end of %s:\n%s",
		p.name, how, f.path("logs", p.name+".log"), strings.Join(lines, "\n"))
}

// owns tells whether pid is a live process of this cluster, not one that got the number of a dead
// part. Every part is given a path in DIR on its command line.
func (f folder) owns(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if errors.Is(err, os.ErrNotExist) {
		args, err = exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	}
	return err == nil && bytes.Contains(args, []byte(string(f)+string(filepath.Separator)))
}

// stop ends the process group of pid, politely at first, and waits until the process is gone.
func (f folder) stop(pid int) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if syscall.Kill(-pid, sig) != nil {
			return
		}
		for deadline := time.Now().Add(stopGrace); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if !f.owns(pid) {
				return
			}
		}
	}
}

// kill ends parts at once, and waits until their processes are gone.
func (f folder) kill(names []string) error {
	var pids []int
	for _, name := range names {
		pid, err := f.pid(name)
		if err != nil {
			return err
		}
		if pid != 0 && f.owns(pid) && syscall.Kill(-pid, syscall.SIGKILL) == nil {
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		for f.owns(pid) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// stopAll ends the parts whose process ids are in DIR/pids, those that depend on others first, and
// removes the files.
func (f folder) stopAll() error {
	var errs []error
	for i := len(startOrder) - 1; i >= 0; i-- {
		name := startOrder[i]
		pid, err := f.pid(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if pid != 0 && f.owns(pid) {
			f.stop(pid)
		}
		if err := os.Remove(f.path("pids", name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("cluster: stop %s: %w", name, err))
		}
	}
	if err := os.Remove(f.path("pids", supervisor)); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("cluster: %w", err))
	}
	return errors.Join(errs...)
}
