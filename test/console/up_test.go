package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// long is a bound for what takes a moment, on any machine.
const long = 60 * time.Second

// process is a running part and what it wrote.
type process struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  bytes.Buffer
	done chan struct{}
}

// Write implements io.Writer.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := p.out.String()
	return text[max(0, len(text)-8000):]
}

// program is a command of the program, without the settings of whom runs the tests.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command(shared.program, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DELTAPLANE_") })
	return cmd
}

func start(args ...string) (*process, error) {
	p := &process{cmd: program(args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop ends a process, which has to end cleanly.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("ended before: %w", err)
	}
	select {
	case <-p.done:
	case <-time.After(long):
		_ = p.cmd.Process.Kill()
		<-p.done
		return errors.New("did not stop")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("exited with %d", code)
	}
	return nil
}

// up is a `deltaplane up` with its demo Jobs.
type up struct {
	*process
	api, index, queue, reflector, console string
}

func startUp(dir string) (*up, error) {
	u := &up{}
	args := []string{
		"up", "--data-dir", filepath.Join(dir, "data"), "--trace-ratio", "1", "--nats-listen", "off", "--nodes-admin-listen", "off", "--index-memory-budget", "1Gi",
		"--resources", "pods,nodes,jobs.batch,configmaps,leases.coordination.k8s.io/kube-node-lease",
	}
	for flag, to := range map[string]*string{
		"api-listen": &u.api, "index-listen": &u.index, "queue-listen": &u.queue, "reflector-listen": &u.reflector, "console-listen": &u.console,
	} {
		var err error
		if *to, err = free(); err != nil {
			return nil, err
		}
		args = append(args, "--"+flag, *to)
	}
	for _, part := range []string{"index", "queue", "reflector", "controllers", "gateway", "console"} {
		args = append(args, "--"+part+"-admin-listen", "off")
	}
	address, err := free()
	if err != nil {
		return nil, err
	}
	args = append(args, "--gateway-listen", address)
	if u.process, err = start(args...); err != nil {
		return nil, err
	}
	return u, u.await(u.console)
}

// await waits until a console answers.
func (p *process) await(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if answer, err := http.Get("http://" + address + "/"); err == nil {
			_ = answer.Body.Close()
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended:\n%s", p.output())
		case <-ctx.Done():
			return fmt.Errorf("no console at %s:\n%s", address, p.output())
		case <-tick.C:
		}
	}
}

// held keeps others from taking the ports that free returned.
var held []net.PacketConn

// free is an address that nobody uses, below the ports of outgoing connections, which could take it
// before a process listens there.
func free() (string, error) {
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.N(20_000))
		udp, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		tcp, err := net.Listen("tcp", address)
		if err != nil {
			_ = udp.Close()
			continue
		}
		held = append(held, udp)
		return address, tcp.Close()
	}
	return "", errors.New("no free port")
}

// command runs a command of the program on the shared system.
func command(t *testing.T, args ...string) string {
	t.Helper()
	args = append(args, "--index-url", shared.up.index, "--queue-url", shared.up.queue, "--reflector-url", shared.up.reflector)
	out, err := program(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("deltaplane %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// call sends a request to the dev cluster's API.
func call(ctx context.Context, method, path, contentType, body string) error {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+shared.up.api+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", contentType)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return err
}

func create(t *testing.T, path, body string) {
	t.Helper()
	if err := call(t.Context(), http.MethodPost, path, "application/json", body); err != nil {
		t.Fatal(err)
	}
}

func patch(t *testing.T, path, body string) {
	t.Helper()
	if err := call(t.Context(), http.MethodPatch, path, "application/merge-patch+json", body); err != nil {
		t.Fatal(err)
	}
}
