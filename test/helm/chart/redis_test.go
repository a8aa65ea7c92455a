package chart

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A redisPod is what the chart runs in one pod of Redis: the scripts of the config map, on an
// address of the loopback network for the pod's name.
type redisPod struct {
	t             *testing.T
	host, dir     string
	port, sentry  string
	redis, sentin *exec.Cmd
}

func freePort(t *testing.T, host string) string {
	t.Helper()
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", host+":0")
	if err != nil {
		t.Skipf("%s is no address of this machine: %v", host, err)
	}
	defer lis.Close()
	_, port, _ := net.SplitHostPort(lis.Addr().String())
	return port
}

// redisPods are three pods, which nothing runs in yet.
func redisPods(t *testing.T) []*redisPod {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("there is no redis-server")
	}
	var files map[string]string
	for _, o := range objects(t, nil) {
		if m, is := o.Object.(*corev1.ConfigMap); is && m.Data["redis.sh"] != "" {
			files = m.Data
		}
	}
	hosts := []string{"127.77.23.1", "127.77.23.2", "127.77.23.3"}
	port, sentry := freePort(t, hosts[0]), freePort(t, hosts[0])
	var pods []*redisPod
	for _, host := range hosts {
		p := &redisPod{t: t, host: host, dir: t.TempDir(), port: port, sentry: sentry}
		for name, text := range files {
			if strings.HasSuffix(name, ".conf") {
				text = "bind " + host + "\n" + text
			}
			for i, h := range hosts {
				text = strings.ReplaceAll(text, fmt.Sprintf("deltaplane-redis-%d.deltaplane-redis", i), h)
			}
			text = strings.NewReplacer("$POD_NAME.deltaplane-redis", host, "26379", sentry, "6379", port,
				"/etc/redis", p.dir+"/config", "/data", p.dir+"/data", "getent hosts", "true").Replace(text)
			p.must(os.MkdirAll(p.dir+"/config", 0o700))
			p.must(os.WriteFile(filepath.Join(p.dir, "config", name), []byte(text), 0o600))
		}
		p.must(os.MkdirAll(p.dir+"/data", 0o700))
		t.Cleanup(p.kill)
		pods = append(pods, p)
	}
	return pods
}

func (p *redisPod) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *redisPod) script(name string) *exec.Cmd {
	p.t.Helper()
	cmd := exec.Command("sh", filepath.Join(p.dir, "config", name))
	cmd.Env = append(os.Environ(), "POD_NAME="+p.host)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.must(cmd.Start())
	return cmd
}

func (p *redisPod) start() {
	p.sentin, p.redis = p.script("sentinel.sh"), p.script("redis.sh")
}

func (p *redisPod) kill() {
	for _, cmd := range []*exec.Cmd{p.redis, p.sentin} {
		if cmd != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		}
	}
	p.redis, p.sentin = nil, nil
}

// ask runs a command of redis-cli; "" when the server does not answer.
func (p *redisPod) ask(ctx context.Context, args ...string) string {
	out, _ := exec.CommandContext(ctx, "redis-cli", append([]string{"-h", p.host, "-p", p.port, "--raw"}, args...)...).Output()
	return strings.TrimSpace(string(out))
}

// until waits for something that servers do by themselves.
func until(t *testing.T, what string, is func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !is(ctx) {
		select {
		case <-ctx.Done():
			t.Fatal("not within 2 minutes: " + what)
		case <-tick.C:
		}
	}
}

// whole is true once one pod is the primary and both others follow it.
func whole(ctx context.Context, pods []*redisPod, value string) bool {
	primaries := 0
	for _, p := range pods {
		said := p.ask(ctx, "info", "replication")
		if strings.Contains(said, "role:master") && strings.Contains(said, "connected_slaves:2") {
			primaries++
		} else if !strings.Contains(said, "master_link_status:up") {
			return false
		}
		if p.ask(ctx, "get", "k") != value {
			return false
		}
	}
	return primaries == 1
}

// known is true once each sentinel has met both others and both replicas.
func known(ctx context.Context, pods []*redisPod) bool {
	for _, p := range pods {
		said, _ := exec.CommandContext(ctx, "redis-cli", "-h", p.host, "-p", p.sentry, "--raw", "sentinel", "master", "deltaplane").Output()
		if !strings.Contains(string(said), "num-other-sentinels\n2\n") || !strings.Contains(string(said), "num-slaves\n2\n") {
			return false
		}
	}
	return true
}

// A primary that comes back without its disk does not have the others forget what they know, and
// all of them may stop at once.
func TestRedisKeepsWhatItTookWhenItsPrimaryIsLost(t *testing.T) { //nolint:paralleltest // Helm keeps its settings in variables
	pods := redisPods(t)
	for _, p := range pods {
		p.start()
	}
	until(t, "three servers begin", func(ctx context.Context) bool { return whole(ctx, pods, "") })
	until(t, "a write is taken", func(ctx context.Context) bool { return pods[0].ask(ctx, "set", "k", "kept") == "OK" })
	until(t, "all have it", func(ctx context.Context) bool { return whole(ctx, pods, "kept") })
	// A sentinel that has not met the others cannot choose with them.
	until(t, "the sentinels know each other", func(ctx context.Context) bool { return known(ctx, pods) })

	pods[0].kill()
	pods[0].must(os.RemoveAll(pods[0].dir + "/data"))
	pods[0].must(os.MkdirAll(pods[0].dir+"/data", 0o700))
	pods[0].start()
	until(t, "another one is chosen, and the first follows it", func(ctx context.Context) bool { return whole(ctx, pods, "kept") })
	if strings.Contains(pods[0].ask(t.Context(), "info", "replication"), "role:master") {
		t.Error("the server that lost its disk is the primary")
	}

	for _, p := range pods {
		p.kill()
	}
	for _, p := range pods {
		p.start()
	}
	until(t, "all begin again with what they had", func(ctx context.Context) bool { return whole(ctx, pods, "kept") })
}
