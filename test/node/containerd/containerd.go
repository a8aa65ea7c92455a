//go:build linux

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Containerd is a running containerd. Its methods are called one after the other.
type Containerd struct {
	programs            Programs
	dir, socket, config string
	snapshotter         string
	daemon              *exec.Cmd
	ended               chan error
	conn                *grpc.ClientConn
	// made are the sandboxes and containers that Close removed.
	made map[string]bool
}

const startTime = 30 * time.Second

// Start starts a containerd with everything it writes below dir, which it makes, and waits until it
// answers and has its images. The path of dir must be short: a socket's is at most 107 bytes.
func Start(ctx context.Context, programs Programs, dir string) (*Containerd, error) {
	c := &Containerd{programs: programs, dir: dir, socket: filepath.Join(dir, "containerd.sock"), config: filepath.Join(dir, "config.toml"), snapshotter: "overlayfs", made: map[string]bool{}}
	if len(c.socket) > 100 {
		return nil, fmt.Errorf("containerd: the socket's path %s is too long", c.socket)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	if err := c.writeConfig(); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+c.socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	c.conn = conn
	if err := c.run(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.importOwn(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Endpoint is where the agent finds it, "unix:///...".
func (c *Containerd) Endpoint() string { return "unix://" + c.socket }

// Conn is a connection to it, which stays good across restarts; calls wait while it is down. It is
// not the caller's to close.
func (c *Containerd) Conn() grpc.ClientConnInterface { return c.conn }

// Programs says which containerd it is.
func (c *Containerd) Programs() Programs { return c.programs }

// Kill ends the daemon with SIGKILL. Containers go on below their shims.
func (c *Containerd) Kill() error {
	if c.daemon == nil {
		return errors.New("containerd: it does not run")
	}
	err := c.daemon.Process.Kill()
	<-c.ended
	c.daemon = nil
	return err
}

// Down reports whether it was killed and not started again.
func (c *Containerd) Down() bool { return c.daemon == nil }

// Hang stops the daemon's process without ending it, SIGSTOP, so that calls get no answer; Resume
// lets it go on.
func (c *Containerd) Hang() error { return c.signal(syscall.SIGSTOP) }

// Resume ends Hang.
func (c *Containerd) Resume() error { return c.signal(syscall.SIGCONT) }

func (c *Containerd) signal(s syscall.Signal) error {
	if c.daemon == nil {
		return errors.New("containerd: it does not run")
	}
	return c.daemon.Process.Signal(s)
}

// Restart starts the daemon again after Kill and waits until it answers.
func (c *Containerd) Restart(ctx context.Context) error {
	if c.daemon != nil {
		return errors.New("containerd: it still runs")
	}
	return c.run(ctx)
}

func (c *Containerd) run(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(c.dir, "containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(c.programs.Folder, "containerd"), "--config", c.config)
	cmd.Env = append(os.Environ(), "PATH="+c.programs.Folder+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	c.daemon, c.ended = cmd, make(chan error, 1)
	ended := c.ended
	go func() {
		err := cmd.Wait()
		_ = log.Close()
		ended <- err
	}()
	return c.until(ctx, func(ctx context.Context) error {
		answer, err := runtimeapi.NewRuntimeServiceClient(c.conn).Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, condition := range answer.GetStatus().GetConditions() {
			if condition.Type == runtimeapi.RuntimeReady && condition.Status {
				return nil
			}
		}
		return fmt.Errorf("not ready: %v", answer.GetStatus())
	})
}

// until asks until there is no error any more.
func (c *Containerd) until(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		once, done := context.WithTimeout(ctx, time.Second)
		err := ask(once)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case how := <-c.ended:
			c.daemon = nil
			return fmt.Errorf("containerd ended: %w; its log ends with:\n%s", errors.Join(how, err), c.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("containerd does not answer within %s: %w; its log ends with:\n%s", startTime, err, c.LogTail())
		}
	}
}

// LogTail is the end of the daemon's log.
func (c *Containerd) LogTail() string {
	text, err := os.ReadFile(filepath.Join(c.dir, "containerd.log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// has asks the CRI for images: it learns of them a moment after they are there.
func has(conn grpc.ClientConnInterface, names []string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, name := range names {
			answer, err := runtimeapi.NewImageServiceClient(conn).ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
			if err != nil {
				return err
			}
			if answer.Image == nil {
				return fmt.Errorf("image %s is not there", name)
			}
		}
		return nil
	}
}
