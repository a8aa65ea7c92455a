package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"syscall"
	"time"
)

// supervisor is the name under which DIR/pids knows the process that holds DIR/lock.
const supervisor = "supervisor"

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.dir.path("kubeconfig") }

// Wait blocks until ctx ends, which is no error, or a part ends by itself, which is.
func (c *Cluster) Wait(ctx context.Context) error {
	cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
	for _, p := range c.parts {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(p.exited)})
	}
	chosen, _, _ := reflect.Select(cases)
	if chosen == 0 {
		return nil
	}
	return c.dir.failure(c.parts[chosen-1])
}

// Stop ends every part and waits for them. The folder keeps its logs.
func (c *Cluster) Stop() error {
	err := c.dir.stopAll()
	for _, p := range c.parts {
		<-p.exited
	}
	return errors.Join(err, c.dir.removeKubeconfig(), c.lock.Close())
}

// Leave lets a detached cluster run on without this process.
func (c *Cluster) Leave() error { return c.lock.Close() }

// Down stops the cluster in dir, no matter who started it, and returns when its processes are gone.
// It is no error if none runs.
func Down(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	f, err := resolve(dir)
	if err != nil {
		return err
	}
	lock, err := f.lock()
	if errors.Is(err, ErrRunning) {
		lock, err = f.takeOver(ctx)
	}
	if err != nil {
		return err
	}
	return errors.Join(f.stopAll(), f.removeKubeconfig(), lock.Close())
}

// removeKubeconfig takes the way in away, so that nobody mistakes a stopped cluster for a running
// one.
func (f folder) removeKubeconfig() error {
	if err := os.Remove(f.path("kubeconfig")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// takeOver asks the process that supervises the cluster to stop it, and takes the lock when it has.
func (f folder) takeOver(ctx context.Context) (*os.File, error) {
	pid, err := f.pid(supervisor)
	if err != nil {
		return nil, err
	}
	if pid == 0 {
		return nil, fmt.Errorf("cluster: %s is locked, and %s does not say by whom", f, f.path("pids", supervisor))
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("cluster: stop the supervisor, process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("cluster: process %d still supervises %s", pid, f))
	defer cancel()
	var lock *os.File
	err = poll(ctx, 50*time.Millisecond, func(context.Context) (bool, error) {
		var err error
		lock, err = f.lock()
		if errors.Is(err, ErrRunning) {
			return false, nil
		}
		return err == nil, err
	})
	return lock, err
}
