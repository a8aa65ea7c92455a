package embedded

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// RedisConfig describes a redis-server child.
type RedisConfig struct {
	// Dir is where it stores its data; it is created. It must be set.
	Dir string
	// Port is the loopback port. Default: a free one.
	Port int
	// Persist turns on the append-only file, so that a restart keeps the data.
	Persist bool
	// Args are further arguments, "--maxmemory", "64mb".
	Args []string
	// Binary is the server to run, a redis-server or a valkey-server. Default:
	// redis-server on PATH.
	Binary string
	// Config is the text of a configuration file, for what only such a file can
	// say (Sentinel). It is written to Dir.
	Config string
}

// Redis is a running redis-server child that listens on 127.0.0.1.
type Redis struct {
	addr string
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended
	log  string
	stop sync.Once
}

// ErrNoRedis says that there is no redis-server to run.
var ErrNoRedis = errors.New("embedded: redis-server is not on PATH; install it (Debian: apt-get install redis-server)")

// StartRedis starts a redis-server on a free loopback port with its data in
// dir, and waits until it answers. It is killed when this process dies. The
// caller stops it.
func StartRedis(ctx context.Context, dir string) (*Redis, error) {
	return StartRedisWith(ctx, RedisConfig{Dir: dir})
}

// StartRedisWith is StartRedis with every choice.
func StartRedisWith(ctx context.Context, cfg RedisConfig) (*Redis, error) {
	if cfg.Dir == "" {
		return nil, errors.New("embedded: redis needs a directory")
	}
	path, err := exec.LookPath(cmp.Or(cfg.Binary, "redis-server"))
	switch {
	case err != nil && cfg.Binary != "":
		return nil, fmt.Errorf("embedded: redis: %w", err)
	case err != nil:
		return nil, ErrNoRedis
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded: redis: %w", err)
	}
	// A port found free may be taken before the child has it: try again then.
	for attempt := 1; ; attempt++ {
		r, err := startRedis(ctx, path, cfg)
		if err == nil || cfg.Port != 0 || attempt == 5 || ctx.Err() != nil || !strings.Contains(err.Error(), "in use") {
			return r, err
		}
	}
}

func startRedis(ctx context.Context, path string, cfg RedisConfig) (*Redis, error) {
	port := cfg.Port
	if port == 0 {
		var err error
		if port, err = freePort(ctx); err != nil {
			return nil, fmt.Errorf("embedded: redis: %w", err)
		}
	}
	r := &Redis{
		addr: net.JoinHostPort("127.0.0.1", fmt.Sprint(port)),
		done: make(chan struct{}), log: filepath.Join(cfg.Dir, "redis.log"),
	}
	if err := os.Remove(r.log); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("embedded: redis: %w", err)
	}
	var args []string
	if cfg.Config != "" {
		file := filepath.Join(cfg.Dir, "redis.conf")
		if err := os.WriteFile(file, []byte(cfg.Config), 0o600); err != nil {
			return nil, fmt.Errorf("embedded: redis: %w", err)
		}
		args = append(args, file)
	}
	args = append(args,
		"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", cfg.Dir, "--logfile", r.log, "--loglevel", "notice",
		"--save", "", "--daemonize", "no", "--appendonly", map[bool]string{true: "yes", false: "no"}[cfg.Persist],
	)
	r.cmd = exec.Command(path, append(args, cfg.Args...)...) //nolint:gosec,noctx // the path came from LookPath; Stop ends the child
	r.cmd.SysProcAttr = childAttr()
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("embedded: redis: %w", err)
	}
	go func() {
		_ = r.cmd.Wait() // how it ended is in its log
		close(r.done)
	}()
	if err := r.wait(ctx); err != nil {
		r.Stop()
		return nil, err
	}
	return r, nil
}

// wait returns once the server says in its log that it accepts connections, and answers, be it that
// it wants a password. The answer alone could be that of another one, which took the port first.
func (r *Redis) wait(ctx context.Context) error {
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		if r.listens() && r.ping(ctx) {
			return nil
		}
		select {
		case <-r.done:
			return fmt.Errorf("embedded: redis ended at once: %s", r.tail())
		case <-deadline.C:
			return fmt.Errorf("embedded: redis did not answer on %s in 10 s: %s", r.addr, r.tail())
		case <-ctx.Done():
			return fmt.Errorf("embedded: redis: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// listens reports that the child has its port: servers and sentinels log it differently.
func (r *Redis) listens() bool {
	log, _ := os.ReadFile(r.log)
	return bytes.Contains(log, []byte("Ready to accept connections")) || bytes.Contains(log, []byte("Sentinel ID is"))
}

func (r *Redis) ping(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", r.addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && (strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH"))
}

func (r *Redis) tail() string {
	data, _ := os.ReadFile(r.log)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return cmp.Or(strings.Join(lines[max(0, len(lines)-4):], "; "), "it left no log")
}

func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer lis.Close()
	return lis.Addr().(*net.TCPAddr).Port, nil
}

// Addr is host:port.
func (r *Redis) Addr() string { return r.addr }

// URL is the address as redis:// URL.
func (r *Redis) URL() string { return "redis://" + r.addr }

// Pid is the child's process id, for tests that stop and continue it.
func (r *Redis) Pid() int { return r.cmd.Process.Pid }

// Done is closed when the child has ended.
func (r *Redis) Done() <-chan struct{} { return r.done }

// Stop ends the child, and waits for it. It may be called again.
func (r *Redis) Stop() {
	r.stop.Do(func() {
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-r.done:
		case <-time.After(5 * time.Second):
			_ = r.cmd.Process.Kill()
			<-r.done
		}
	})
}

// Kill ends the child without letting it save anything.
func (r *Redis) Kill() {
	r.stop.Do(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
	})
}
